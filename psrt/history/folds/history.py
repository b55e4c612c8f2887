"""Feeds the folds of a run with the events of a recorded one. Pure.

A run's counts are in its summary, so the totals of its events must equal the summary, for every
job: tests check this law, and so does ``psrt check`` for every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from psrt.config.names import PAIRS
from psrt.core.stats import Stats
from psrt.history.events import BACKWARD, BACKWARD_WEIGHT, LOST, MISSED, PARKED, Kind
from psrt.history.folds.shard import ShardFold
from psrt.history.folds.worker import WorkerFold
from psrt.history.log import Events
from psrt.history.reading import History

#: The flags that end a backward pass.
_ENDS = (BACKWARD, BACKWARD_WEIGHT)
#: Kinds at which a worker counts something. At a PARK it counts nothing, but its report of that
#: clock comes after it.
_COUNTED = (Kind.STEP, Kind.REDUCED, Kind.MIXED, Kind.LEAVE, Kind.PARK)


#: What a worker counts at an event: samples of a step, −1 if none ends there; the skew of a read,
#: −1 if it is not one, and τ of the pushes that it answers; τ by the worker's own steps, of a
#: gradient or an average, −1 for others, and the distance of the two; seconds of waiting.
Row = tuple[int, int, Sequence[int], int, float, float]


@dataclass(frozen=True, slots=True)
class WorkerPieces:
    """All that a worker counts, in order: a row for each event at which it does."""

    #: Its number.
    worker: int
    #: Whether the worker itself counts the staleness of what it uses.
    has_ages: bool
    #: (k,) gradient steps that it had finished by then.
    clock: NDArray[np.int64]
    time: NDArray[np.float64]
    #: (k,) seconds since what is counted there began.
    lasts: NDArray[np.float64]
    #: (k,) of these, those that it waited; and samples, as in rows.
    waited: NDArray[np.float64]
    samples: NDArray[np.int64]
    rows: list[Row]

    def fold(self) -> WorkerFold:
        """Return an empty fold for this worker."""
        counts = WorkerFold()
        counts.stats.worker = self.worker
        if self.has_ages:
            counts.count_ages(self.worker)
        return counts

    def tell(self, counts: WorkerFold, start: int, stop: int) -> None:
        """Feed some rows to the worker's fold; the causes of waiting are in no event."""
        for samples, skew, taus, age, gap, waited in self.rows[start:stop]:
            if samples >= 0:
                counts.stepped(0.0, samples)
            if skew >= 0:
                counts.read(skew)
                for tau in taus:
                    if tau >= 0:
                        counts.used(tau)
            if age >= 0:
                if gap >= 0.0:
                    counts.averaged(age, gap)
                else:
                    counts.aged(age)
            if waited:
                counts.waited(reduce=waited)


def pieces_of(
    history: History, number: int, *, by_stages: bool = False, is_copy: bool = False
) -> WorkerPieces:
    """Return what a worker counts.

    Args:
        history: of a run, or of a cell of a split model.
        number: of the worker.
        by_stages: whether the stages of a pipeline count the staleness of gradients.
        is_copy: whether the first cell counts the samples of this one, too.
    """
    events = history.workers[number]
    pairs = history.header.mode.variant == PAIRS
    kind = events["kind"]
    seconds = np.where(kind == Kind.PARK, 0.0, events["seconds"].astype(np.float64))
    steps = kind == Kind.STEP
    counted = np.isin(kind, _COUNTED) | ((kind == Kind.OFFER) & (seconds > 0))
    clock, samples = np.where(steps, events["clock"] + 1, 0), np.where(steps, events["samples"], -1)
    waited, skew = np.where(steps, 0.0, seconds), np.full(len(events), -1)
    taus: list[Sequence[int]] = [()] * len(events)
    age, gap = np.full(len(events), -1), np.full(len(events), -1.0)

    # A read covers all shards of a fragment, and is counted at the last; the first read answers no
    # push.
    first, last = _reads(events)
    parked = events["flag"][last] == PARKED
    counted[last] = parked | (events["clock"][last] > 0)
    seconds[last] = waited[last] = np.where(parked, 0.0, seconds[first])
    first, last = (it[counted[last] & ~parked] for it in (first, last))
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        versions = events["version"][begin : end + 1]
        skew[end] = versions.max() - versions.min()
        taus[end] = events["tau"][begin : end + 1].tolist()
    if not steps.any():  # a push ends a step, which is counted when it is answered
        pushes = np.flatnonzero((kind == Kind.PUSH) & (events["shard"] == 0))
        pushed = _newest(pushes, last)
        clock[last], samples[last] = events["clock"][last], events["samples"][pushed]
        seconds[last] += seconds[pushed]
    if pairs:
        ends = np.flatnonzero(kind == Kind.MIXED)
        taken = _newest(np.flatnonzero(kind == Kind.TAKE), ends)
        age[ends], gap[ends] = events["tau"][taken], events["gap"][ends]
    if by_stages:
        passes = events[(kind == Kind.PASS) & np.isin(events["flag"], _ENDS)]
        stepped = np.flatnonzero(counted & (samples >= 0))[: len(passes)]
        age[stepped] = (passes["clock"] - passes["version"])[: len(stepped)]
    if is_copy:
        samples = np.minimum(samples, 0)
    at = np.flatnonzero(counted)
    rows = zip(
        samples[at].tolist(), skew[at].tolist(), [taus[i] for i in at.tolist()], age[at].tolist(),
        gap[at].tolist(), waited[at].tolist(), strict=True,
    )  # fmt: skip
    return WorkerPieces(
        number,
        pairs or by_stages,
        np.maximum.accumulate(clock)[at],
        events["time"][at],
        seconds[at],
        waited[at],
        samples[at].astype(np.int64),
        list(rows),
    )


def _reads(events: Events) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of the first and of the last event of each read."""
    parts = np.flatnonzero(events["kind"] == Kind.READ)
    begins = np.diff(parts, prepend=-2) > 1
    begins[1:] |= np.diff(events["shard"][parts].astype(np.int64)) <= 0
    begins[1:] |= np.diff(events["flag"][parts].astype(np.int64)) != 0
    return parts[begins], parts[np.append(begins[1:], True)[: len(parts)]]


def _newest(of: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each place the newest of some earlier places; 0 if there is none."""
    found: NDArray[np.int64] = np.insert(of, 0, 0)[np.searchsorted(of, at)]
    return found


def shards_of(history: History) -> list[Stats]:
    """Return what every shard has counted, by its events.

    These are staleness, gaps, drops, and what shards have from workers that went missing.

    Args:
        history: of a run, or of a cell of a split model.
    """
    workers = len(history.workers)
    return [_of_shard(number, it, workers) for number, it in enumerate(history.shards)]


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
    """Count the steps of a missing worker that arrived; what was lost with it does not count."""
    mine = events[events["worker"] == worker]
    came = mine[(mine["kind"] == Kind.RECEIVE) & (mine["samples"] > 0)]
    lost = mine[(mine["kind"] == Kind.DROP) & (mine["flag"] == LOST)]
    steps = int(came["clock"].max(initial=-1)) + 1
    counts.reached(worker, int(lost["clock"].min(initial=steps)))
