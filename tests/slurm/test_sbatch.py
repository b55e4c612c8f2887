"""Batch jobs: ``hostfiles/slurm.example.sh`` as it stands, by srun and by mpirun."""

import json

import pytest

from support.launching import ROOT
from support.slurm import MPICH, OPEN_MPI, wait_until

SCRIPT = ROOT / "hostfiles/slurm.example.sh"
#: Five ranks on three nodes, fewer than the script asks for.
RANKS = ("--ntasks", 5, "--ntasks-per-node", 2)
SAVES = "--resume auto --checkpoint-every"
LONG = ("--mode", "sync", "--epochs", 100000, "--hidden", 8, "--record")


@pytest.fixture(params=["srun", "mpirun"])
def start(request, slurm, mpi, folder):
    """Submits the script, given flags of sbatch and arguments of the script."""
    launcher = (
        mpi.mpirun if request.param == "mpirun" else f"srun --mpi={mpi.pmi} --kill-on-bad-exit=1"
    )

    def submit(flags, *words, **more):
        variables = {"PSRT_PYTHON": str(mpi.python), "PSRT_LAUNCHER": launcher, **more}
        return slurm.submit(*flags, SCRIPT, *words, cwd=folder, **variables)

    return submit


def summaries(folder):
    return {
        path.parent.name: json.loads(path.read_text())
        for path in folder.glob("runs/*/summary.json")
    }


def log(folder):
    return "".join(path.read_text(errors="replace") for path in folder.glob("psrt-*.log"))


def test_the_example_as_it_stands(start, folder):
    job = start((*RANKS, "--ntasks", 6))
    assert job.ended() == ("COMPLETED", 0, 0), log(folder)
    (name, summary), = summaries(folder).items()  # fmt: skip
    assert name == job.id
    assert (summary["ranks"], summary["hosts"], summary["servers"]) == (6, 3, 3)
    assert "accuracy" in log(folder)


def test_the_status_of_psrt_is_that_of_the_job(start, folder):
    assert start(RANKS, "--lr", "nan").ended() == ("FAILED", 2, 0), log(folder)
    assert not (folder / "runs").exists()


@pytest.mark.one_in(1000)
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
@pytest.mark.parametrize(
    ("start", "mpi"),
    [("srun", OPEN_MPI), ("mpirun", MPICH)],
    indirect=True,
    ids=["srun-openmpi", "mpirun-mpich"],
)
def test_a_signal_before_the_end_of_the_time(start, folder):
    """The run saves itself, and the job goes on with it when it is started again.

    Slurm takes its time for that: two of the four ways have something of each.
    """
    job = start(RANKS, "--epochs", 100000, "--hidden", 8, PSRT_SAVE=f"{SAVES} 0.5s")
    checkpoints = folder / "runs" / job.id / "checkpoints"
    wait_until(lambda: any(it.name.isdigit() for it in checkpoints.glob("*")))
    job.cancel("--batch", "--signal=USR1")
    wait_until(lambda: "stopped as asked" in log(folder))
    wait_until(lambda: job.restarts == 1)
    wait_until(lambda: "going on from step" in log(folder))
    job.cancel()
    assert job.ended()[0] == "CANCELLED", log(folder)
    (stopped,) = (it for it in log(folder).splitlines() if "stopped as asked" in it)
    (resumed,) = (it for it in log(folder).splitlines() if "going on from step" in it)
    assert stopped.split("from step ")[1].split(",")[0] == resumed.split()[4].strip(",")


@pytest.mark.exhaustive
def test_a_signal_that_a_run_cannot_heed_ends_it(slurm, mpi, folder):
    """Without checkpoints, sent by Slurm to the ranks themselves."""
    job = slurm.submit(
        *(*RANKS, "--signal=USR1@30", SCRIPT, *LONG),
        cwd=folder,
        PSRT_PYTHON=str(mpi.python),
        PSRT_LAUNCHER=f"srun --mpi={mpi.pmi}",
        PSRT_SAVE="",
    )
    run = folder / "runs" / job.id
    metrics = run / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size)
    job.cancel("--signal=USR1")
    assert job.ended()[0] == "FAILED", log(folder)
    assert metrics.stat().st_size
    assert not (run / "summary.json").exists()


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(
    ("flags", "ended"), [((), ("COMPLETED", 0)), (("--lr", "1000000"), ("FAILED", 3))]
)
def test_psrt_launch(slurm, mpi, folder, flags, ended):
    """It finds by itself that it is srun which starts the ranks, and in which language."""
    words = f"{mpi.python} -m psrt launch train --epochs 1 --out run {' '.join(flags)}"
    job = slurm.submit(*RANKS, "--output=psrt-%j.log", f"--wrap={words}", cwd=folder)
    state, status, _ = job.ended()
    assert (state, status) == ended, log(folder)
    assert f"srun --mpi={mpi.pmi}" in log(folder)
    if not status:
        summary = json.loads((folder / "run/summary.json").read_text())
        assert (summary["ranks"], summary["hosts"]) == (5, 3)


@pytest.mark.exhaustive
def test_the_tasks_of_an_array_write_folders_of_their_own(start, folder):
    job = start(("--array=1-3", "--ntasks", 2, "--nodes", 1), "--mode", "allreduce", "--epochs", 1)
    assert job.ended() == ("COMPLETED", 0, 0), log(folder)
    found = summaries(folder)
    assert sorted(found) == [f"{job.id}-{task}" for task in (1, 2, 3)]
    assert [found[name]["seed"] for name in sorted(found)] == [1, 2, 3]
