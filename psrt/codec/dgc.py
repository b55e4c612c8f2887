"""Deep gradient compression (DGC): top-k of a velocity that each worker keeps for itself.

Momentum is applied before elements are chosen (momentum correction): an element that is not sent
accumulates the momentum that it would have had. Elements that are sent are set to 0 in velocity and
momentum alike (factor masking), so that stale momentum does not move them further.
"""

from __future__ import annotations

import math

import numpy as np

from psrt.codec.frame import HEADER_BYTES
from psrt.codec.indices import Indices
from psrt.codec.sparse import Chosen, kept, longest_payload, shortest_payload
from psrt.codec.table import CODECS
from psrt.core.arrays import Bytes, Vector

#: Density of the first epoch of warm-up, and its ratio from epoch to epoch.
_FIRST, _RATIO = 0.25, 0.25


class Dgc(Chosen):
    """Momentum correction, factor masking, local clipping, and a warm-up of the density.

    Source: Lin, Han, Mao, Wang & Dally, "Deep Gradient Compression: Reducing the Communication
    Bandwidth for Distributed Training", ICLR 2018, arXiv:1712.01887.
    """

    row = CODECS["dgc"]
    saved = by_element = kept_back = ("momentum", "velocity")

    def __init__(
        self,
        n: int,
        *,
        density: float,
        momentum: float,
        clip_norm: float | None,
        warmup_epochs: int,
    ) -> None:
        """Set up, with momentum and velocity of 0.

        Args:
            n: elements of a vector.
            density: fraction of the elements that is sent after the warm-up, in (0, 1].
            momentum: in [0, 1).
            clip_norm: largest L2 norm of a vector before it is added to the momentum; None for any.
            warmup_epochs: number of first epochs that send more.
        """
        self._density, self._momentum = density, np.float32(momentum)
        self._clip_norm, self._warmup = clip_norm, warmup_epochs
        super().__init__(n, kept(n, max(density, _FIRST if warmup_epochs else density)))
        #: (n,) float32 each: the momentum, and its sum since an element was last sent.
        self.momentum: Vector = np.zeros(n, np.float32)
        self.velocity: Vector = np.zeros(n, np.float32)
        self.residual = self.velocity
        self._epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        """Use the density of that epoch from now on, see ``density``."""
        self._epoch = epoch

    def rescale(self, factor: float) -> None:
        """Multiply momentum and velocity by ``factor``."""
        super().rescale(factor)
        np.multiply(self.momentum, np.float32(factor), out=self.momentum)

    @property
    def longest(self) -> int:
        """Bytes of the longest frame of this epoch."""
        return HEADER_BYTES + longest_payload(self.n, kept(self.n, self.density(self._epoch)))

    @property
    def shortest(self) -> int:
        """Bytes of the shortest frame of this epoch."""
        return HEADER_BYTES + shortest_payload(self.n, kept(self.n, self.density(self._epoch)))

    def density(self, epoch: int) -> float:
        """Return the fraction of the elements that is sent in an epoch.

        >>> codec = Dgc(1000, density=0.001, momentum=0.9, clip_norm=None, warmup_epochs=4)
        >>> [codec.density(epoch) for epoch in range(5)]
        [0.25, 0.0625, 0.015625, 0.00390625, 0.001]
        """
        if epoch >= self._warmup:
            return self._density
        return max(self._density, _FIRST * _RATIO**epoch)

    def _encode(
        self, vector: Vector, payload: Bytes, rng: np.random.Generator
    ) -> tuple[int, int, int]:
        momentum, velocity = self.momentum, self.velocity
        with np.errstate(all="ignore"):
            np.multiply(momentum, self._momentum, out=momentum)
            np.add(momentum, vector * self._factor(vector), out=momentum)
            np.add(velocity, momentum, out=velocity)
        found = super()._encode(velocity, payload, rng)
        momentum[self.chosen] = velocity[self.chosen] = 0.0
        return found

    def _choose(self, vector: Vector) -> Indices:
        return self._search.largest(vector, kept(self.n, self.density(self._epoch)))

    def _factor(self, vector: Vector) -> np.float32:
        if self._clip_norm is None:
            return np.float32(1)
        squares = float(np.dot(vector, vector))
        if not math.isfinite(squares):  # may be an overflow of float32, which float64 avoids
            squares = float(np.einsum("i,i", vector, vector, dtype=np.float64))
        norm = math.sqrt(squares)
        return np.float32(min(1.0, self._clip_norm / norm) if norm else 1.0)
