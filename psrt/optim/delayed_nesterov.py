"""Nesterov's momentum for merges that come one by one, and stale."""

from __future__ import annotations

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.optim.optimizer import block_scratch, scalar


class DelayedNesterov:
    """θ ← θ − ηg/N at each update; at every N-th also v ← μv + mean g, θ ← θ − ημv.

    The velocity is of the mean of the last N gradients, so N learners that each make an update of
    their own do not multiply the momentum. With N = 1 it is Nesterov's momentum.

    Source: Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024,
    arXiv:2401.09135, with c = 0.
    """

    saved = ("state", "updates")
    by_element = ("state",)

    def __init__(self, n: int, *, momentum: float, period: int) -> None:
        """Set up.

        Args:
            n: elements of θ.
            momentum: μ, in [0, 1).
            period: N, at least 1.
        """
        self.state: dict[str, Vector] = {
            "velocity": np.zeros(n, np.float32),
            "mean": np.zeros(n, np.float32),
        }
        self.updates = 0
        self._period = period
        self._rate, self._momentum, self._share = scalar(), scalar(momentum), scalar(1.0 / period)
        self._scratch, self._part = block_scratch(n), block_scratch(n)

    def begin(self, lr: float) -> None:
        """Begin an update with learning rate ``lr``."""
        self._rate[()] = lr
        self.updates += 1

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Write the next parameters of one block; see ``Optimizer``."""
        velocity, mean = (span.of(self.state[it]) for it in ("velocity", "mean"))
        scratch, part = self._scratch[: span.size], self._part[: span.size]
        np.multiply(grad, self._share, part)
        np.add(mean, part, mean)
        if self.updates % self._period == 0:
            np.multiply(velocity, self._momentum, velocity)
            np.add(velocity, mean, velocity)
            mean.fill(0.0)
            np.multiply(velocity, self._momentum, scratch)
            np.add(scratch, part, part)
        np.multiply(part, self._rate, scratch)
        np.subtract(theta, scratch, out)
