"""A batch, repeated, for a model that can be cut, and for as many layers that compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from schemes import FixedBatch

from psrt.core.arrays import FloatArray, Vector
from psrt.core.partition import Span, even_spans
from psrt.model.chain import ChainLayer, SliceGroup
from psrt.model.tensor import TensorSlice

#: Batches of an epoch, at whose end an asynchronous pipeline is drained.
_EPOCH = 1024


class FixedChain(FixedBatch):
    """A single batch, repeated, for a model that can be split; its copies divide the batch."""

    def __init__(self, sizes: tuple[int, ...], rows: int) -> None:
        super().__init__(sizes, rows)
        #: Of the batch.
        self.rows = rows

    def batches(self, worker: int, workers: int, epoch: int) -> list[Any]:
        """Return a worker's rows a few times."""
        x, y = self.batch
        rows = slice(*even_spans(len(x), workers)[worker])
        return [(x[rows], y[rows])] * _EPOCH

    def layers(self) -> Sequence[ChainLayer]:
        """Return the layers of the model."""
        return self.model.layers()

    def loss(self, outputs: FloatArray, targets: Any, rows: int) -> float:
        """Return the model's loss."""
        return self.model.loss(outputs, targets, rows)

    def tensor_slice(self, slices: int, index: int, group: SliceGroup | None = None) -> TensorSlice:
        """Return a slice of the model."""
        return TensorSlice(self.model, slices, index, group)


class _IdleLayer:
    """A layer with rows of some widths and one parameter, whose passes do nothing."""

    n, saved = 1, 0

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs

    def forward(self, x: FloatArray, params: Vector, out: FloatArray, saved: FloatArray) -> None:
        """Leave y as it is."""

    def backward_input(
        self,
        dy: FloatArray,
        x: FloatArray,
        y: FloatArray,
        saved: FloatArray,
        params: Vector,
        dx: FloatArray | None,
    ) -> None:
        """Leave the gradient of x as it is."""

    def backward_weight(
        self, dy: FloatArray, x: FloatArray, y: FloatArray, saved: FloatArray, out: Vector
    ) -> None:
        """Write no gradient."""
        out[0] = 0.0


class IdleChain(FixedChain):
    """The same batch for a chain of as many layers that compute nothing."""

    def initial(self) -> Vector:
        """Return zeros."""
        return np.zeros(len(self.model.sizes) - 1, np.float32)

    def gradient_spans(self) -> tuple[Span, ...]:
        """Return the layers, the last one first."""
        return tuple(Span(i, i + 1) for i in reversed(range(len(self.model.sizes) - 1)))

    def layers(self) -> Sequence[ChainLayer]:
        """Return layers of the same widths."""
        return [_IdleLayer(*widths) for widths in pairwise(self.model.sizes)]

    def loss(self, outputs: FloatArray, targets: Any, rows: int) -> float:
        """Return 0."""
        return 0.0
