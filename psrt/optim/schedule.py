"""The learning rate as a function of progress. Pure: progress is passed, in epochs."""

from __future__ import annotations

import math

from psrt.errors import ConfigError
from psrt.optim.table import ScheduleRow

#: Relative tolerance of progress.
_HAIR = 1e-6


class Schedule:
    """A learning rate that warms up linearly and goes on as its row says.

    >>> from psrt.optim.table import Cosine
    >>> schedule = Schedule(Cosine(), 0.8, epochs=10, warmup_epochs=2)
    >>> [round(schedule.rate(progress), 3) for progress in (0, 1, 2, 6, 10)]
    [0.0, 0.4, 0.8, 0.4, 0.0]

    Source: warm-up, Goyal et al. 2017 (1706.02677).
    """

    def __init__(
        self, row: ScheduleRow, lr: float, *, epochs: float, warmup_epochs: float = 0.0
    ) -> None:
        """Set the curve.

        Args:
            row: how it goes on behind the warm-up.
            lr: peak rate, at the end of the warm-up.
            epochs: end of the run; later progress gets its last rate.
            warmup_epochs: number of epochs in which the rate rises from 0 to ``lr``.

        Raises:
            ConfigError: if a number is invalid.
        """
        if not (lr > 0 and math.isfinite(lr)):
            raise ConfigError(f"learning rate {lr}, expected a positive finite number")
        if not (0 <= warmup_epochs <= epochs):
            raise ConfigError(f"warm-up of {warmup_epochs} epochs in a run of {epochs}")
        self._row, self._length = row, epochs - warmup_epochs
        #: The largest rate, at the end of the warm-up.
        self.peak = lr
        self._warmup = warmup_epochs
        self._always_peak = row.stays and warmup_epochs == 0

    def rate(self, progress: float) -> float:
        """Return the rate at ``progress`` epochs, a fraction included."""
        if self._always_peak:
            return self.peak
        if progress < self._warmup:
            return self.peak * progress / self._warmup
        since = progress - self._warmup
        return self.peak * self._row.share(since, self._length, _HAIR * (since + self._warmup))
