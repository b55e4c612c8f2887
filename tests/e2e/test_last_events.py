"""What led to the end of a job that was not recorded: an error, a signal, a stall."""

import gzip
import json
import re
import signal
import time

import numpy as np
import pytest

from psrt.history import Kind
from support.launching import TIMEOUT_S

JOB = """
import sys
import numpy as np
import psrt
from psrt.mpi.start import world


class Problem:
    calls = 0

    def initial(self):
        return np.zeros(64, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.ones(2)] * 1000

    def loss_and_grad(self, theta, batch, out):
        self.calls += 1
        out[:] = 0.001
        if world().rank == 2 and self.calls == 30:
            exec(sys.argv[1])
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


times = {"timeout_s": 2.0, "busy_timeout_s": 2.0}
psrt.run(psrt.TrainConfig(mode=sys.argv[2], epochs=100, **times), Problem())
"""
RANKS = 3
FILES = [f"rank-{rank:05d}.npy" for rank in range(RANKS)]


def said(stderr):
    """Return the folder that stderr names, once."""
    (folder,) = re.findall(r"^psrt: what led to the end of the job: psrt trace (.*)$", stderr, re.M)
    return folder


def traced(launch, folder):
    """Return the events by rank, and when the trace of them begins and ends, in seconds."""
    done = launch.psrt("trace", folder, "-o", "it.json.gz", "--format", "json", "--quiet")
    assert done.status == 0, done.stderr
    assert "the end of a run: the last events of each rank\n" in done.stdout
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
        ("import time\nwhile True: time.sleep(1)", "allreduce", 4),
    ],
)
def test_every_rank_has_written_what_it_did_before(launch, what, mode, status):
    (launch.folder / "job.py").write_text(JOB)
    done = launch.ranks(RANKS, "job.py", what, mode)
    assert done.status == status, done.stderr
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


def test_so_has_who_is_through_and_waits_for_the_others(launch):
    raises = "import time; time.sleep(1); raise ZeroDivisionError('mine')"
    late = JOB.replace('return {"loss": 0.0}', raises).replace("epochs=100", "epochs=1")
    (launch.folder / "job.py").write_text(late.replace("* 1000", "* 5"))
    done = launch.ranks(RANKS, "job.py", "", "async")
    assert done.status == 1, done.stderr
    events = traced(launch, said(done.stderr))
    assert list(events) == FILES
    own = events[FILES[2]]
    assert own["clock"][own["kind"] == Kind.PUSH].tolist() == list(range(5))


@pytest.mark.parametrize(("ranks", "number"), [(1, signal.SIGINT), (3, signal.SIGTERM)])
def test_a_signal(launch, ranks, number):
    flags = ["--epochs", "100000", "--hidden", "8", "--out", "run", "--last-events", "500"]
    mode = "serial" if ranks == 1 else "sync"
    process = launch.start(
        "-m", "psrt", "train", "--mode", mode, *flags, ranks=ranks if ranks > 1 else 0
    )
    metrics = launch.folder / "run/metrics.jsonl"
    try:
        deadline = time.monotonic() + 300
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 30:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
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
