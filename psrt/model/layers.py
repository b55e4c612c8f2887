"""The positions of a dense network's tensors in its flat vector. Views, never copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from psrt.codec import Matrix
from psrt.core.arrays import FloatArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span

PartT = TypeVar("PartT")


class Layer(NamedTuple):
    """One layer's tensors: ``weight`` ``(in, out)`` and ``bias`` ``(out,)``."""

    weight: FloatArray
    bias: FloatArray


class _Cut(Generic[PartT]):
    """A vector that is split into parts; looking them up again costs one comparison."""

    def __init__(self, n: int) -> None:
        #: Elements of the vector.
        self.n = n
        #: The vector used last: a reference to itself, so that no other gets its identity.
        self._vector: FloatArray | None = None
        self._parts: tuple[PartT, ...] = ()

    def of(self, vector: FloatArray) -> tuple[PartT, ...]:
        """Return the parts of ``vector`` ``(n,)`` as views.

        Raises:
            ConfigError: if the vector is not float32, contiguous and of ``n`` elements.
        """
        if vector is not self._vector:
            good = vector.shape == (self.n,) and vector.dtype == np.float32
            if not (good and vector.flags.c_contiguous):
                raise ConfigError(
                    f"a {vector.dtype} vector of shape {vector.shape} where the model has "
                    f"{self.n} contiguous float32 parameters"
                )
            self._parts = tuple(self._cut(vector))
            self._vector = vector
        return self._parts

    def _cut(self, vector: FloatArray) -> Iterable[PartT]:
        raise NotImplementedError


class SpanViews(_Cut[Vector]):
    """The spans of the vector used last."""

    def __init__(self, spans: Sequence[Span]) -> None:
        """Describe a vector that the spans tile, in order."""
        super().__init__(spans[-1].stop)
        self._spans = tuple(spans)

    def _cut(self, vector: FloatArray) -> Iterable[Vector]:
        return (span.of(vector) for span in self._spans)


class FlatViews(_Cut[Layer]):
    """The tensors of each layer of the vector used last."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Describe the vector of dense layers of these widths, from the input to the output."""
        super().__init__(sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(sizes)))
        self._sizes = tuple(sizes)

    def spans(self) -> tuple[Span, ...]:
        """Return the span of each layer in the vector, weight and bias together, in order."""
        sizes = ((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(self._sizes))
        return tuple(Span(a, b) for a, b in pairwise(accumulate(sizes, initial=0)))

    def matrices(self) -> tuple[Matrix, ...]:
        """Return the place of each layer's weight in the vector, in order."""
        starts = (span.start for span in self.spans())
        return tuple(map(Matrix, starts, self._sizes[:-1], self._sizes[1:]))

    def _cut(self, vector: FloatArray) -> list[Layer]:
        layers, at = [], 0
        for fan_in, fan_out in pairwise(self._sizes):
            end = at + fan_in * fan_out
            weight = vector[at:end].reshape(fan_in, fan_out)
            layers.append(Layer(weight, vector[end : end + fan_out]))
            at = end + fan_out
        return layers
