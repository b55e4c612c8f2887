"""A worker of three hosts is lost, by its death or its silence, and the others go on without it."""

import json
import signal
from collections import Counter
from typing import NamedTuple

import pytest

from psrt.history import Kind, read_history
from psrt.history.check.run import check_run
from support.hosts import VENDORS

#: Sends itself, or the daemon of its host, a signal, if it is that worker.
SCRIPT = """
import json, os, pathlib, sys, time
import numpy as np
import psrt
from psrt.core.partition import Span
from psrt.runtime.strategies.push_pull import PushPull

case = json.loads(sys.argv[1])
begins = pathlib.Path(case["out"] + "-begins")
done = {"steps": 0, "pushes": 0}


class Problem:
    worker = -1

    def initial(self):
        return np.zeros(300_000, np.float32)  # several pieces

    def gradient_spans(self):
        return [Span(100_000, 300_000), Span(0, 100_000)]  # two layers

    def batches(self, worker, workers, epoch):
        Problem.worker = worker if epoch == 0 else self.worker
        return [np.ones(2)] * 40

    def loss_and_grad(self, theta, batch, out, ready):
        if not done["steps"]:  # else one may be done before another has begun
            (begins / str(self.worker)).touch()
            while len([*begins.iterdir()]) < case["workers"]:
                time.sleep(0.001)
        count("steps")
        out[:] = 0.001
        if ready is not None:
            ready(0)
            ready(1)
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


def count(what):
    done[what] += 1
    if Problem.worker == case["who"] and [what, done[what]] == case["after"]:
        os.kill(os.getppid() if case["daemon"] else os.getpid(), case["signal"])


def push(*given, push=PushPull._push):
    push(*given)
    count("pushes")


PushPull._push = push
names = ("mode", "servers", "shards_per_server", "timeout_s", "survive", "out")
knobs = {it: case[it] for it in names}
epochs = 5000 if case["daemon"] else 3  # longer than Open MPI takes to end a job
psrt.run(psrt.TrainConfig(epochs=epochs, lr=0.1, record=not case["daemon"], **knobs), Problem())
"""
#: Of each worker.
SAMPLES = 3 * 40 * 2
#: Ranks of each host: servers come first.
FIVE, SEVEN = (2, 2, 1), (3, 2, 2)


class Case(NamedTuple):
    """Who is lost, and when."""

    mode: str
    ranks: tuple[int, ...]
    who: int
    #: What it has done by then: so many ``steps``, or ``pushes`` to a shard, the last on its way.
    after: tuple[str, int]
    servers: int = 1
    shards_per_server: int | None = 2

    @property
    def workers(self):
        return sum(self.ranks) - self.servers


LEARNERS = "local-sgd:local-steps=4,quorum="
#: A quorum is there without the one that is lost.
WITH_QUORUMS = [
    Case(f"{LEARNERS}2,grace=0.02", SEVEN, 4, ("pushes", 19), 2),
    Case(f"{LEARNERS}2", FIVE, 1, ("steps", 30)),
    Case(f"{LEARNERS}2", SEVEN, 4, ("pushes", 11), 2, 1),  # one of two is on its way
    Case(f"{LEARNERS}3,grace=0.005,merge=median", SEVEN, 5, ("steps", 18)),
    Case(f"{LEARNERS}2,fragments=2", SEVEN, 0, ("pushes", 9), 2, None),
    Case(f"{LEARNERS}2,fragments=2,grace=0.01", FIVE, 3, ("steps", 50), 1, None),
    Case(f"{LEARNERS}1,dynamic=true", FIVE, 2, ("pushes", 2)),
]
#: Not under --survive.
DELAYED = Case(
    f"{LEARNERS}2,fragments=2,sync-delay=2,grace=auto", SEVEN, 2, ("pushes", 10), 2, None
)


