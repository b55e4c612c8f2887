"""What a server counts of one shard: the updates that pushes are in, and who has left. Pure."""

from __future__ import annotations

from psrt.core.stats import Stats


class ShardFold:
    """One shard's counters, over the whole run. Called as the events of these names happen."""

    saved = ("stats",)

    def __init__(self, workers: int) -> None:
        """Begin with nothing, for W workers."""
        #: Of the whole run.
        self.stats = Stats(staleness=[{} for _ in range(workers)])

    def applied(self, worker: int, tau: int) -> None:
        """An update took a push of a worker, τ versions old (``APPLY``)."""
        found = self.stats.staleness[worker]
        found[tau] = found.get(tau, 0) + 1

    def moved(self, gap: float) -> None:
        """It was measured how far the parameters had moved since that push was computed."""
        count, total, largest = self.stats.gaps
        self.stats.gaps = count + 1, total + gap, max(largest, gap)

    def dropped(self) -> None:
        """A push is not used (``DROP``)."""
        self.stats.dropped += 1

    def left(self, worker: int, clock: int) -> None:
        """A worker is done, or is taken to be dead (``LEFT``)."""
        self.stats.left[worker] = clock

    def reached(self, worker: int, steps: int) -> None:
        """That many steps of a worker that was missed are in the shard, or will be."""
        self.stats.reached[worker] = self.stats.reached_all[worker] = steps

    def framed(self, frame_bytes: int, framed_bytes: int) -> None:
        """The frame of a reply was sent, of so many bytes, for a span of so many."""
        self.stats.frame_bytes += frame_bytes
        self.stats.framed_bytes += framed_bytes
