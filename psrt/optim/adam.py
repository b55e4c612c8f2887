"""Adam and AdamW: steps scaled by running means of the gradient and of its square."""

from __future__ import annotations

import math

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.optim.optimizer import block_scratch, scalar


class Adam:
    """m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², θ ← θ − η·m̂/(√v̂ + ε).

    m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ) undo the start from zero; t is ``updates``. Weight decay
    λ is part of the gradient, g + λθ; or, decoupled, it shrinks θ by a factor (1 − ηλ) instead.

    Args:
        n: elements of θ.
        weight_decay: λ, at least 0.
        beta1: β₁ of the mean, in [0, 1).
        beta2: β₂ of the mean square, in [0, 1).
        epsilon: ε > 0, so that nothing is divided by zero.
        decoupled: whether λ shrinks θ instead of being part of the gradient.

    Source: Kingma & Ba, ICLR 2015 (1412.6980), algorithm 1; decoupled: Loshchilov & Hutter,
    ICLR 2019 (1711.05101), with the rate in the decay, as torch.optim.AdamW has it.
    """

    saved = ("state", "updates")
    by_element = ("state",)

    def __init__(
        self,
        n: int,
        *,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        decoupled: bool = False,
    ) -> None:
        self.state: dict[str, Vector] = {
            "mean": np.zeros(n, np.float32),
            "mean_square": np.zeros(n, np.float32),
        }
        self.updates = 0
        self._betas = beta1, beta2
        self._beta1, self._rest1 = scalar(beta1), scalar(1 - beta1)
        self._beta2, self._rest2 = scalar(beta2), scalar(1 - beta2)
        self._epsilon = scalar(epsilon)
        self._weight_decay = weight_decay
        #: L2 coefficient of the coupled decay, None for none.
        self._coupled = scalar(weight_decay) if weight_decay and not decoupled else None
        #: Factor 1 − ηλ of the decoupled decay, None for none.
        self._shrink = scalar() if weight_decay and decoupled else None
        #: η/(1 − β₁ᵗ) and 1/√(1 − β₂ᵗ) of the running update.
        self._rate, self._unbias = scalar(), scalar()
        self._scratch = block_scratch(n)
        self._second = block_scratch(n if weight_decay else 0)

    def begin(self, lr: float) -> None:
        """Begin an update with learning rate ``lr``."""
        self.updates += 1
        beta1, beta2 = self._betas
        self._rate[()] = lr / (1 - beta1**self.updates)
        self._unbias[()] = 1 / math.sqrt(1 - beta2**self.updates)
        if self._shrink is not None:
            self._shrink[()] = 1 - lr * self._weight_decay

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Write the next parameters of one block; see ``Optimizer``."""
        if self._coupled is not None:
            decayed = self._second[: span.size]
            np.multiply(theta, self._coupled, decayed)
            np.add(decayed, grad, decayed)
            grad = decayed
        step = self._step(span, grad)
        if self._shrink is not None:
            shrunk = self._second[: span.size]
            np.multiply(theta, self._shrink, shrunk)
            theta = shrunk
        np.subtract(theta, step, out)

    def _step(self, span: Span, grad: Vector) -> Vector:
        """Fold ``grad`` into both means and return η·m̂/(√v̂ + ε) in scratch."""
        mean, square = span.of(self.state["mean"]), span.of(self.state["mean_square"])
        scratch = self._scratch[: span.size]
        np.multiply(grad, self._rest1, scratch)
        np.multiply(mean, self._beta1, mean)
        np.add(mean, scratch, mean)
        np.multiply(grad, grad, scratch)
        np.multiply(scratch, self._rest2, scratch)
        np.multiply(square, self._beta2, square)
        np.add(square, scratch, square)
        np.sqrt(square, scratch)
        np.multiply(scratch, self._unbias, scratch)
        np.add(scratch, self._epsilon, scratch)
        np.divide(mean, scratch, scratch)
        np.multiply(scratch, self._rate, scratch)
        return scratch
