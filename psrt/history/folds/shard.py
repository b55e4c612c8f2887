"""What a server counts of one shard: pushes in updates, drops, and departures. Pure."""

from __future__ import annotations

from psrt.core.stats import Stats


class ShardFold:
    """One shard's counters, over the whole run. Called as the events of these names happen."""

    saved = ("stats",)

    def __init__(self, workers: int) -> None:
        """Start empty, for W workers."""
        #: Totals of the whole run.
        self.stats = Stats(staleness=[{} for _ in range(workers)])

    def applied(self, worker: int, tau: int) -> None:
        """An update took a push of a worker, τ versions old (``APPLY``)."""
        found = self.stats.staleness[worker]
        found[tau] = found.get(tau, 0) + 1

    def moved(self, gap: float) -> None:
        """The distance that parameters moved since a push was computed on them was measured."""
        count, total, largest = self.stats.gaps
        self.stats.gaps = count + 1, total + gap, max(largest, gap)

    def dropped(self) -> None:
        """A push is not used (``DROP``)."""
        self.stats.dropped += 1

    def left(self, worker: int, clock: int) -> None:
        """A worker is done, or was declared dead (``LEFT``)."""
        self.stats.left[worker] = clock

    def reached(self, worker: int, steps: int) -> None:
        """This many steps of a missing worker are in the shard, or will be."""
        self.stats.reached[worker] = self.stats.reached_all[worker] = steps

    def framed(self, frame_bytes: int, framed_bytes: int) -> None:
        """The frame of a reply was sent; takes its bytes, and those of its span."""
        self.stats.frame_bytes += frame_bytes
        self.stats.framed_bytes += framed_bytes
