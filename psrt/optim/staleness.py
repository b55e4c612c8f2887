"""Staleness-aware rates: the weight of a gradient, by the age of its parameters.

The staleness τ of a gradient is the number of updates that its shard has made since the
parameters it was computed on. A rule transforms each gradient before gradients are averaged; it
never changes the learning rate that they share. Most rules are a factor r(τ). Element-wise rules
(``delay_compensated.py``, ``gap_aware.py``) also look at how far each parameter has moved.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span

#: The smallest factor of rules that scale gradients down: 0 would count as dropped.
_SMALLEST = float(np.finfo(np.float32).tiny)


class StalenessRate(Protocol):
    """One rule, on one shard of ``n`` elements.

    A server calls, per gradient in the order of application, ``scale(τ)``. If that is 0.0, it
    leaves the gradient out; otherwise, if ``elementwise``, it calls ``block`` on every block. Then,
    per update and if ``elementwise``, it calls ``observe`` on every block, in order. To save the
    memory of a whole vector, ``block`` may be called for block i + 1 after block i was observed:
    the result must be as if no block of this update had been observed.
    """

    #: Whether ``block`` and ``observe`` are used; otherwise ``scale`` is the whole rule.
    elementwise: bool
    #: Whether ``block`` needs the parameters that the gradient was computed on.
    needs_read: bool
    #: Named float32 arrays ``(n,)`` for checkpoints; may be empty.
    state: dict[str, Vector]

    def scale(self, staleness: int) -> float:
        """Return the factor r(τ) of one gradient; exactly 0.0 drops it, which is counted."""

    def block(
        self, span: Span, grad: Vector, theta_now: Vector, theta_read: Vector, out: Vector
    ) -> None:
        """Transform one block of a gradient; allocates no array.

        Args:
            span: the block's position in the shard, at most ``BLOCK`` elements.
            grad: the block of the gradient ``(span.size,)``; written only if it is ``out``.
            theta_now: the block of the parameters that the update starts from.
            theta_read: the block of the parameters that the gradient was computed on.
            out: where the result goes.
        """

    def observe(self, span: Span, theta_before: Vector, theta_after: Vector, lr: float) -> None:
        """Observe one block of an update that was made with learning rate ``lr``.

        Args:
            span: the block's position in the shard.
            theta_before: the block of the parameters before the update, ``(span.size,)``.
            theta_after: the same after it.
            lr: learning rate of the update.
        """


class ScalarRate:
    """The common part of rules that are one factor: nothing is element-wise."""

    #: The state in a checkpoint, see ``psrt.checkpoint.state``.
    saved: tuple[str, ...] = ()
    elementwise = False
    needs_read = False

    def __init__(self) -> None:
        self.state: dict[str, Vector] = {}

    def block(
        self, span: Span, grad: Vector, theta_now: Vector, theta_read: Vector, out: Vector
    ) -> None:
        """Copy: the factor is the whole rule."""
        np.copyto(out, grad)

    def observe(self, span: Span, theta_before: Vector, theta_after: Vector, lr: float) -> None:
        """Do nothing."""


class Constant(ScalarRate):
    """r = 1."""

    def scale(self, staleness: int) -> float:
        """Return 1."""
        return 1.0


class Inverse(ScalarRate):
    """r = 1/τ, and 1 for τ = 0.

    Source: Zhang, Gupta, Lian, Liu, IJCAI 2016 (1511.05950).

    >>> [Inverse().scale(staleness) for staleness in (0, 1, 4)]
    [1.0, 1.0, 0.25]
    """

    def scale(self, staleness: int) -> float:
        """Return 1/τ, at most 1."""
        return 1.0 / max(staleness, 1)


class MeanInverse(ScalarRate):
    """r = 1/⟨τ⟩ over the last gradients, this one included, and at most 1.

    Source: Gupta, Zhang, Wang, Rudra, ICDM 2016 (1509.04210), who divide by the mean staleness
    of the protocol; the mean over a window need not be known in advance.

    >>> rate = MeanInverse(window=2)
    >>> [rate.scale(staleness) for staleness in (4, 0, 0)]
    [0.25, 0.5, 1.0]
    """

    saved = ("_last", "_seen", "_sum")

    def __init__(self, *, window: int = 32) -> None:
        super().__init__()
        #: Staleness of the last gradients, a ring of ``window``.
        self._last = [0] * window
        self._seen = 0
        self._sum = 0

    def scale(self, staleness: int) -> float:
        """Add ``staleness`` to the window and return 1/⟨τ⟩."""
        at = self._seen % len(self._last)
        self._sum += staleness - self._last[at]
        self._last[at] = staleness
        self._seen += 1
        return 1.0 if self._sum == 0 else min(1.0, min(self._seen, len(self._last)) / self._sum)


class Power(ScalarRate):
    """r = (1 + τ)^−p. psrt's own, for comparison.

    >>> Power(power=0.5).scale(3)
    0.5
    """

    def __init__(self, *, power: float) -> None:
        super().__init__()
        self._power = power

    def scale(self, staleness: int) -> float:
        """Return (1 + τ)^−p."""
        return max(math.pow(1 + staleness, -self._power), _SMALLEST)


class Exponential(ScalarRate):
    """r = e^(−bτ). psrt's own, for comparison.

    >>> Exponential(decay=math.log(2)).scale(2)
    0.25
    """

    def __init__(self, *, decay: float) -> None:
        super().__init__()
        self._decay = decay

    def scale(self, staleness: int) -> float:
        """Return e^(−bτ)."""
        return max(math.exp(-self._decay * staleness), _SMALLEST)


class Drop(ScalarRate):
    """r = 1 up to a staleness and 0, which is to drop the gradient, beyond.

    Source: the stale gradients that TensorFlow's SyncReplicasOptimizer throws away.

    >>> [Drop(limit=2).scale(staleness) for staleness in (0, 2, 3)]
    [1.0, 1.0, 0.0]
    """

    def __init__(self, *, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def scale(self, staleness: int) -> float:
        """Return 1 or, if the gradient must be dropped, 0."""
        return 1.0 if staleness <= self._limit else 0.0
