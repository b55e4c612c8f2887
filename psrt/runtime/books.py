"""What a shard counts: versions, drops, and the staleness and gap of what it applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psrt.messages import Push


class Note(NamedTuple):
    """What became of one push in an update."""

    #: r(τ), the scalar staleness factor.
    factor: float
    #: ‖θ_now − θ_read‖/√n; −1 where it was not measured.
    gap: float


class Books:
    """The counters of one shard, with or without numbers behind them."""

    def __init__(self, workers: int) -> None:
        """Begin at version 0.

        Args:
            workers: W.
        """
        #: Updates applied.
        self.version = 0
        #: Pushes that were dropped.
        self.dropped = 0
        #: By worker: how many of its applied pushes had which staleness τ.
        self.by_worker: list[dict[int, int]] = [{} for _ in range(workers)]
        #: Gaps that were measured: how many, their sum, the largest.
        self.gaps: tuple[int, float, float] = 0, 0.0, 0.0
        #: Those of pushes that have not been answered, by worker.
        self.fresh_gaps: dict[int, float] = {}
        #: What became of each push of the newest update, in the order of their summation.
        self.notes: list[Note] = []

    @property
    def histogram(self) -> list[int]:
        """How many applied pushes had staleness τ, at index τ, all workers together."""
        counts = [0] * (1 + max((max(found) for found in self.by_worker if found), default=-1))
        for found in self.by_worker:
            for staleness, count in found.items():
                counts[staleness] += count
        return counts

    def drop(self) -> None:
        """Count a push that is not used."""
        self.dropped += 1

    def count(self, pushes: Sequence[Push]) -> None:
        """Count an update that these pushes made: the next version."""
        version = self.version
        for push in pushes:
            found, staleness = self.by_worker[push.worker], version - push.version
            found[staleness] = found.get(staleness, 0) + 1
        self.version = version + 1

    def count_gap(self, worker: int, gap: float) -> None:
        """Count the measured gap of a worker's push."""
        count, total, largest = self.gaps
        self.gaps = count + 1, total + gap, max(largest, gap)
        self.fresh_gaps[worker] = gap
