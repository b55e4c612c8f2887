"""A rank that is killed, stopped or fails, whatever it and the others do: named once, and soon."""

import pytest

from support.cases import also
from support.launching import ROOT

EXHAUSTIVE = pytest.mark.exhaustive
#: A job in which something happens to one rank.
JOB = ROOT / "apps" / "studies" / "faulty_job.py"


@pytest.fixture
def job(launch):
    def run(phase, rank, how, mode):
        words = ("--phase", phase, "--rank", rank, "--how", how, "--mode", mode)
        return launch.ranks(3, JOB, *words, "--timeout-s", 5, "--out", "run")

    return run


@pytest.mark.parametrize(
    ("phase", "rank", "mode"),
    [
        also("initial", 0, "sync"),
        ("gradient", 1, "sync"),
        also("gradient", 0, "allreduce"),
        also("gradient", 0, "gossip"),
        also("evaluate", 1, "sync"),
    ],
)
def test_a_stopped_rank_is_named(job, phase, rank, mode):
    done = job(phase, rank, "SIGSTOP", mode)
    # MPICH's mpirun has the status of rank 0, which it has to kill where that is the one.
    assert done.status in ((4,) if rank else (4, 9)), done.stderr
    (line,) = done.errors
    assert "within 5 s" in line
    assert f"rank {rank}" in line, line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("mode", "phase", "rank"),
    [
        also("sync", "initial", 0),
        ("allreduce", "gradient", 2),
        *(also(it, "gradient", 2) for it in ("async", "local-sgd", "gossip")),
    ],
)
def test_a_killed_rank_is_named_once(job, mode, phase, rank):
    killed(job(phase, rank, "SIGKILL", mode), f"rank {rank}")


def killed(done, who):
    assert done.status not in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    if done.status == 9 and not done.errors:
        return  # MPICH's mpirun kills all ranks within 2 ms of a death, perhaps before they speak
    (line,) = done.errors
    assert who in line
    assert "died" in line or "was killed by signal 9 (SIGKILL)" in line


START = """
import os, signal, sys
number = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
stops = sys.argv[1]
if stops == "before" and number == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
import psrt
from psrt.mpi.start import world
comm = world()
if number == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@EXHAUSTIVE
@pytest.mark.parametrize("stops", ["before", "after"])
def test_mpi_itself_has_a_deadline(launch, stops):
    (launch.folder / "job.py").write_text(START)
    done = launch.ranks(3, "job.py", stops, PSRT_START_TIMEOUT_S="4")
    assert done.status  # of which rank, the launchers do not agree
    assert "Timeout (0:00:04)!" in done.stderr
    assert "start.py" in done.stderr


#: A stage dies or falls silent amid a step: its copy cannot go on, in any mode.
CUT = """
import os, signal, sys
import psrt
from psrt.mpi.start import world
from psrt.runtime.cut_problem import CutProblem

rank, how = int(sys.argv[1]), getattr(signal, sys.argv[2])
exchange, messages = CutProblem._exchange, 0


async def falls(self, *words):
    global messages
    messages += 1
    if world().rank == rank and messages == 60:
        os.kill(os.getpid(), how)
    return await exchange(self, *words)


CutProblem._exchange = falls
knobs = dict(it.split("=") for it in sys.argv[3:])
knobs |= {name: int(knobs[name]) for name in ("servers", "staleness") if name in knobs}
psrt.run(psrt.TrainConfig(hidden=(12, 10, 8), micro_batches=4, epochs=20, timeout_s=4, **knobs))
"""


@pytest.fixture
def cut_job(launch):
    def run(ranks, rank, how, *knobs):
        (launch.folder / "job.py").write_text(CUT)
        return launch.ranks(ranks, "job.py", rank, how, *knobs)

    return run


@EXHAUSTIVE
@pytest.mark.parametrize(
    ("ranks", "rank", "who", "knobs"),
    [
        (4, 2, "worker 2, stage 0 of copy 1 (rank 2, ", "parallel=data:2,pipeline:2"),
        (4, 1, "worker 1, stage 0, slice 1 (rank 1, ", "parallel=pipeline:2,tensor:2"),
    ],
)
def test_a_killed_stage_is_named_once(cut_job, ranks, rank, who, knobs):
    killed(cut_job(ranks, rank, "SIGKILL", *knobs.split()), who)


@EXHAUSTIVE
@pytest.mark.parametrize(
    ("ranks", "rank", "who", "knobs"),
    [
        (3, 2, "worker 2, stage 2 (rank 2, ", "parallel=pipeline:3"),
        (4, 2, "worker 0, stage 0 (rank 2, ", "parallel=pipeline:2 mode=async servers=2"),
    ],
)
def test_a_stopped_stage_is_named(cut_job, ranks, rank, who, knobs):
    done = cut_job(ranks, rank, "SIGSTOP", *knobs.split())
    assert done.status == 4, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = done.errors
    assert "within 4 s" in line
    assert who in line
