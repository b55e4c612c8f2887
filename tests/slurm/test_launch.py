"""``psrt launch`` in a batch job: it takes srun, the tasks of the job and what Slurm speaks."""

import json

import pytest

from support.launching import ROOT
from support.slurm import wait_until

#: A job in which something happens to one rank.
FAULTY = ROOT / "apps" / "studies" / "faulty_job.py"
RANKS = ("--nodes", 3, "--ntasks", 5)
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


@pytest.fixture
def submit(slurm, mpi, folder):
    """Submits a batch job that runs psrt launch with the given words; gives it and its log."""
    (folder / "job.sh").write_text(SCRIPT)
    psrt = mpi.python.parent / "psrt"

    def submitted(*words):
        job = slurm.submit(
            *RANKS, "--output", "log", folder / "job.sh", psrt, "launch", *words, cwd=folder
        )
        return job, lambda: (folder / "log").read_text(errors="replace")

    return submitted


def test_the_tasks_of_the_job_train(submit, mpi, folder):
    job, log = submit("train", "--mode", "sync", "--epochs", 1, "--out", "run")
    assert job.ended() == ("COMPLETED", 0, 0), log()
    assert f"srun --mpi={mpi.pmi} --kill-on-bad-exit=1" in log()
    summary = json.loads((folder / "run/summary.json").read_text())
    assert (summary["ranks"], summary["hosts"]) == (5, 3)


def test_a_wrong_flag_is_status_2(submit):
    job, log = submit("train", "--mode", "nonsense")
    assert job.ended() == ("FAILED", 2, 0), log()


def test_a_rank_that_dies_is_named_and_is_status_5(submit):
    job, log = submit(FAULTY, "--phase", "gradient", "--rank", 4)
    assert job.ended() == ("FAILED", 5, 0), log()
    (line,) = (line for line in log().splitlines() if "psrt: error" in line)
    assert "worker 3 (rank 4, " in line


def test_the_doctor_sees_three_hosts(submit):
    job, log = submit("doctor")
    assert job.ended() == ("COMPLETED", 0, 0), log()
    assert "launcher  srun of Slurm, PMI" in log()
    assert "5 ranks on 3 hosts; psrt train takes them as sync, 1 server, 4 workers" in log()
    assert "fails  " not in log()


def test_mpirun_takes_as_many_tasks(submit, folder):
    (folder / "who.py").write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.size)\n")
    job, log = submit("--launcher", "mpirun", "who.py")
    assert job.ended() == ("COMPLETED", 0, 0), log()
    assert log().count("5") >= 5


def test_usr1_reaches_every_rank(submit, folder):
    (folder / "usr1.py").write_text(USR1)
    job, log = submit("usr1.py")
    wait_until(lambda: len(list(folder.glob("waits.*"))) == 5)
    job.cancel("--batch", "--signal=USR1")
    assert job.ended() == ("COMPLETED", 0, 0), log()
