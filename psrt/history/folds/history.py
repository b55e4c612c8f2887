"""Has the folds that count in a run take the events of a recorded one. Pure.

What a run counts is in its summary, so ``fold(history)`` equals what the summary says, whatever the
job: a law of every job, and what ``psrt check`` asks of every run.
"""

from __future__ import annotations

import numpy as np

from psrt.history.events import BACKWARD, BACKWARD_WEIGHT, LOST, MISSED, PARKED, Kind
from psrt.history.folds.shard import ShardFold
from psrt.history.folds.worker import WorkerFold
from psrt.history.header import Header
from psrt.history.log import Events
from psrt.history.reading import History
from psrt.stats import Stats

#: What ends a backward pass.
_ENDS = (BACKWARD, BACKWARD_WEIGHT)


def fold(history: History, *, by_stages: bool = False) -> list[Stats]:
    """Return what every worker and every shard has counted, by its events.

    That is staleness, gaps, skew, drops, and what shards have of those who were missed.

    Args:
        history: of a run, or of a cell of a model that is cut.
        by_stages: whether the stages of a pipeline count how stale gradients are.
    """
    header, workers = history.header, len(history.workers)
    found = [
        _of_worker(header, number, events, by_stages)
        for number, events in enumerate(history.workers)
    ]
    return found + [_of_shard(number, it, workers) for number, it in enumerate(history.shards)]


def _of_worker(header: Header, number: int, events: Events, by_stages: bool) -> Stats:
    counts, kind = WorkerFold(), events["kind"]
    counts.stats.worker = number
    takes, shards = events[kind == Kind.TAKE], len(header.servers)
    if header.knob("asynchronous") and not shards:
        counts.count_ages(number)
        gaps = events["gap"][kind == Kind.MIXED].astype(np.float64)
        for tau, gap in zip(takes["tau"].tolist(), gaps.tolist(), strict=False):
            counts.averaged(tau, gap)
    if by_stages:
        counts.count_ages(number)
        ends = events[(kind == Kind.PASS) & np.isin(events["flag"], _ENDS)]
        for tau in (ends["clock"] - ends["version"]).tolist():
            counts.aged(tau)
    if shards:
        reads = events[(kind == Kind.READ) & (events["flag"] != PARKED)]
        versions = reads["version"][: len(reads) // shards * shards].reshape(-1, shards)
        # What is read first answers no push.
        for skew in (versions.max(axis=1) - versions.min(axis=1))[1:].tolist():
            counts.read(skew)
    return counts.stats


def _of_shard(number: int, events: Events, workers: int) -> Stats:
    counts, kind = ShardFold(workers), events["kind"]
    counts.stats.shard = number
    pushes = events[(kind == Kind.APPLY) & (events["worker"] >= 0)]
    for worker, tau in zip(pushes["worker"].tolist(), pushes["tau"].tolist(), strict=True):
        counts.applied(worker, tau)
    gaps = pushes["gap"].astype(np.float64)
    for gap in gaps[~np.isnan(gaps)].tolist():
        counts.moved(gap)
    for _ in range(int(np.count_nonzero(kind == Kind.DROP))):
        counts.dropped()
    for event in events[(kind == Kind.LEFT) & (events["flag"] == MISSED)]:
        _note_missed(counts, int(event["worker"]), events)
    return counts.stats


def _note_missed(counts: ShardFold, worker: int, events: Events) -> None:
    """Count how far a worker that was missed has come; what was lost with it has not come."""
    mine = events[events["worker"] == worker]
    came = mine[(mine["kind"] == Kind.RECEIVE) & (mine["samples"] > 0)]
    lost = mine[(mine["kind"] == Kind.DROP) & (mine["flag"] == LOST)]
    steps = int(came["clock"].max(initial=-1)) + 1
    counts.reached(worker, int(lost["clock"].min(initial=steps)))