@pytest.fixture
def lose(hosts, tmp_path):
    """Return what trains on three hosts, sends a signal, and gives the run's folder and its end."""

    def run(vendor, case, signal, *, daemon=False, survive=None, timeout_s=20):
        out = hosts.folder / f"lost-{tmp_path.name}"
        (hosts.folder / f"{out.name}-begins").mkdir()
        (hosts.folder / "loses.py").write_text(SCRIPT)
        lines = (f"{name}:{n}\n" for name, n in zip(hosts.names, case.ranks, strict=True))
        (hosts.folder / "its hosts").write_text("".join(lines))
        knobs = {
            **case._asdict(), "workers": case.workers, "signal": signal, "daemon": daemon,
            "survive": survive, "timeout_s": timeout_s, "out": str(out),
        }  # fmt: skip
        psrt = VENDORS[vendor] / "bin" / "psrt"
        flags = ["--hostfile", "its hosts", *["--flags=--with-ft ulfm"] * bool(survive)]
        words = (psrt, "launch", *flags, "loses.py", json.dumps(knobs))
        return out, hosts.run(hosts.names[0], *words, OMPI_MCA_mpi_yield_when_idle="1")

    return run


def costs_its_own_work_only(out, case):
    """Check what is written of a run that has lost a worker; return the fewest merges meanwhile."""
    outcome = check_run(out)
    assert outcome.ok, outcome.lines()
    summary = json.loads((out / "summary.json").read_text())
    assert [it["worker"] for it in summary["missing"]] == [case.who]
    assert SAMPLES * (case.workers - 1) <= summary["samples"] < SAMPLES * case.workers
    shards = read_history(out).shards
    for events in shards:
        applied = Counter()
        for it in events[events["kind"] == Kind.APPLY]:
            applied[int(it["worker"])] += int(it["samples"])
        assert applied.pop(case.who, 0) < SAMPLES
        assert applied == {it: SAMPLES for it in range(case.workers) if it != case.who}
    last = max(times_of(it, Kind.RECEIVE, case.who).max(initial=0.0) for it in shards)
    meanwhile = []
    for events in shards:
        merged, (given_up,) = {*times_of(events, Kind.APPLY)}, times_of(events, Kind.LEFT, case.who)
        meanwhile.append(sum(last < it < given_up for it in merged))
    return min(meanwhile)


def times_of(events, kind, worker=None):
    """Return when a shard has done something of a kind, with all workers or with one."""
    chosen = events["kind"] == kind
    return events["time"][chosen if worker is None else chosen & (events["worker"] == worker)]


@pytest.fixture
def _has_ulfm():
    if not (VENDORS["openmpi"] / "bin" / "mpirun").exists():
        pytest.skip("no Open MPI")


OTHERS = [
    Case("sync", FIVE, 3, ("steps", 30)),
    Case("async", FIVE, 3, ("steps", 30)),
    Case("local-sgd", FIVE, 3, ("pushes", 5)),
]


@pytest.mark.one_in(1000)
@pytest.mark.usefixtures("_has_ulfm")
@pytest.mark.parametrize("case", [*WITH_QUORUMS, *OTHERS], ids=str)
def test_a_worker_dies(lose, case):
    out, done = lose("openmpi", case, signal.SIGKILL, survive=True)
    assert done.status == 0, done.stderr
    (line,) = (it for it in done.stderr.splitlines() if it.endswith("; the others continue"))
    assert f"worker {case.who} (rank {case.servers + case.who}, node0" in line
    costs_its_own_work_only(out, case)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("vendor", ["mpich", "openmpi"], indirect=True)
@pytest.mark.parametrize("case", [*WITH_QUORUMS, DELAYED], ids=str)
def test_a_learner_falls_silent(lose, vendor, case):
    """Merges that are due meanwhile do not wait until it is given up."""
    out, done = lose(vendor, case, signal.SIGSTOP, timeout_s=3)
    assert done.status == 4, done.stderr
    (line,) = done.errors
    assert f"the run continued without worker {case.who} (rank" in line
    assert costs_its_own_work_only(out, case) >= case.workers


@pytest.mark.usefixtures("_has_ulfm")
@pytest.mark.exhaustive
def test_a_host_whose_daemon_dies_takes_the_job_with_it(lose):
    """Open MPI ends it, with status 0; psrt launch says whose end that was."""
    case = Case("async", FIVE, 3, ("steps", 30))
    out, done = lose("openmpi", case, signal.SIGKILL, survive=True, daemon=True)
    assert done.status in (4, 5), done.stderr
    assert "psrt: error: " in done.stderr
    assert not (out / "summary.json").exists()
