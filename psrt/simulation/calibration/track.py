"""Recorded durations, replayed step by step. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from psrt.simulation.calibration.times import Seconds, ShardTimes

#: The most durations that a server defers. A job that is like the run never comes near it.
_DEFERRED = 10_000


class Track:
    """One kind of durations, by worker and step, replayed cyclically.

    >>> track = Track([np.array([0.5, np.nan, 1.5])], workers=2)
    >>> [track.at(0, step) for step in range(4)]
    [0.5, 1.0, 1.5, 0.5]
    >>> track.at(1, 0)  # a second worker with these durations starts elsewhere in the cycle
    1.0
    """

    def __init__(self, recorded: Iterable[Seconds], *, workers: int) -> None:
        """Set up.

        Args:
            recorded: by worker, by step; nan stands for the median of the worker's other steps.
            workers: number in the simulated job. Where the run had fewer, several replay the same
                one, evenly spread over its steps, so that they are not slow at the same time.
        """
        given = list(recorded)
        known = [seconds[~np.isnan(seconds)] for seconds in given]
        #: The median of all workers.
        self.usual = _median(np.concatenate(known), 0.0)
        self._usual = [_median(seconds, self.usual) for seconds in known]
        self._steps: list[list[float]] = [seconds.tolist() or [math.nan] for seconds in given]
        self._groups = -(-workers // len(given))

    def at(self, worker: int, step: int) -> float:
        """Return the duration of a worker's step, step = 0, 1, ..."""
        found = self.find(worker, step)
        return self._usual[worker % len(self._usual)] if math.isnan(found) else found

    def find(self, worker: int, step: int) -> float:
        """Return the duration of a worker's step, nan where it is not known."""
        group, worker = divmod(worker, len(self._steps))
        seconds = self._steps[worker]
        return seconds[(step + group * len(seconds) // self._groups) % len(seconds)]


def _median(seconds: Seconds, default: float) -> float:
    return float(np.median(seconds)) if seconds.size else default


class Receipts:
    """The time one server takes to receive a message.

    A push that found the server busy in the run may find it idle now, or the other way round. Then
    the recorded duration belongs to the other case: it is deferred, and the next message of that
    case without a duration takes it. So rare interruptions, a hundred times as long as usual,
    happen as often as in the run. Where nothing is deferred, a message takes the median.
    """

    def __init__(self, times: ShardTimes, *, workers: int) -> None:
        """Set up.

        Args:
            times: of the recorded shard.
            workers: number in the simulated job.
        """
        #: By whether the server was idle.
        self._tracks = tuple(Track(it, workers=workers) for it in (times.turnaround, times.wake_up))
        self._deferred: tuple[deque[float], deque[float]]
        self._deferred = deque(maxlen=_DEFERRED), deque(maxlen=_DEFERRED)

    def at(self, worker: int, step: int, *, idle: bool) -> float:
        """Return how long it takes to receive the push of a worker's step."""
        found = self._tracks[idle].find(worker, step)
        if not math.isnan(found):
            return found
        other = self._tracks[not idle].find(worker, step)
        if not math.isnan(other):
            self._deferred[not idle].append(other)
        deferred = self._deferred[idle]
        return deferred.popleft() if deferred else self.usual(idle=idle)

    def usual(self, *, idle: bool) -> float:
        """Return the median, for a message that does not belong to a step of the recorded run."""
        return self._tracks[idle].usual
