"""``progress.json``: how far a run is, for whoever looks after it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from psrt.messages import Report
from psrt.report.strict_json import dumps

#: Seconds from one writing to the next at least.
EVERY_S = 1.0


class Progress:
    """Rewrites the text of ``progress.json`` at reports, at most once a second."""

    def __init__(
        self, write: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        """Set up.

        Args:
            write: takes the text.
            now: returns the time in seconds.
        """
        self._write, self._now = write, now
        self._due = -math.inf
        self._clock, self._seconds = 0, 0.0

    def add(self, report: Report) -> None:
        """Take note of a worker's report."""
        self._clock = max(self._clock, report.step)
        self._seconds = max(self._seconds, report.seconds)
        now = self._now()
        if now < self._due and not report.last:
            return
        self._due = now + EVERY_S
        loss = report.loss if report.samples else math.nan
        figures = {"clock": self._clock, "seconds": self._seconds, "loss": loss}
        self._write(dumps({**figures, "written": round(time.time(), 3)}) + "\n")
