"""What one worker counts: its steps, the answers that it reads, and why it waits. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from psrt.core.stats import Report, Stats

#: Causes of a worker's waiting: other workers, by a gate, quorum or window; a server's work on its
#: own push; messages in flight and in a server's queue; sums over all workers.
CAUSES = ("workers", "server", "messages", "reduce")


class WorkerFold:
    """One worker's counters, over the whole run and since its newest report.

    Called as events happen: after a step (``STEP`` or ``PUSH``), when the answer to a push is in
    place (``READ``), after an average (``TAKE`` and ``MIXED``), and after each wait.
    """

    saved = (
        *("stats", "steps", "_reported_samples", "_loss_sum", "_staleness", "_waited", "_skew_max"),
        *("_gap_sum", "_gap_count"),
    )

    def __init__(self) -> None:
        """Start empty."""
        #: Totals of the whole run.
        self.stats = Stats(waited=dict.fromkeys(CAUSES, 0.0))
        #: Steps taken; fewer than the clock if rounds did not wait for this worker.
        self.steps = 0
        # Looked up once, since every step uses them.
        self._skews, self._waits = self.stats.skew, self.stats.waited
        #: Counts of used gradients by staleness; None if servers count that.
        self._ages: dict[int, int] | None = None
        self._clear()

    def count_ages(self, worker: int) -> None:
        """Count the staleness of what this worker uses itself, instead of what servers report.

        Args:
            worker: its number; with a split model, in its cell.
        """
        self.stats.staleness = [{} for _ in range(worker + 1)]
        self._ages = self.stats.staleness[-1]

    def _clear(self) -> None:
        self._loss_sum = 0.0
        #: All samples up to the newest report.
        self._reported_samples = self.stats.samples
        self._staleness = [0, 0, 0]
        self._waited = 0.0
        self._skew_max = 0
        self._gap_sum, self._gap_count = 0.0, 0

    def stepped(self, loss: float, samples: int) -> None:
        """A step is done, with this mean loss over the samples that count here."""
        self.steps += 1
        if samples:
            self._loss_sum += loss * samples
            self.stats.samples += samples

    def read(self, skew: int) -> None:
        """The parameters of the next step are in place; ``skew`` is their shards' difference."""
        if self._ages is not None:
            return
        self._skews[skew] = self._skews.get(skew, 0) + 1
        if skew > self._skew_max:
            self._skew_max = skew

    def used(self, tau: int) -> None:
        """A server has used a gradient of this worker, τ versions old."""
        if self._ages is not None:
            return
        staleness = self._staleness
        staleness[0] += tau
        staleness[1] += 1
        if tau > staleness[2]:
            staleness[2] = tau

    def aged(self, tau: int) -> None:
        """A gradient that this worker used was τ of its steps old; see ``count_ages``."""
        assert self._ages is not None, "counted from the start"
        self._ages[tau] = self._ages.get(tau, 0) + 1
        staleness = self._staleness
        staleness[0] += tau
        staleness[1] += 1
        if tau > staleness[2]:
            staleness[2] = tau

    def moved(self, gap: float) -> None:
        """The distance that parameters moved since the gradient was computed was measured."""
        self._gap_sum += gap
        self._gap_count += 1

    def averaged(self, tau: int, gap: float) -> None:
        """Two vectors were averaged: τ steps old, with this distance; nan without numerics."""
        self.aged(tau)
        if gap == gap:
            self.moved(gap)
            count, total, largest = self.stats.gaps
            self.stats.gaps = count + 1, total + gap, max(largest, gap)

    def waited(
        self,
        *,
        workers: float = 0.0,
        server: float = 0.0,
        messages: float = 0.0,
        reduce: float = 0.0,
        waiting_for: int = -1,
    ) -> None:
        """The worker has waited: seconds by cause; of several replies the last one decides.

        Args:
            workers: see ``CAUSES``.
            server: likewise.
            messages: likewise.
            reduce: likewise.
            waiting_for: the worker whose push released the answer; negative if it was this
                worker's own, or the end of a window.
        """
        waited = self._waits
        waited["workers"] += workers
        waited["server"] += server
        waited["messages"] += messages
        waited["reduce"] += reduce
        self._waited += workers + server + messages + reduce
        if waiting_for >= 0:
            waited_for = self.stats.waited_for
            waited_for[waiting_for] = waited_for.get(waiting_for, 0.0) + workers

    def framed(self, frame_bytes: int, framed_bytes: int) -> None:
        """Frames of a codec were sent; takes their bytes, and those of the vectors."""
        self.stats.frame_bytes += frame_bytes
        self.stats.framed_bytes += framed_bytes

    def report(
        self,
        worker: int,
        epoch: int,
        clock: int,
        figures: Mapping[str, float],
        *,
        seconds: float,
        since: float,
        epoch_end: bool,
        last: bool,
    ) -> Report:
        """Return what was counted since the report before, and begin the next interval.

        The arguments are fields of ``Report``, except for ``figures``: ``loss``, ``accuracy`` and
        others on the test set; empty if not evaluated.
        """
        samples = self.stats.samples - self._reported_samples
        more = {name: it for name, it in figures.items() if name not in ("loss", "accuracy")}
        total, count, largest = self._staleness
        found = Report(
            worker,
            epoch,
            clock,
            self._loss_sum / samples if samples else math.nan,
            samples,
            total,
            count,
            largest,
            seconds,
            since,
            self._waited,
            self._skew_max,
            self._gap_sum,
            self._gap_count,
            figures.get("loss", math.nan),
            figures.get("accuracy", math.nan),
            epoch_end,
            last,
            self.stats.columns(),
            json.dumps(more) if more else "",
        )
        self._clear()
        return found
