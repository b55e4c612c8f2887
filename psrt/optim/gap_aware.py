"""Gap-aware rates: divide a gradient by the distance that the parameters have moved, in steps."""

from __future__ import annotations

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.optim.optimizer import block_scratch, scalar

#: Memory of the steps' mean square, and the ε that keeps C above zero.
_MEMORY, _EPSILON = 0.999, 1e-8
#: Steps at less than this fraction of the peak rate are not observed: rounding of the parameters
#: would be too large a part of them.
_LEAST_RATE = 1e-3
_ONE = scalar(1)


class GapAware:
    """G/(1 + abs(θ_now − θ_read)/C), C = η_max·(√v̂ + ε): the gap in units of one large step.

    v is the running mean square of the steps that updates make at unit rate,
    (θ_before − θ_after)/η, so it includes momentum and Adam's scaling; v̂ = v/(1 − 0.999ᵗ) after
    t updates corrects its start at zero. Both gap and C are element-wise. A parameter that has
    not moved keeps its gradient bit for bit, and with ``max_lr=math.inf``, which is C = ∞, all do.

    Source: Barkai, Hakimi, Schuster, ICLR 2020 (1909.10802).
    """

    saved = ("state", "updates")
    by_element = ("state",)
    elementwise = True
    needs_read = True

    def __init__(self, n: int, *, max_lr: float) -> None:
        """Set up.

        Args:
            n: number of elements of the shard.
            max_lr: largest learning rate of the run, a schedule's ``peak``.

        Raises:
            ConfigError: if the rate is not positive.
        """
        if not max_lr > 0:
            raise ConfigError(f"gap-aware rates with a peak rate of {max_lr}, expected above 0")
        self.state: dict[str, Vector] = {"mean_square_step": np.zeros(n, np.float32)}
        #: Number of updates observed.
        self.updates = 0
        self._max_lr, self._least_lr = scalar(max_lr), _LEAST_RATE * max_lr
        self._memory, self._epsilon = scalar(_MEMORY), scalar(_EPSILON)
        #: (1 − memory)/η² of the update under observation, and 1/(1 − memoryᵗ).
        self._rest, self._unbias = scalar(), scalar()
        self._unit, self._gap = block_scratch(n), block_scratch(n)

    def scale(self, staleness: int) -> float:
        """Return 1: the rule works element by element, in ``block``."""
        return 1.0

    @np.errstate(all="ignore")
    def block(
        self, span: Span, grad: Vector, theta_now: Vector, theta_read: Vector, out: Vector
    ) -> None:
        """Write the penalized block, or the block itself before the first observed update."""
        if self.updates == 0:
            np.copyto(out, grad)
            return
        unit, gap = self._unit[: span.size], self._gap[: span.size]
        self._unbias[()] = 1 / (1 - _MEMORY**self.updates)
        np.multiply(span.of(self.state["mean_square_step"]), self._unbias, unit)
        np.sqrt(unit, unit)
        np.add(unit, self._epsilon, unit)
        np.multiply(unit, self._max_lr, unit)
        np.subtract(theta_now, theta_read, gap)
        np.abs(gap, gap)
        np.divide(gap, unit, gap)
        np.add(gap, _ONE, gap)
        np.divide(grad, gap, out)

    @np.errstate(all="ignore")
    def observe(self, span: Span, theta_before: Vector, theta_after: Vector, lr: float) -> None:
        """Fold one block of an update's step into the mean square.

        An update with a tiny rate, such as at the start of a warm-up or the end of a cosine, is
        skipped.
        """
        if lr < self._least_lr:
            return
        # Count the update at its last block, not at its first: calls of ``block`` and ``observe``
        # alternate, and ``block`` after the first would correct the bias of a mean square without
        # this update by a count that includes it.
        if span.stop == len(self.state["mean_square_step"]):
            self.updates += 1
        self._rest[()] = (1 - _MEMORY) / lr**2
        step, mean_square = self._unit[: span.size], span.of(self.state["mean_square_step"])
        np.subtract(theta_before, theta_after, step)
        np.multiply(step, step, step)
        np.multiply(step, self._rest, step)
        np.multiply(mean_square, self._memory, mean_square)
        np.add(mean_square, step, mean_square)
