"""The history of learners of several ranks, as those of runs whose rules are known.

What the ranks of a learner do among themselves is a run by all-reduce. What their first ranks do
with servers is a run of one worker per learner, which has taken the steps that the learner took.
Each is checked as such; both together have every event.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from psrt.config.modes import MODES
from psrt.history.check.findings import SUMS, Findings
from psrt.history.check.table import Bools, Table
from psrt.history.check.wellformed import check_times
from psrt.history.events import PRESENT, Kind
from psrt.history.header import Header
from psrt.history.log import Events
from psrt.history.reading import History

#: What a learner's ranks record of their steps; everything else is with servers.
_AMONG = (Kind.STEP, Kind.REDUCE, Kind.REDUCED)
#: A run by all-reduce has nothing else, so a rank that talks to no server is refused all else.
_BY_SUMS = dataclasses.replace(  # type: ignore[call-arg]
    MODES[next(iter(MODES.where(lambda it: it.sums_gradients)))], overlap=False
)


def size_of(header: Header) -> int:
    """Return R: the number of ranks of a learner."""
    return int(header.mode.learner_ranks)


def check_order(table: Table, findings: Findings) -> None:
    """Check that a rank does nothing else in a step, from its gradient to the end of the sum.

    Args:
        table: all events of all workers, worker after worker.
        findings: takes what is wrong.
    """
    check_times(table, "worker", findings)
    for kind, then in ((Kind.STEP, Kind.REDUCE), (Kind.REDUCE, Kind.REDUCED)):
        at = table.where(kind)
        following = np.minimum(at + 1, len(table) - 1)
        holds = table["kind"][following] == then
        # One that died has ended there.
        ends = (at + 1 == len(table)) | (table["worker"][following] != table["worker"][at])
        text = f"worker {{worker}} does something else between {kind.name} and {then.name}"
        findings.on(table, at).require(SUMS, holds | ends, text, because=[following])


def among(history: History, learner: int) -> History:
    """Return what the ranks of one learner did among themselves, as a run by all-reduce."""
    header, ranks = history.header, size_of(history.header)
    workers = range(learner * ranks, (learner + 1) * ranks)
    without = dict.fromkeys(("codec", "codec_reply", "staleness_rate", "merge"))
    header = dataclasses.replace(
        header,
        config=header.config | without | {"mode": str(_BY_SUMS), "servers": 0},
        workers=tuple(header.workers[it] for it in workers),
        servers=(),
        spans=(),
        batches=None,
        deal=(),
        crashes=(),
        stopped=header.stopped[workers.start : workers.stop],
        left_out=(),
    )
    found = (_among(history.workers[it], it - workers.start) for it in workers)
    return History(header, tuple(found), (), history.finals[:0])


def _among(events: Events, place: int) -> Events:
    """Return a rank's events among those of its learner; it leaves when it trains no more."""
    is_first = place == 0
    kept = np.isin(events["kind"], _AMONG) if is_first else events["kind"] != Kind.LEAVE
    own, leaves = events[kept].copy(), events[events["kind"] == Kind.LEAVE].copy()
    own["worker"] = leaves["worker"] = place
    absent = (own["kind"] == Kind.REDUCE) & (own["flag"] & PRESENT == 0)
    at = int(absent.argmax()) if absent.any() else len(own)
    leaves["clock"] = np.count_nonzero(own["kind"] == Kind.STEP)
    leaves["time"] = own["time"][at] if at < len(own) else leaves["time"]
    return np.concatenate([own[:at], leaves, own[at:]])


def served(history: History) -> History:
    """Return what the first rank of each learner did with servers, as a run without the others.

    A sum over the ranks of a learner is a step of it.
    """
    header, ranks = history.header, size_of(history.header)
    mode = dataclasses.replace(MODES.accept(header.mode), learner_ranks=1)  # type: ignore[call-arg]
    header = dataclasses.replace(
        header,
        config=header.config | {"mode": str(mode)},
        workers=header.workers[::ranks],
        batches=None,
        deal=(),
        crashes=tuple(sorted({it // ranks for it in header.crashes})),
        stopped=header.stopped[::ranks],
        left_out=(),
    )
    full = header.knob("batch_size", 1)
    workers = [_led(it, full) for it in history.workers[::ranks]]
    for i, own in enumerate(workers):
        own["worker"] = i
    shards = tuple(_by_learner(it, ranks) for it in history.shards)
    return History(header, tuple(workers), shards, history.finals)


def _led(events: Events, full: int) -> Events:
    """Return the events of a learner's first rank, with the steps of all its ranks."""
    found = events[~np.isin(events["kind"], (Kind.STEP, Kind.REDUCE))].copy()
    ended = np.flatnonzero(found["kind"] == Kind.REDUCED)
    training = ended[found["flag"][ended] & PRESENT > 0]
    steps = found[training]
    steps["kind"], steps["shard"], steps["version"] = Kind.STEP, -1, -1
    steps["clock"] = np.arange(len(steps))
    steps["samples"] = np.rint(steps["weight"] * full)
    own = events[events["kind"] == Kind.REDUCE][: len(steps)]
    # It stays where it is once it has no step left.
    steps["progress"] = np.maximum.accumulate(own["progress"]) if len(steps) else 0.0
    steps["weight"], steps["flag"] = 0.0, 0
    found[training] = steps
    return np.delete(found, np.setdiff1d(ended, training))


def _by_learner(events: Events, ranks: int) -> Events:
    """Return a shard's events with the numbers of learners for those of their first ranks."""
    found = events.copy()
    known: Bools = found["worker"] >= 0
    # A rank that is not the first of its learner is nobody that a server knows.
    strange = known & (found["worker"] % ranks != 0)
    found["worker"] = np.where(known, found["worker"] // ranks, found["worker"])
    found["worker"][strange] = np.iinfo(found["worker"].dtype).max
    return found
