"""Batch jobs: psrt launch, which takes srun and the tasks of the job; and the example script."""

import json

import pytest

from support.launching import MEETS, ROOT
from support.slurm import MPICH, OPEN_MPI, wait_until

#: A job in which something happens to one rank.
FAULTY = ROOT / "apps" / "studies" / "faulty_job.py"


#: Five ranks on three nodes, fewer than the script asks for.
RANKS = ("--ntasks", 5, "--ntasks-per-node", 2)
SAVES = "--resume auto --checkpoint-every"
LONG = ("--mode", "sync", "--epochs", 100000, "--hidden", 8, "--record")
EXAMPLE = ROOT / "hostfiles/slurm.example.sh"
#: Runs its arguments, as a batch script does.
SCRIPT = '#!/bin/sh\nexec "$@"\n'
USR1 = """\
import pathlib, signal, sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
MPI.COMM_WORLD.Barrier()
pathlib.Path(f"waits.{rank}").touch()
end = time.monotonic() + 300
while not heard and time.monotonic() < end:
    time.sleep(0.05)
sys.exit(not heard)
"""


def log(folder):
    return "".join(path.read_text(errors="replace") for path in folder.glob("psrt-*.log"))


@pytest.fixture
def launch(slurm, mpi, folder):
    """Submits a batch job that runs psrt launch with the given words."""
    (folder / "job.sh").write_text(SCRIPT)
    line = ("--output=psrt-%j.log", folder / "job.sh", mpi.python.parent / "psrt", "launch")
    return lambda *words: slurm.submit("--nodes", 3, "--ntasks", 5, *line, *words, cwd=folder)


def test_the_tasks_of_the_job_train(launch, mpi, folder):
    """By srun, in the language that it speaks."""
    job = launch("train", "--mode", "sync", "--epochs", 1, "--out", "run")
    assert job.ended() == ("COMPLETED", 0, 0), log(folder)
    assert f"srun --mpi={mpi.pmi} --kill-on-bad-exit=1" in log(folder)
    summary = json.loads((folder / "run/summary.json").read_text())
    assert (summary["ranks"], summary["hosts"]) == (5, 3)


def test_a_script_of_torchrun_finds_all_ranks_and_hosts(launch, slurm, folder):
    """Without mpirun and its hostfile, Slurm's variables say which is where."""
    (folder / "meets.py").write_text(MEETS)
    assert launch("meets.py").ended() == ("COMPLETED", 0, 0), log(folder)
    said = sorted(line.split() for line in log(folder).splitlines() if line.count(" ") == 6)
    assert [(int(it[0]), it[1]) for it in said] == [(rank, "5") for rank in range(5)]
    nodes = [it[-1] for it in said]
    assert sorted(set(nodes)) == ["node01", "node02", "node03"]
    for rank, (*_, local, size, group, _, node) in enumerate(said):
        there = [other for other in range(5) if nodes[other] == node]  # as many as Slurm likes
        assert (int(local), int(size)) == (there.index(rank), len(there))
        assert node == f"node{int(group) + 1:02d}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("flags", "status"), [(("--mode", "nonsense"), 2), (("--lr", "1000000"), 3)]
)
def test_the_status_of_psrt_launch_is_that_of_the_job(launch, folder, flags, status):
    assert launch("train", *flags).ended() == ("FAILED", status, 0), log(folder)


def test_a_rank_that_dies_is_named_and_is_status_5(launch, folder):
    job = launch(FAULTY, "--phase", "gradient", "--rank", 4)
    assert job.ended() == ("FAILED", 5, 0), log(folder)
    (line,) = (line for line in log(folder).splitlines() if "psrt: error" in line)
    assert "worker 3 (rank 4, " in line


@pytest.mark.one_in(1000)
def test_the_doctor_sees_three_hosts(launch, folder):
    assert launch("doctor").ended() == ("COMPLETED", 0, 0), log(folder)
    said = log(folder)
    assert "launcher  srun of Slurm, PMI" in said
    assert "5 ranks on 3 hosts; psrt train would use them as sync, 1 server, 4 workers" in said
    assert "fails  " not in said


@pytest.mark.one_in(1000)
def test_mpirun_takes_as_many_tasks(launch, folder):
    (folder / "who.py").write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.size)\n")
    job = launch("--launcher", "mpirun", "who.py")
    assert job.ended() == ("COMPLETED", 0, 0), log(folder)
    assert log(folder).count("5") >= 5


