"""Adagrad: each element's learning rate falls with its accumulated squared gradients."""

from __future__ import annotations

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.optim.optimizer import block_scratch, scalar


class Adagrad:
    """s ← s + g², θ ← θ − η·g/(√s + ε); g includes λθ.

    Args:
        n: elements of θ.
        weight_decay: λ, at least 0.
        epsilon: ε > 0, so that nothing is divided by zero.

    Source: Duchi, Hazan, Singer, JMLR 12, 2011, the diagonal form.
    """

    saved = ("state", "updates")
    by_element = ("state",)

    def __init__(self, n: int, *, weight_decay: float = 0.0, epsilon: float = 1e-8) -> None:
        self.state: dict[str, Vector] = {"square_sum": np.zeros(n, np.float32)}
        self.updates = 0
        self._rate = scalar()
        self._epsilon = scalar(epsilon)
        #: L2 coefficient, None for none.
        self._decay = scalar(weight_decay) if weight_decay else None
        self._scratch = block_scratch(n)
        self._gradient = block_scratch(n)

    def begin(self, lr: float) -> None:
        """Begin an update with learning rate ``lr``."""
        self._rate[()] = lr
        self.updates += 1

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Write the next parameters of one block; see ``Optimizer``."""
        square_sum = span.of(self.state["square_sum"])
        scratch, scaled = self._scratch[: span.size], self._gradient[: span.size]
        if self._decay is not None:
            np.multiply(theta, self._decay, scaled)
            np.add(scaled, grad, scaled)
            grad = scaled
        np.multiply(grad, grad, scratch)
        np.add(square_sum, scratch, square_sum)
        np.sqrt(square_sum, scratch)
        np.add(scratch, self._epsilon, scratch)
        np.multiply(grad, self._rate, scaled)
        np.divide(scaled, scratch, scratch)
        np.subtract(theta, scratch, out)
