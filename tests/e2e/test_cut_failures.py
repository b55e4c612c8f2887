"""A stage that dies or falls silent amid a step: its copy cannot go on, in any mode; named once."""

import pytest

JOB = """
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
def job(launch):
    def run(ranks, rank, how, *knobs):
        (launch.folder / "job.py").write_text(JOB)
        done = launch.ranks(ranks, "job.py", rank, how, *knobs)
        assert "Traceback" not in done.stderr
        (line,) = done.errors
        return done.status, line

    return run


def also(*case):
    """Mark a case that shows what others show, elsewhere."""
    return pytest.param(*case, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(
    ("ranks", "rank", "who", "knobs"),
    [
        (3, 1, "worker 1, stage 1 (rank 1, ", "parallel=pipeline:3"),
        also(4, 2, "worker 2, stage 0 of copy 1 (rank 2, ", "parallel=data:2,pipeline:2"),
        also(4, 3, "worker 1, stage 1 (rank 3, ", "parallel=pipeline:2 mode=async servers=2"),
        also(4, 1, "worker 1, stage 0, slice 1 (rank 1, ", "parallel=pipeline:2,tensor:2"),
    ],
)
def test_a_killed_stage_is_named_once(job, ranks, rank, who, knobs):
    status, line = job(ranks, rank, "SIGKILL", *knobs.split())
    assert status not in (0, 1)
    assert who in line
    assert "died" in line or "was killed by signal 9 (SIGKILL)" in line


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ranks", "rank", "who", "knobs"),
    [
        (3, 2, "worker 2, stage 2 (rank 2, ", "parallel=pipeline:3"),
        (
            4,
            0,
            "worker 0, stage 0 of copy 0 (rank 0, ",
            "parallel=pipeline:2 mode=local-sgd",
        ),
        (4, 2, "worker 0, stage 0 (rank 2, ", "parallel=pipeline:2 mode=async servers=2"),
        (4, 3, "worker 1, stage 1 (rank 3, ", "parallel=pipeline:2 mode=ssp staleness=1 servers=2"),
    ],
)
def test_a_stopped_stage_is_named(job, ranks, rank, who, knobs):
    status, line = job(ranks, rank, "SIGSTOP", *knobs.split())
    assert status == 4, line
    assert "within 4 s" in line
    assert who in line