@pytest.mark.one_in(1000)
def test_usr1_reaches_every_rank(launch, folder):
    (folder / "usr1.py").write_text(USR1)
    job = launch("usr1.py")
    wait_until(lambda: len(list(folder.glob("waits.*"))) == 5)
    job.cancel("--batch", "--signal=USR1")
    assert job.ended() == ("COMPLETED", 0, 0), log(folder)


@pytest.fixture(params=["srun", "mpirun"])
def start(request, slurm, mpi, folder):
    """Submits the script, given flags of sbatch and arguments of the script."""
    launcher = (
        mpi.mpirun if request.param == "mpirun" else f"srun --mpi={mpi.pmi} --kill-on-bad-exit=1"
    )

    def submit(flags, *words, **more):
        variables = {"PSRT_PYTHON": str(mpi.python), "PSRT_LAUNCHER": launcher, **more}
        return slurm.submit(*flags, EXAMPLE, *words, cwd=folder, **variables)

    return submit


def summaries(folder):
    return {
        path.parent.name: json.loads(path.read_text())
        for path in folder.glob("runs/*/summary.json")
    }


def way(launcher, mpi):
    return pytest.param(launcher, mpi, id=f"{launcher}-{mpi.vendor}")


#: How the example starts ranks; these have something of each launcher, and of each MPI.
ways = pytest.mark.parametrize(
    ("start", "mpi"), [way("srun", OPEN_MPI), way("mpirun", MPICH)], indirect=True
)


@ways
def test_the_example_as_it_stands(start, folder):
    job = start((*RANKS, "--ntasks", 6))
    assert job.ended() == ("COMPLETED", 0, 0), log(folder)
    (name, summary), = summaries(folder).items()  # fmt: skip
    assert name == job.id
    assert (summary["ranks"], summary["hosts"], summary["servers"]) == (6, 3, 3)
    assert "accuracy" in log(folder)


@pytest.mark.one_in(1000)
@ways
def test_scancel_leaves_what_there_is(start, folder, slurm, mpi):
    job = start(RANKS, *LONG, PSRT_SAVE="")
    run = folder / "runs" / job.id
    metrics = run / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size)
    job.cancel()
    state, *_ = job.ended()
    assert state == "CANCELLED", log(folder)
    assert json.loads(metrics.read_text().splitlines()[0])["epoch"] == 1
    assert (run / "history/header.json").exists()
    assert not (run / "summary.json").exists()
    assert "Traceback" not in log(folder)
    checked = slurm.run(mpi.python, "-m", "psrt", "check", run, cwd=folder)
    assert checked.status == 2
    assert "unfinished run" in checked.errors[0]


@pytest.mark.exhaustive
@ways
def test_a_signal_before_the_end_of_the_time(start, folder):
    """The run saves itself, and the job goes on with it when it is started again.

    Slurm takes its time for that.
    """
    job = start(RANKS, "--epochs", 100000, "--hidden", 8, PSRT_SAVE=f"{SAVES} 0.5s")
    checkpoints = folder / "runs" / job.id / "checkpoints"
    wait_until(lambda: any(it.name.isdigit() for it in checkpoints.glob("*")))
    job.cancel("--batch", "--signal=USR1")
    wait_until(lambda: "stopped as asked" in log(folder))
    wait_until(lambda: job.restarts == 1)
    wait_until(lambda: "resuming from step" in log(folder))
    job.cancel()
    assert job.ended()[0] == "CANCELLED", log(folder)
    (stopped,) = (it for it in log(folder).splitlines() if "stopped as asked" in it)
    (resumed,) = (it for it in log(folder).splitlines() if "resuming from step" in it)
    assert stopped.split("from step ")[1].split(",")[0] == resumed.split()[4].strip(",")


@pytest.mark.exhaustive
def test_the_tasks_of_an_array_write_folders_of_their_own(start, folder):
    job = start(("--array=1-3", "--ntasks", 2, "--nodes", 1), "--mode", "allreduce", "--epochs", 1)
    assert job.ended() == ("COMPLETED", 0, 0), log(folder)
    found = summaries(folder)
    assert sorted(found) == [f"{job.id}-{task}" for task in (1, 2, 3)]
    assert [found[name]["seed"] for name in sorted(found)] == [1, 2, 3]
