"""Windows of time, the same for all workers, out of what each of them reports of its own. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from psrt.core.stats import Report


class Window(NamedTuple):
    """A stretch of time, the same for all workers, and what they did in it, whatever their step."""

    #: When it ends, in seconds since the start of training.
    end: float
    #: Seconds since the end of the one before; 0 if nothing more is known of all workers.
    length: float
    #: Training samples, those of a report spread evenly over its time.
    samples: float
    #: Seconds that workers waited, all of them together.
    waited: float


class Windows:
    """Cuts what workers report into windows of time.

    A report tells of the time since the one before, over which what was done is taken to be spread
    evenly. So each worker's time is in the windows once, whatever step it is at: samples add up to
    all of them, and nobody waits for more than there is of a window.
    """

    def __init__(self, workers: int) -> None:
        #: End of the newest window; and of the last one of the run that goes on, if it does.
        self.end = self._began = 0.0
        #: By worker, since when and until when it did how much that no window has yet.
        self._left: list[deque[tuple[float, float, float, float]]] = [
            deque() for _ in range(workers)
        ]
        #: By worker, up to when it has told; inf once it tells no more.
        self._told = [0.0] * workers

    def go_on(self, end: float) -> None:
        """Begin after the last window of a run that is resumed."""
        self.end = self._began = end
        self._told = [end] * len(self._told)

    def add(self, report: Report) -> None:
        """Take what a worker did, but for what the run before has in its windows."""
        since, until, share = report.since, report.seconds, 1.0
        if since < self._began:
            share = (until - self._began) / (until - since) if until > self._began else 0.0
            since = self._began
        if share:
            piece = (since, until, share * report.samples, share * report.waited)
            self._left[report.worker].append(piece)
        self._told[report.worker] = math.inf if report.last else until

    def gone(self, worker: int) -> None:
        """Wait for a worker no more."""
        self._told[worker] = math.inf

    def close(self, until: float) -> Window:
        """Return the next window, up to a time, or as far as all workers have told."""
        end = max(self.end, self._reached(until))
        length, self.end = end - self.end, end
        pieces = [self._take(left, end) for left in self._left] if length else []
        samples, waited = map(sum, zip(*pieces, strict=True)) if pieces else (0.0, 0.0)
        return Window(end, length, samples, waited)

    def _reached(self, until: float) -> float:
        """Return up to when all workers have reported, at most up to a time."""
        return min(until, *self._told)

    @staticmethod
    def _take(left: deque[tuple[float, float, float, float]], end: float) -> tuple[float, float]:
        """Take what a worker did until the end of a window: samples, and seconds of waiting."""
        made = waited = 0.0
        while left and (left[0][0] < end or left[0][1] <= end):
            since, until, samples, seconds = left.popleft()
            share = 1.0
            if until > end:
                share = (end - since) / (until - since)
                left.appendleft((end, until, samples * (1 - share), seconds * (1 - share)))
            made, waited = made + share * samples, waited + share * seconds
        return made, waited
