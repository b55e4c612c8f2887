"""Gradient descent, plain and with momentum."""

from __future__ import annotations

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.optim.optimizer import block_scratch, scalar


class Sgd:
    """θ ← θ − η·(g + λθ), with the L2 coefficient λ in the gradient (coupled).

    >>> theta, grad = np.array([1, 2], np.float32), np.array([4, -4], np.float32)
    >>> sgd = Sgd(2)
    >>> sgd.begin(0.5)
    >>> sgd.update(Span(0, 2), theta, grad, theta)
    >>> theta
    array([-1.,  4.], dtype=float32)

    Source: Robbins & Monro, Annals of Mathematical Statistics 22(3), 1951.
    """

    saved = ("state", "updates")
    by_element = ("state",)

    def __init__(self, n: int, *, weight_decay: float = 0.0) -> None:
        self.state: dict[str, Vector] = {}
        self.updates = 0
        self._rate = scalar()
        #: L2 coefficient, None for none.
        self._decay = scalar(weight_decay) if weight_decay else None
        self._scratch = block_scratch(n)

    def begin(self, lr: float) -> None:
        """Begin an update with learning rate ``lr``."""
        self._rate[()] = lr
        self.updates += 1

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Write the next parameters of one block; see ``Optimizer``."""
        scratch = self._scratch
        if len(grad) != len(scratch):
            scratch = scratch[: len(grad)]
        if self._decay is not None:
            np.multiply(theta, self._decay, scratch)
            np.add(scratch, grad, scratch)
            grad = scratch
        np.multiply(grad, self._rate, scratch)
        np.subtract(theta, scratch, out)


class Momentum:
    """Heavy ball: v ← μv + g, θ ← θ − ηv; Nesterov: θ ← θ − η(g + μv) with the new v.

    v starts at zero, g includes λθ. Nesterov's look-ahead is in the form that needs the gradient
    at θ itself.

    Args:
        n: elements of θ.
        momentum: μ, in [0, 1).
        weight_decay: λ, at least 0.
        nesterov: whether to look ahead.

    Source: Polyak 1964; Sutskever, Martens, Dahl, Hinton, ICML 2013, as torch.optim.SGD writes
    them: the rate multiplies v when it is used and is not part of it.
    """

    saved = ("state", "updates")
    by_element = ("state",)

    def __init__(
        self, n: int, *, momentum: float = 0.9, weight_decay: float = 0.0, nesterov: bool = False
    ) -> None:
        self.state: dict[str, Vector] = {"velocity": np.zeros(n, np.float32)}
        self.updates = 0
        self._rate = scalar()
        self._momentum = scalar(momentum)
        #: L2 coefficient, None for none.
        self._decay = scalar(weight_decay) if weight_decay else None
        self._nesterov = nesterov
        self._scratch = block_scratch(n)
        self._gradient = block_scratch(n if weight_decay else 0)

    def begin(self, lr: float) -> None:
        """Begin an update with learning rate ``lr``."""
        self._rate[()] = lr
        self.updates += 1

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Write the next parameters of one block; see ``Optimizer``."""
        velocity = span.of(self.state["velocity"])
        scratch = self._scratch[: span.size]
        if self._decay is not None:
            decayed = self._gradient[: span.size]
            np.multiply(theta, self._decay, decayed)
            np.add(decayed, grad, decayed)
            grad = decayed
        np.multiply(velocity, self._momentum, velocity)
        np.add(velocity, grad, velocity)
        if self._nesterov:
            np.multiply(velocity, self._momentum, scratch)
            np.add(scratch, grad, scratch)
            np.multiply(scratch, self._rate, scratch)
        else:
            np.multiply(velocity, self._rate, scratch)
        np.subtract(theta, scratch, out)
