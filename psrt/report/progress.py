"""``progress.json``: how far a run is, for those who look after it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import median

from psrt.core.stats import Report
from psrt.report.strict_json import dumps

#: Seconds from one writing to the next at least.
EVERY_S = 1.0


class ProgressFile:
    """Rewrites the text of ``progress.json`` at reports, at most once a second."""

    def __init__(
        self,
        write: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
        *,
        workers: int = 0,
    ) -> None:
        """Set up.

        Args:
            write: takes the text.
            now: returns the time in seconds.
            workers: the number of workers, W.
        """
        self._write, self._now = write, now
        self._due = -math.inf
        self._clock, self._seconds = 0, 0.0
        #: By worker that has not left, its clock.
        self._clocks: dict[int, int] = dict.fromkeys(range(workers), 0)
        #: By worker: its clock and time at its last report, and the seconds that it computed for a
        #: step since the one before.
        self._reported: dict[int, tuple[int, float]] = {}
        self._pace: dict[int, float] = {}

    def add(self, report: Report) -> None:
        """Take note of a worker's report."""
        self._clock = max(self._clock, report.step)
        self._seconds = max(self._seconds, report.seconds)
        self._clocks[report.worker] = report.step
        if report.last and len(self._clocks) > 1:
            self.gone(report.worker)
        self._keep_pace(report)
        now = self._now()
        if now < self._due and not report.last:
            return
        self._due = now + EVERY_S
        loss = report.loss if report.samples else math.nan
        clock_min = min(self._clocks.values(), default=self._clock)
        figures = {"clock": self._clock, "clock_min": clock_min, "seconds": self._seconds}
        figures |= {"loss": loss, **self._slowest()}
        self._write(dumps({**figures, "written": round(time.time(), 3)}) + "\n")

    def gone(self, worker: int) -> None:
        """Ignore a worker that has departed or died from now on."""
        self._clocks.pop(worker, None)

    def _keep_pace(self, report: Report) -> None:
        """Note how long a worker computes for a step: its time without waiting."""
        before = self._reported.get(report.worker)
        self._reported[report.worker] = report.step, report.seconds
        if before is not None and report.step > before[0]:
            busy = report.seconds - before[1] - report.waited
            self._pace[report.worker] = max(0.0, busy) / (report.step - before[0])

    def _slowest(self) -> dict[str, float]:
        """Return who is slow, once at least two workers have reported twice."""
        if len(self._pace) < 2:
            return {}
        worker = max(self._pace, key=self._pace.__getitem__)
        return {
            "slowest": worker,
            "slowest_step_s": self._pace[worker],
            "median_step_s": median(self._pace.values()),
        }
