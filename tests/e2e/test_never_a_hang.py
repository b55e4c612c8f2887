"""A rank that is killed or stopped, whatever it and the others are doing: named once, and soon."""

import signal

import pytest

from support.launching import ROOT

#: A job in which something happens to one rank.
JOB = ROOT / "apps" / "studies" / "faulty_job.py"


@pytest.fixture
def job(launch):
    def run(phase, rank, how, mode):
        words = ("--phase", phase, "--rank", rank, "--how", how, "--mode", mode)
        return launch.ranks(3, JOB, *words, "--timeout-s", 5, "--out", "run")

    return run


def also(*case):
    """Mark a case that shows what others show, elsewhere."""
    return pytest.param(*case, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(
    ("phase", "rank", "mode"),
    [
        also("start", 2, "sync"),
        ("initial", 0, "sync"),
        also("batches", 2, "allreduce"),
        also("gradient", 1, "sync"),
        also("gradient", 2, "allreduce"),
        also("gradient", 0, "allreduce"),
        also("gradient", 1, "local-sgd"),
        also("gradient", 0, "gossip"),
        also("evaluate", 1, "sync"),
    ],
)
def test_a_stopped_rank_is_named(job, phase, rank, mode):
    done = job(phase, rank, "SIGSTOP", mode)
    assert done.status == 4, done.stderr
    (line,) = done.errors
    assert "within 5 s" in line
    assert f"rank {rank}" in line, line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("mode", "phase", "rank"),
    [
        ("sync", "initial", 0),
        ("allreduce", "gradient", 2),
        *(also(mode, "initial", 0) for mode in ("async", "allreduce", "local-sgd", "gossip")),
        *(also(mode, "gradient", 2) for mode in ("sync", "async", "local-sgd", "gossip")),
    ],
)
def test_a_killed_rank_is_named_once(job, mode, phase, rank):
    done = job(phase, rank, "SIGKILL", mode)
    assert done.status not in (0, 1), done.stderr
    (line,) = done.errors
    assert f"rank {rank}" in line
    assert "died" in line or "was killed by signal 9 (SIGKILL)" in line
    assert "Traceback" not in done.stderr


START = """
import os, signal, sys
number = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
stops = sys.argv[1]
if stops == "before" and number == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
import psrt
from psrt.mpi.start import world
comm = world()
if stops == "makes" and number == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
if stops == "makes":
    from psrt.mpi import deadline
    deadline._LEAST_S = 0.0
    psrt.Communicator(timeout_s=3)
if number == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("stops", ["before", "after"])
def test_mpi_itself_has_a_deadline(launch, stops):
    (launch.folder / "job.py").write_text(START)
    done = launch.ranks(3, "job.py", stops, PSRT_START_TIMEOUT_S="4")
    assert done.status  # of which rank, the launchers do not agree
    assert "Timeout (0:00:04)!" in done.stderr
    assert "start.py" in done.stderr


@pytest.mark.exhaustive
def test_a_communicator_is_not_waited_for_for_ever(launch):
    (launch.folder / "job.py").write_text(START)
    done = launch.ranks(3, "job.py", "makes", PSRT_START_TIMEOUT_S="4")
    # Of Open MPI 5.0.11, prterun itself was once seen to die of a segmentation fault as it ended
    # the rank that is stopped.
    assert done.status in (4, -signal.SIGSEGV)
    assert "no answer within 3 s" in done.stderr
    assert "the other ranks to make a communicator" in done.stderr
