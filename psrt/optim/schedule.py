"""The learning rate as a function of progress. Pure: progress is passed, in epochs."""

from __future__ import annotations

import math
from typing import Protocol

from psrt.core.errors import ConfigError
from psrt.optim.table import ScheduleRow

#: Relative tolerance of progress.
_HAIR = 1e-6


class LearningRate(Protocol):
    """What sets the learning rate of updates."""

    def rate(self, progress: float) -> float:
        """Return the rate at ``progress`` epochs, a fraction included."""
        ...


class Schedule:
    """A learning rate that warms up linearly and then follows its row.

    >>> from psrt.optim.table import Cosine
    >>> schedule = Schedule(Cosine(warmup=2), 0.8, epochs=10)
    >>> [round(schedule.rate(progress), 3) for progress in (0, 1, 2, 6, 10)]
    [0.0, 0.4, 0.8, 0.4, 0.0]
    """

    def __init__(self, row: ScheduleRow, lr: float, *, epochs: float) -> None:
        """Set the curve.

        Args:
            row: its warm-up, and the curve after it.
            lr: peak rate, at the end of the warm-up.
            epochs: end of the run; later progress gets its last rate.

        Raises:
            ConfigError: if a number is invalid.
        """
        if not (lr > 0 and math.isfinite(lr)):
            raise ConfigError(f"learning rate {lr}, expected a positive finite number")
        if row.warmup > epochs:
            raise ConfigError(f"warm-up of {row.warmup:g} epochs in a run of {epochs:g}")
        self._row, self._length = row, epochs - row.warmup
        #: The largest rate, at the end of the warm-up.
        self.peak = lr
        self._warmup = row.warmup
        self._always_peak = row.stays and row.warmup == 0

    def rate(self, progress: float) -> float:
        """Return the rate at ``progress`` epochs, a fraction included."""
        if self._always_peak:
            return self.peak
        if progress < self._warmup:
            return self.peak * progress / self._warmup
        since = progress - self._warmup
        return self.peak * self._row.share(since, self._length, _HAIR * (since + self._warmup))
