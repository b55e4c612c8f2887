"""Descent by the sign of the gradient: every element takes a step of the same length."""

from __future__ import annotations

import math

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.optim.optimizer import block_scratch, scalar


class SignSgd:
    """θ ← θ·(1 − ηλ) − η·sign(g); an element whose gradient is zero does not move.

    The decay is decoupled: inside the sign it would outweigh every small gradient. Where the
    gradient is infinite θ becomes NaN, so that a run that diverges ends, as with any optimizer.

    >>> theta, grad = np.array([1, 2, 3], np.float32), np.array([4, -1e-9, 0], np.float32)
    >>> sign_sgd = SignSgd(3)
    >>> sign_sgd.begin(0.5)
    >>> sign_sgd.update(Span(0, 3), theta, grad, theta)
    >>> theta.tolist()
    [0.5, 2.5, 3.0]

    Args:
        n: elements of θ.
        weight_decay: λ, at least 0.

    Source: Bernstein, Wang, Azizzadenesheli & Anandkumar, "signSGD: Compressed Optimisation for
    Non-Convex Problems", ICML 2018, arXiv:1802.04434.
    """

    saved = ("state", "updates")
    by_element = ("state",)

    def __init__(self, n: int, *, weight_decay: float = 0.0) -> None:
        self.state: dict[str, Vector] = {}
        self.updates = 0
        self._rate = scalar()
        self._weight_decay = weight_decay
        #: Factor 1 − ηλ of the running update, None for none.
        self._shrink = scalar() if weight_decay else None
        self._scratch = block_scratch(n)
        self._second = block_scratch(n if weight_decay else 0)

    def begin(self, lr: float) -> None:
        """Begin an update with learning rate ``lr``."""
        self._rate[()] = lr
        self.updates += 1
        if self._shrink is not None:
            self._shrink[()] = 1 - lr * self._weight_decay

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Write the next parameters of one block; see ``Optimizer``."""
        scratch = self._scratch[: span.size]
        np.sign(grad, scratch)
        # One pass to see whether all is finite; squares may overflow where all is.
        if not math.isfinite(np.dot(grad, grad)):
            scratch[~np.isfinite(grad)] = np.nan
        np.multiply(scratch, self._rate, scratch)
        if self._shrink is not None:
            shrunk = self._second[: span.size]
            np.multiply(theta, self._shrink, shrunk)
            theta = shrunk
        np.subtract(theta, scratch, out)
