"""Law: what makes no difference makes none: to the bit, or to rounding where sums are reordered.

Promised in docs/modes.md and docs/parallelism.md. Each row turns a job into one that must come to
the same parameters. Seen red: an order of summation that is that of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import pytest

from psrt.history import Kind, read_history
from psrt.history.check.run import check_run
from psrt.simulation.cost_flags import VirtualCosts
from support.jobs import (
    FACTORS,
    JOBS,
    LEARNERS,
    MIXED,
    SHARDS,
    SPLIT,
    STALE,
    SUMMED,
    Job,
    plain,
    plainest,
    ran,
)
from support.ticks import saves

#: Jobs of a row that `make test` tries.
FEW = 9


@dataclass(frozen=True)
class Same:
    """Two jobs that come to the same."""

    name: str
    #: Whether it is about a job.
    holds: Callable[[Job], bool]
    #: The other job.
    other: Callable[[Job], Job]
    #: The one, where it is not that job itself.
    one: Callable[[Job], Job] = lambda job: job
    #: Whether bits are promised; else numbers but for rounding.
    bits: bool = True


def has(job: Job, **knobs: object) -> Job:
    """Return a job with knobs on top."""
    return replace(job, more=(*job.more, *knobs.items()))


def numbers(job: Job) -> bool:
    """Return whether a job is told apart by numbers only, not by who came first."""
    return job.in_order and job.undisturbed


def exact(job: Job) -> bool:
    """Return whether vectors are sent as they are."""
    return job.codec == "none"


def plain_steps(job: Job) -> bool:
    return job["optimizer"] == "sgd" and job["trim"] == "none"


def of_levels(job: Job) -> bool:
    """Return whether its levels say all of it."""
    return not job.more


def bare(job: Job) -> Job:
    """Return the job without its codec, and with nothing that befalls it."""
    return job.but(codec="none", event="none")


def learns(job: Job, knobs: str) -> Job:
    """Return the job of learners with these knobs of their mode."""
    return has(bare(job), mode=f"local-sgd:{knobs}")


def is_free(job: Job) -> bool:
    """Return whether it is of learners, and nothing but their speeds decides who is merged when."""
    return job["mode"] == "learners" and job.copies > 2


def no_stage(job: Job) -> Job:
    """Return the job of copies of the whole with the same micro-batches."""
    return has(job.but(cut="whole"), parallel=f"data:{job.copies}", micro_batches=2)


_QUORUM = "local-steps=3,quorum=2"
ROWS = (
    Same("who is late", numbers, lambda job: job.but(
        event="late" if job["event"] == "none" else "none")),
    Same("whether it is recorded", numbers, lambda job: has(job, record=False)),
    Same("how often it is logged", numbers, lambda job: has(job, log_every=1)),
    Same("whether it saves", lambda job: numbers(job) and saves(job),
         lambda job: job.but(event="saves")),
    Same("where gradients are", lambda job: numbers(job) and job["mode"] != "serial"
         and job["mode"] not in MIXED and job["way"] != "node" and job["cut"] != "parameters",
         lambda job: has(job, shared_memory=False)),
    Same("how many shards", lambda job: numbers(job) and exact(job) and job.served
         and job["cut"] not in SPLIT,
         lambda job: job.but(way="2 servers" if "shards" in job["way"]
                             else "2 servers, 2 shards each")),
    Same("servers or a sum", lambda job: numbers(job) and exact(job) and job["mode"] == "sync"
         and job["cut"] not in SPLIT, lambda job: job.but(mode="allreduce", way="ring"),
         bits=False),
    Same("which sum", lambda job: numbers(job) and exact(job) and of_levels(job)
         and job["mode"] in SUMMED and not job.served and job["cut"] == "whole",
         lambda job: job.but(way="tree" if job["way"] != "tree" else "ring"), bits=False),
    # By a tree the order of a sum is that of ranks, wherever in the vector a number is.
    Same("how the gradient is split", lambda job: numbers(job) and exact(job) and of_levels(job)
         and job["mode"] == "allreduce" and job["cut"] == "whole" and job["trim"] != "clip",
         lambda job: has(job.but(way="tree"), bucket_bytes=100),
         lambda job: has(job.but(way="tree"), overlap=False)),
    Same("who keeps the optimizer's state", lambda job: numbers(job) and job["cut"] in SHARDS,
         lambda job: job.but(cut="whole"), bits=False),
    Same("stages", lambda job: numbers(job) and exact(job) and of_levels(job)
         and job["cut"] in ("gpipe", "interleaved", "zero-bubble") and job["mode"] != "streaming"
         and job["trim"] != "clip" and (job.copies < 3 or job.served or job["mode"] in MIXED),
         no_stage),
    Same("slices, and sums that are reordered", lambda job: numbers(job) and exact(job)
         and job["cut"] in ("tensor", "1f1b") and job["mode"] != "streaming", no_stage, bits=False),
    Same("by oneself", lambda job: numbers(job) and exact(job) and job.copies == 1
         and job["cut"] == "whole" and job["mode"] in (
             "allreduce", "sync", "async", "ssp", "gossip", "adapt first"),
         lambda job: job.but(mode="serial", way="nothing", rate="constant")),
    Same("no backups", lambda job: job.undisturbed and job["mode"] == "sync"
         and job["cut"] not in SPLIT, lambda job: has(job, backup=0)),
    Same("softsync of all is async", lambda job: job.undisturbed and job["mode"] == "softsync",
         lambda job: job.but(mode="async"), lambda job: has(job, k=job.copies)),
    Same("an average of each step", lambda job: numbers(job) and exact(job) and plain_steps(job)
         and job["mode"] == "local" and job["cut"] not in SPLIT,
         lambda job: job.but(mode="sync" if job.served else "allreduce"),
         lambda job: has(job, local_steps=1), bits=False),
    Same("a quorum of all", lambda job: of_levels(job) and job["mode"] == "local"
         and job["cut"] == "whole" and job.copies > 1,
         lambda job: learns(job.but(way="2 servers"), f"local-steps=3,quorum={job.copies}"),
         lambda job: bare(job).but(way="2 servers")),
    Same("merges of one local step are async", lambda job: of_levels(job) and plain_steps(job)
         and job["mode"] == "async" and job.copies > 1 and job["cut"] == "whole"
         and job["rate"] == "constant",
         lambda job: learns(job, "local-steps=1,quorum=1,outer=plain,outer.lr=1"), bare,
         bits=False),
    Same("all ranks in one learner", lambda job: numbers(job) and exact(job) and of_levels(job)
         and job["mode"] == "allreduce" and job["cut"] == "whole" and job.copies > 1,
         lambda job: has(job, mode=f"local-sgd:local-steps=3,learner-ranks={job.copies}",
                         servers=1), lambda job: has(job, overlap=False)),
    Same("how many shards have windows for all", is_free,
         lambda job: learns(job.but(way="2 servers, 2 shards each"), f"{_QUORUM},grace=9"),
         lambda job: learns(job.but(way="1 server"), f"{_QUORUM},grace=9")),
    Same("a merge of one has no rule", is_free,
         lambda job: learns(job, "local-steps=3,quorum=1,merge=radial"),
         lambda job: learns(job, "local-steps=3,quorum=1")),
    Same("nothing trimmed", lambda job: is_free(job) and job["rate"] == "constant",
         lambda job: learns(job, f"{_QUORUM},merge=trimmed,merge.trim=0"),
         lambda job: learns(job, f"{_QUORUM},merge-weights=equal")),
    Same("momentum of each merge", is_free,
         lambda job: learns(job, f"{_QUORUM},outer=delayed-nesterov,outer.period=1"),
         lambda job: learns(job, f"{_QUORUM},outer=nesterov")),
    Same("fragments of servers or sums", lambda job: job.copies > 1
         and of_levels(job) and job["mode"] == "streaming" and job["cut"] == "whole",
         lambda job: has(bare(job).but(way="nothing"), servers=2), bare, bits=False),
)  # fmt: skip


#: The jobs of the array, and the plainest of each mode by 1, 2 and 5 workers.
POOL = (
    *JOBS,
    *(
        job
        for mode in FACTORS["mode"]
        for copies in ("1", "2", "5")
        if (job := plainest({"mode": mode, "copies": copies})) is not None
    ),
)


def cases():
    """Return a row and a job each; all but a few of a row are exhaustive, of each mode in turn."""
    found = []
    for row in ROWS:
        of_mode = Counter()
        chosen = []
        for job in sorted(
            filter(row.holds, POOL), key=lambda job: (-job.copies, crc32(repr(job).encode()))
        ):
            chosen.append((of_mode[job["mode"]], job))
            of_mode[job["mode"]] += 1
        assert chosen, row.name
        for i, (_, job) in enumerate(sorted(chosen, key=lambda it: it[0])):
            marks = [pytest.mark.exhaustive] * (i >= FEW)
            found.append(pytest.param(row, job, marks=marks, id=f"{row.name}: {job}"))
    return found


@pytest.mark.parametrize(("row", "base"), cases())
def test_it_makes_no_difference(row, base, result, tmp_path):
    one, other = result(row.one(base)), ran(row.other(base), tmp_path / "other")
    assert row.one(base) != row.other(base)
    if row.bits:
        np.testing.assert_array_equal(one.run.theta, other.run.theta)
        assert one.run.summary.parameters_sha256 == other.run.summary.parameters_sha256
    else:
        np.testing.assert_allclose(one.run.theta, other.run.theta, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("mode", ["", ",grace=0.0005", ",sync-delay=2,grace=auto"])
def test_learners_that_are_as_fast_take_as_many_steps(mode, tmp_path):
    job = plain(mode="learners", copies="5", way="2 servers")
    scenario = job.scenario(costs=VirtualCosts(compute="constant:0.001"))
    fixed, dynamic = (
        ran(learns(job, f"{_QUORUM}{mode}{it}"), tmp_path / (it or "fixed"), scenario)
        for it in ("", ",dynamic=true")
    )
    assert fixed.run.theta.tobytes() == dynamic.run.theta.tobytes()


def test_learners_that_are_slower_take_fewer_steps(tmp_path):
    """All push as often; with fixed steps the fastest does so more often than the slowest."""
    job = plain(mode="learners", copies="3", way="1 server")
    slow = {"epochs": 12, "inject": ("0:slow:3",)}
    pushes = []
    for it in ("", ",dynamic=true"):
        found = ran(learns(job, f"local-steps=6,quorum=1{it}"), tmp_path / (it or "fixed"), **slow)
        (shard,) = read_history(found.out).shards
        first = shard[: len(shard) // 2]
        counts = Counter(first["worker"][first["kind"] == Kind.RECEIVE].tolist())
        pushes.append(counts[0] / counts[1])
    assert pushes[0] < 0.6
    assert 0.7 < pushes[1] < 1.3


def test_a_learner_that_is_to_take_fewer_steps_than_it_has_pushes_at_once(tmp_path):
    """With a delay of T = 4 steps it is then that it reads of its H = 3."""
    job = learns(
        plain(mode="learners", copies="3", way="1 server"),
        "local-steps=6,quorum=1,dynamic=true,sync-delay=4",
    )
    costs = VirtualCosts(compute="constant:0.001")
    found = ran(job, tmp_path, job.scenario(costs=costs), epochs=8, inject=("0:slow:1.9",))
    events = read_history(found.out).workers[0]
    steps = np.cumsum(events["kind"] == Kind.STEP)[events["kind"] == Kind.PUSH]
    assert np.diff(steps, prepend=0)[:4].tolist() == [6, 4, 3, 3]
    outcome = check_run(found.out)
    assert outcome.ok, "\n".join(outcome.lines())


#: So far apart that it does not matter for their order how long messages and updates take.
APART = ("1:slow:1.23", "2:slow:1.61", "3:slow:2.17", "4:slow:2.9")


def apart(job, mode, folder, **more):
    """Run a job whose workers come in the same order whatever else it is made of."""
    scenario = job.scenario(costs=VirtualCosts(compute="constant:0.01", link="1e-6:1e12"))
    found = ran(has(job, **{"mode": mode, "inject": APART} | more), folder, scenario).run
    assert found.summary.staleness.max > 0
    return found


@pytest.mark.parametrize("knobs", [
    "quorum=1", "quorum=2", "quorum=3,grace=0.007", "quorum=2,grace=0.004,merge=median",
])  # fmt: skip
def test_merges_of_some_are_the_same_at_any_number_of_shards(knobs, tmp_path):
    mode = f"local-sgd:local-steps=3,outer=nesterov,{knobs}"
    one, *others = (
        apart(plain(mode="learners", copies="5", way=way), mode, tmp_path / way)
        for way in ("1 server", "2 servers", "2 servers, 2 shards each")
    )
    for other in others:
        assert other.theta.tobytes() == one.theta.tobytes()


@pytest.mark.parametrize("rate", ["constant", "inverse", "drop:limit=3", "exponential"])
def test_merges_of_one_local_step_are_async_at_any_rate_of_staleness(rate, tmp_path):
    job, step = plain(mode="async", copies="5"), "local-steps=1,quorum=1,outer=plain"
    one, other = (
        apart(job, mode, tmp_path / mode[:5], staleness_rate=rate)
        for mode in ("async", f"local-sgd:{step}")
    )
    np.testing.assert_allclose(one.theta, other.theta, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("mode", [*STALE, "easgd, asynchronous", *LEARNERS])
def test_parameters_may_land_while_a_worker_computes(mode, tmp_path):
    """Between hosts they land when they arrive, in the memory of a host when they are received."""
    job = plain(mode=mode, copies="5", way="2 servers")
    one, other = (
        apart(job, FACTORS["mode"][mode]["mode"], tmp_path / name, shared_memory=name == "host")
        for name in ("host", "hosts")
    )
    assert one.theta.tobytes() == other.theta.tobytes()


@pytest.mark.parametrize("knobs", ["quorum=1", "quorum=3,grace=0.007", "quorum=2,merge=median"])
@pytest.mark.parametrize("codec", ["none", "top-k"])
def test_copies_of_two_parts_learn_as_whole_ones(codec, knobs, tmp_path):
    mode = f"local-sgd:local-steps=3,outer=nesterov,{knobs}"
    job = plain(mode="learners", copies="5", way="2 servers", codec=codec)
    whole = apart(job, mode, tmp_path / "whole")
    alone = apart(job, mode, tmp_path / "alone", parallel="pipeline:1", micro_batches=1)
    late = tuple(f"{2 * int(it[0])}{it[1:]}" for it in APART)  # for which the second part waits
    once = {"micro_batches": 1, "recompute": None}
    split = apart(job.but(cut="gpipe"), mode, tmp_path / "split", inject=late, **once)
    assert whole.theta.tobytes() == alone.theta.tobytes() == split.theta.tobytes()
