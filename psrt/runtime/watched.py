"""What merges do, for the history: digests, signed sums and norms of what goes in and comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.optim import Optimizer
from psrt.runtime.checksum import digest
from psrt.runtime.conserved import signed_sum, within_float32
from psrt.runtime.elastic import ForceSums
from psrt.runtime.updater import Contribution, Updater


class _Watched:
    """An optimizer that sums up what it is given."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.total = self.squares = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Update one block."""
        total, norm = signed_sum(grad)
        self.total += total
        self.squares += norm * norm
        self._optimizer.update(span, theta, grad, out)


class WatchedUpdater(Updater):
    """An updater that keeps what its last update did."""

    sums = ForceSums((), 0, 0, 0.0, 0.0)
    _made = 0

    def step(self, theta: Vector, gradient: Vector, out: Vector, progress: float) -> None:
        """Apply a single vector of weight 1."""
        if isinstance(self.optimizer, _Watched):
            super().step(theta, gradient, out, progress)
        else:
            self.apply(theta, [Contribution(gradient)], out, progress=progress)

    @np.errstate(all="ignore")
    def apply(
        self, theta: Vector, terms: Sequence[Contribution], out: Vector, *, progress: float
    ) -> None:
        """Write one step from ``theta`` into ``out``, and keep what it did."""
        before, optimizer = theta.copy(), self.optimizer
        vectors = []
        for it in terms:
            total, norm = map(within_float32, signed_sum(it.vector))
            vectors.append((digest(it.vector), total, norm, it.weight))
        self.optimizer = watched = _Watched(optimizer)
        try:
            super().apply(theta, terms, out, progress=progress)
        finally:
            self.optimizer = optimizer
        norm = math.sqrt(watched.squares)
        moved, length = signed_sum(np.subtract(out, before, dtype=np.float64))
        most = math.sqrt(out.size) * (signed_sum(out)[1] + abs(self.lr) * norm)
        sums = (moved, most, watched.total, norm, length)
        self.sums = ForceSums(vectors, digest(before), self._made, *map(within_float32, sums))
        self._made = digest(out)
