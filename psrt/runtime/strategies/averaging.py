"""Optimizers whose "gradient" is a mean of parameters: plain averaging, and outer optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.optim import BLOCK, Optimizer


class PlainAverage:
    """θ ← mean θ_i."""

    saved = ("updates",)

    def __init__(self) -> None:
        self.state: dict[str, np.ndarray[Any, Any]] = {}
        self.updates = 0

    def begin(self, lr: float) -> None:
        """Count the update; there is no learning rate."""
        self.updates += 1

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Copy the mean, which is passed as ``grad``."""
        np.copyto(out, grad)


class OuterStep:
    """θ ← outer(θ_old, Δ) with Δ = θ_old − mean θ_i as the gradient.

    Source: SlowMo (Wang, Tantia, Ballas & Rabbat, ICLR 2020); DiLoCo (Douillard et al. 2023,
    arXiv:2311.08105), whose choice is Nesterov with momentum 0.9 and rate 0.7.
    """

    saved = ("_outer", "updates")

    def __init__(self, outer: Optimizer) -> None:
        self._outer = outer
        self._delta = np.empty(BLOCK, np.float32)
        self.state = outer.state
        self.updates = 0

    def begin(self, lr: float) -> None:
        """Begin the outer optimizer's update with the outer rate."""
        self.updates += 1
        self._outer.begin(lr)

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Step from ``theta``, the last average, towards the mean, which is passed as ``grad``."""
        delta = np.subtract(theta, grad, out=self._delta[: theta.size])
        self._outer.update(span, theta, delta, out)
