"""Delay compensation: move a stale gradient to where the parameters are now."""

from __future__ import annotations

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.optim.optimizer import block_scratch, scalar

#: Memory m of the adaptive rule's mean square, and the ε under its root.
_MEMORY, _EPSILON = 0.95, 1e-7


class DelayCompensated:
    """G + λ·G⊙G⊙(θ_now − θ_read): a first-order Taylor step with G⊙G for the Hessian.

    Adaptive, λ = λ₀/√(M + ε) for each element, M ← mM + (1 − m)G⊙G before use. λ = 0 leaves a
    gradient unchanged, bit for bit.

    Source: Zheng et al., ICML 2017 (1609.08326): DC-ASGD-c and DC-ASGD-a.
    """

    saved = ("state",)
    by_element = ("state",)
    elementwise = True
    needs_read = True

    def __init__(self, n: int, *, strength: float, adaptive: bool = False) -> None:
        """Set up.

        Args:
            n: number of elements of the shard.
            strength: λ, or λ₀ if adaptive; at least 0.
            adaptive: whether λ follows the gradient's running mean square.
        """
        self.state: dict[str, Vector] = {}
        if adaptive:
            self.state["mean_square"] = np.zeros(n, np.float32)
        self._adaptive = adaptive
        self._identity = strength == 0
        self._strength = scalar(strength)
        self._memory, self._rest = scalar(_MEMORY), scalar(1 - _MEMORY)
        self._epsilon = scalar(_EPSILON)
        self._square, self._term = block_scratch(n), block_scratch(n)

    def scale(self, staleness: int) -> float:
        """Return 1: the rule works element by element, in ``block``."""
        return 1.0

    @np.errstate(all="ignore")
    def block(
        self, span: Span, grad: Vector, theta_now: Vector, theta_read: Vector, out: Vector
    ) -> None:
        """Write the compensated block; see ``StalenessRate``."""
        if self._identity:
            np.copyto(out, grad)
            return
        square, term = self._square[: span.size], self._term[: span.size]
        np.multiply(grad, grad, square)
        np.subtract(theta_now, theta_read, term)
        np.multiply(term, square, term)
        np.multiply(term, self._strength, term)
        if self._adaptive:
            np.divide(term, self._root(span, square), term)
        np.add(grad, term, out)

    def observe(self, span: Span, theta_before: Vector, theta_after: Vector, lr: float) -> None:
        """Do nothing: the mean square is of gradients, which ``block`` sees."""

    def _root(self, span: Span, square: Vector) -> Vector:
        """Fold G⊙G into the mean square and return √(M + ε), overwriting ``square``."""
        mean_square = span.of(self.state["mean_square"])
        np.multiply(square, self._rest, square)
        np.multiply(mean_square, self._memory, mean_square)
        np.add(mean_square, square, mean_square)
        np.add(mean_square, self._epsilon, square)
        np.sqrt(square, square)
        return square
