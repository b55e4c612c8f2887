"""The positions of a dense network's tensors in its flat vector. Views, never copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from psrt.arrays import FloatArray
from psrt.codec import Matrix
from psrt.errors import ConfigError
from psrt.partition import Span


class Layer(NamedTuple):
    """One layer's tensors: ``weight`` ``(in, out)`` and ``bias`` ``(out,)``."""

    weight: FloatArray
    bias: FloatArray


class FlatViews:
    """The layers of the vector used last; looking them up again costs one comparison."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        self.n = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(sizes))
        #: A reference to the vector itself, so that no other object gets its identity.
        self._vector: FloatArray | None = None
        self._layers: tuple[Layer, ...] = ()

    def spans(self) -> tuple[Span, ...]:
        """Return the span of each layer in the vector, weight and bias together, in order."""
        sizes = ((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(self._sizes))
        return tuple(Span(a, b) for a, b in pairwise(accumulate(sizes, initial=0)))

    def matrices(self) -> tuple[Matrix, ...]:
        """Return the place of each layer's weight in the vector, in order."""
        starts = (span.start for span in self.spans())
        return tuple(map(Matrix, starts, self._sizes[:-1], self._sizes[1:]))

    def of(self, vector: FloatArray) -> tuple[Layer, ...]:
        """Return the layers of ``vector`` ``(n,)`` as views.

        Raises:
            ConfigError: if the vector is not float32, contiguous and of ``n`` elements.
        """
        if vector is not self._vector:
            self._layers = tuple(self._cut(vector))
            self._vector = vector
        return self._layers

    def _cut(self, vector: FloatArray) -> list[Layer]:
        good = vector.shape == (self.n,) and vector.dtype == np.float32
        if not (good and vector.flags.c_contiguous):
            raise ConfigError(
                f"a {vector.dtype} vector of shape {vector.shape} where the model has "
                f"{self.n} contiguous float32 parameters"
            )
        layers, at = [], 0
        for fan_in, fan_out in pairwise(self._sizes):
            end = at + fan_in * fan_out
            weight = vector[at:end].reshape(fan_in, fan_out)
            layers.append(Layer(weight, vector[end : end + fan_out]))
            at = end + fan_out
        return layers
