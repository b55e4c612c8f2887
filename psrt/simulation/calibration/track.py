"""Track: the durations of recorded steps, handed out again step by step. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from psrt.simulation.calibration.times import Seconds, ShardTimes

#: Durations that a server owes at most. A job that is like the run never owes so many.
_OWED = 10_000


class Track:
    """One kind of durations, by worker and step, read in a circle.

    >>> track = Track([np.array([0.5, np.nan, 1.5])], workers=2)
    >>> [track.at(0, step) for step in range(4)]
    [0.5, 1.0, 1.5, 0.5]
    >>> track.at(1, 0)  # the second one that takes after the first is elsewhere in the circle
    1.0
    """

    def __init__(self, recorded: Iterable[Seconds], *, workers: int) -> None:
        """Set up.

        Args:
            recorded: by worker, by step; nan for the median of the worker's others.
            workers: of the job to come. If there are more, they take after the same ones again,
                but evenly spread over the recorded steps, so that they are not slow together.
        """
        given = list(recorded)
        known = [seconds[~np.isnan(seconds)] for seconds in given]
        #: The median of all workers.
        self.usual = _median(np.concatenate(known), 0.0)
        self._usual = [_median(seconds, self.usual) for seconds in known]
        self._steps: list[list[float]] = [seconds.tolist() or [math.nan] for seconds in given]
        self._groups = -(-workers // len(given))

    def at(self, worker: int, step: int) -> float:
        """Return how long it takes a worker, step = 0, 1, ..."""
        found = self.find(worker, step)
        return self._usual[worker % len(self._usual)] if math.isnan(found) else found

    def find(self, worker: int, step: int) -> float:
        """Return how long it takes a worker, nan where that is not known."""
        group, worker = divmod(worker, len(self._steps))
        seconds = self._steps[worker]
        return seconds[(step + group * len(seconds) // self._groups) % len(seconds)]


def _median(seconds: Seconds, otherwise: float) -> float:
    return float(np.median(seconds)) if seconds.size else otherwise


class Attention:
    """What taking a message up takes one server.

    A push may find a server waiting that was busy when that push came in the run, or the other way
    round. What it took there is then owed, and paid by the next message that finds the server as
    it was there: what keeps a rank from its core now and then, for a hundred times as long as
    usual, happens as often as in the run. Where nothing is owed, it takes as long as usual.
    """

    def __init__(self, times: ShardTimes, *, workers: int) -> None:
        """Set up.

        Args:
            times: of the recorded shard.
            workers: of the job to come.
        """
        #: Where the server was busy, and where it had waited.
        self._tracks = tuple(Track(it, workers=workers) for it in (times.turned, times.woken))
        self._owed: tuple[deque[float], deque[float]] = deque(maxlen=_OWED), deque(maxlen=_OWED)

    def at(self, worker: int, step: int, *, waited: bool) -> float:
        """Return how long it takes to take up the push of a worker's step."""
        found = self._tracks[waited].find(worker, step)
        if not math.isnan(found):
            return found
        other = self._tracks[not waited].find(worker, step)
        if not math.isnan(other):
            self._owed[not waited].append(other)
        owed = self._owed[waited]
        return owed.popleft() if owed else self.usual(waited=waited)

    def usual(self, *, waited: bool) -> float:
        """Return how long it takes to take up a message of no step of the recorded run."""
        return self._tracks[waited].usual
