"""The learning rate as a function of progress. Pure: progress is passed, in epochs."""

from __future__ import annotations

import math

from psrt.errors import ConfigError

#: Relative tolerance of progress.
_HAIR = 1e-6
#: Every schedule's name.
SCHEDULES = ("constant", "step", "cosine")


class Schedule:
    """A learning rate that warms up linearly and then stays, steps down or follows a cosine.

    >>> schedule = Schedule("cosine", 0.8, epochs=10, warmup_epochs=2)
    >>> [round(schedule.rate(progress), 3) for progress in (0, 1, 2, 6, 10)]
    [0.0, 0.4, 0.8, 0.4, 0.0]

    Source: warm-up, Goyal et al. 2017 (1706.02677); cosine, Loshchilov & Hutter, ICLR 2017
    (1608.03983), one period that ends at zero.
    """

    def __init__(
        self,
        kind: str,
        lr: float,
        *,
        epochs: float,
        warmup_epochs: float = 0.0,
        decay_epochs: float = 5.0,
        decay_factor: float = 0.1,
    ) -> None:
        """Set the curve.

        Args:
            kind: ``constant``, ``step`` or ``cosine``.
            lr: peak rate, at the end of the warm-up.
            epochs: end of the cosine; later progress gets its last rate.
            warmup_epochs: number of epochs in which the rate rises from 0 to ``lr``.
            decay_epochs: number of epochs between two decays of ``step``, and between the warm-up
                and the first.
            decay_factor: factor of each decay.

        Raises:
            ConfigError: if the kind is unknown or a number invalid.
        """
        if kind not in SCHEDULES:
            raise ConfigError(f"unknown schedule {kind!r}, expected one of {', '.join(SCHEDULES)}")
        if not (lr > 0 and math.isfinite(lr)):
            raise ConfigError(f"learning rate {lr}, expected a positive finite number")
        if not (0 <= warmup_epochs <= epochs):
            raise ConfigError(f"warm-up of {warmup_epochs} epochs in a run of {epochs}")
        if not (decay_epochs > 0 and 0 < decay_factor <= 1):
            raise ConfigError(f"step of factor {decay_factor} every {decay_epochs} epochs")
        self._kind, self._epochs = kind, epochs
        #: The largest rate, at the end of the warm-up.
        self.peak = lr
        self._warmup = warmup_epochs
        self._decay_epochs, self._decay_factor = decay_epochs, decay_factor
        self._always_peak = kind == "constant" and warmup_epochs == 0

    def rate(self, progress: float) -> float:
        """Return the rate at ``progress`` epochs, a fraction included."""
        if self._always_peak:
            return self.peak
        if progress < self._warmup:
            return self.peak * progress / self._warmup
        return self.peak * self._shape(progress - self._warmup)

    def _shape(self, since: float) -> float:
        """Return the factor in ``[0, 1]`` at ``since`` epochs after the warm-up."""
        if self._kind == "step":
            # Progress that was rounded to float32, such as in an all-reduce, or computed by a
            # subtraction may be slightly below the start of a decay.
            hair = _HAIR * (since + self._warmup)
            return self._decay_factor ** math.floor((since + hair) / self._decay_epochs)
        if self._kind == "cosine":
            length = self._epochs - self._warmup
            return 0.5 * (1 + math.cos(math.pi * min(1.0, since / length))) if length else 1.0
        return 1.0
