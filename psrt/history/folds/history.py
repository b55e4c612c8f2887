"""Has the folds that count in a run take the events of a recorded one. Pure.

What a run counts is in its summary, so ``fold(history)`` equals what the summary says, whatever the
job: a law of every job, and what ``psrt check`` asks of every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psrt.config.names import PAIRS
from psrt.core.stats import Stats
from psrt.history.events import BACKWARD, BACKWARD_WEIGHT, LOST, MISSED, PARKED, Kind
from psrt.history.folds.shard import ShardFold
from psrt.history.folds.worker import WorkerFold
from psrt.history.log import Events
from psrt.history.reading import History

#: What ends a backward pass.
_ENDS = (BACKWARD, BACKWARD_WEIGHT)
# As plain numbers: a loop over events would look up each member of the enumeration for each event.
_READ, _PUSH, _STEP, _REDUCED = map(int, (Kind.READ, Kind.PUSH, Kind.STEP, Kind.REDUCED))
_LEAVE, _OFFER, _TAKE, _MIXED = map(int, (Kind.LEAVE, Kind.OFFER, Kind.TAKE, Kind.MIXED))
_KINDS = (_READ, _PUSH, _STEP, _REDUCED, _LEAVE, _OFFER, _TAKE, _MIXED)


class Piece(NamedTuple):
    """What a worker counts at one of its events."""

    #: Gradient steps that it had finished by then.
    clock: int
    time: float
    #: Seconds since what is counted here began.
    lasts: float
    waited: float = 0.0
    #: Samples of a step; −1 where none ends here.
    samples: int = -1
    #: Of a read, by how much versions of shards differ, and τ of the pushes that it answers.
    skew: int = -1
    taus: tuple[int, ...] = ()
    #: τ by this worker's own steps, of a gradient or an average, and how far apart it was.
    age: int = -1
    gap: float = -1.0

    def tell(self, counts: WorkerFold) -> None:
        """Have a worker's fold count this; why it waited is in no event."""
        if self.samples >= 0:
            counts.stepped(0.0, self.samples)
        if self.skew >= 0:
            counts.read(self.skew)
            for tau in self.taus:
                if tau >= 0:
                    counts.used(tau)
        if self.age >= 0:
            if self.gap >= 0.0:
                counts.averaged(self.age, self.gap)
            else:
                counts.aged(self.age)
        if self.waited:
            counts.waited(reduce=self.waited)


class WorkerPieces(NamedTuple):
    """All that a worker counts, in order."""

    #: Whether it counts itself how stale what it uses is.
    has_ages: bool
    pieces: list[Piece]

    def of_other_cell(self) -> WorkerPieces:
        """Return the same for a cell that is not the first one, which counts all samples."""
        pieces = [it if it.samples <= 0 else it._replace(samples=0) for it in self.pieces]
        return self._replace(pieces=pieces)

    def fold(self, number: int) -> WorkerFold:
        """Return a fold for a worker of that number, which has counted nothing yet."""
        counts = WorkerFold()
        counts.stats.worker = number
        if self.has_ages:
            counts.count_ages(number)
        return counts


def pieces_of(history: History, number: int, *, by_stages: bool = False) -> WorkerPieces:
    """Return what a worker counts.

    Args:
        history: of a run, or of a cell of a model that is cut.
        number: of the worker.
        by_stages: whether the stages of a pipeline count how stale gradients are.
    """
    events, shards = history.workers[number], len(history.shards)
    pairs = history.header.mode.variant == PAIRS
    chosen = events[np.isin(events["kind"], _KINDS)]
    pieces = _Pieces(shards, pairs, has_steps=bool((events["kind"] == Kind.STEP).any()))
    found = [piece for row in chosen.tolist() if (piece := pieces.of(*row)) is not None]
    if by_stages:
        ends = events[(events["kind"] == Kind.PASS) & np.isin(events["flag"], _ENDS)]
        ages = iter((ends["clock"] - ends["version"]).tolist())
        found = [it if it.samples < 0 else it._replace(age=next(ages, -1)) for it in found]
    return WorkerPieces(pairs or by_stages, found)


class _Pieces:
    """Makes pieces of a worker's events, one event after the other."""

    def __init__(self, shards: int, pairs: bool, *, has_steps: bool) -> None:
        self._shards, self._pairs, self._has_steps = shards, pairs, has_steps
        #: Steps so far, and whether the parameters of the first one were read.
        self._clock, self._has_read = 0, False
        #: Versions and τ of a read that is not whole yet, and its wait.
        self._versions: list[int] = []
        self._taus: list[int] = []
        self._waited = 0.0
        #: Samples and seconds of the newest push, and τ of what is being averaged.
        self._pushed = (0, 0.0)
        self._tau = 0

    def of(
        self, kind: int, flag: int, shard: int, worker: int, clock: int, version: int,
        progress: float, time: float, tau: int, samples: int, rate: float, gap: float,
        weight: float, seconds: float,
    ) -> Piece | None:  # fmt: skip
        """Return what is counted at an event, of these fields in their order."""
        if kind == _READ:
            if shard == 0:
                self._versions, self._taus, self._waited = [], [], seconds
            self._versions.append(version)
            self._taus.append(tau)
            return self._read(flag, clock, time) if shard == self._shards - 1 else None
        if kind == _STEP:
            self._clock = clock + 1
            return Piece(self._clock, time, seconds, samples=samples)
        if kind == _MIXED and self._pairs:
            return Piece(self._clock, time, seconds, seconds, age=self._tau, gap=gap)
        if kind in (_REDUCED, _MIXED, _LEAVE) or (kind == _OFFER and seconds > 0):
            return Piece(self._clock, time, seconds, seconds)
        if kind == _PUSH and shard == 0:
            self._pushed = samples, seconds
        elif kind == _TAKE:
            self._tau = tau
        return None

    def _read(self, flag: int, clock: int, time: float) -> Piece | None:
        """Return what is counted of a read of all shards: the first one answers no push."""
        is_answer, self._has_read = self._has_read, True
        if flag == PARKED:
            return Piece(self._clock, time, 0.0)
        if not is_answer:
            return None
        skew, taus = max(self._versions) - min(self._versions), tuple(self._taus)
        if self._has_steps:
            return Piece(self._clock, time, self._waited, self._waited, skew=skew, taus=taus)
        self._clock = clock
        samples, lasts = self._pushed
        return Piece(clock, time, lasts + self._waited, self._waited, samples, skew, taus)


def fold(history: History, workers: Sequence[WorkerPieces]) -> list[Stats]:
    """Return what every worker and every shard has counted, by its events.

    That is staleness, gaps, skew, drops, waiting, and what shards have of those who were missed.

    Args:
        history: of a run, or of a cell of a model that is cut.
        workers: what each worker counts, as of ``pieces_of``.
    """
    found = []
    for number, its in enumerate(workers):
        counts = its.fold(number)
        for piece in its.pieces:
            piece.tell(counts)
        found.append(counts.stats)
    shards = enumerate(history.shards)
    return found + [_of_shard(number, it, len(workers)) for number, it in shards]


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
