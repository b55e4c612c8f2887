"""A model that can be split into stages, without numbers: for simulations of time alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from psrt.core.arrays import FloatArray, Vector
from psrt.core.partition import Span
from psrt.model import MLP
from psrt.model.chain import ChainLayer, SliceGroup, layer_spans
from psrt.model.lent_stage import LentStage
from psrt.model.stage_memory import StageShape
from psrt.model.tensor import TensorSlice
from psrt.runtime.timing_only import TimingOnlyProblem


class TimingOnlyChain(TimingOnlyProblem):
    """A stand-in for a model that is a chain of layers; a batch has rows, which are empty."""

    def __init__(self, model: MLP, **length: Any) -> None:
        """Set the length of an epoch.

        Args:
            model: only the sizes of its layers are looked at.
            length: the other arguments of ``TimingOnlyProblem``.
        """
        super().__init__(model.n, spans=model.gradient_spans(), matrices=model.matrices(), **length)
        self._model = model

    def layers(self) -> Sequence[ChainLayer]:
        """Return the layers."""
        return self._model.layers()

    def tensor_slice(self, slices: int, index: int, group: SliceGroup | None = None) -> TensorSlice:
        """Return a slice of each layer."""
        return TensorSlice(self._model, slices, index, group)

    def loss(self, outputs: FloatArray, targets: Any, rows: int) -> float:
        """Return no loss."""
        return 0.0

    def batches(self, *of_epoch: Any) -> Any:
        """Return the batches of one worker, each a pair (x, targets) with nothing in it."""
        return _Pairs(super().batches(*of_epoch))

    def samples(self, batch: Any) -> int:
        """Return the rows of a batch."""
        return len(batch[0])


class TimingOnlyStage(LentStage):
    """A stage that computes nothing and writes no memory; slices still wait for each other."""

    def __init__(
        self, layers: Sequence[ChainLayer], shape: StageShape, *, group: SliceGroup, is_last: bool
    ) -> None:
        """Set up.

        Args:
            layers: consecutive ones; only their sizes are looked at.
            shape: of batches.
            group: for layers that are slices.
            is_last: whether there is none behind it.
        """
        empty = [_Empty(layer) for layer in layers]
        for below, above in pairwise(empty):
            below.outputs = above.inputs = max(below.outputs, above.inputs)
        if shape.first:
            empty[0].inputs = 0  # batches have no width
        super().__init__(empty, shape, group=group)
        if is_last and empty[-1].sums_backward:
            self._loss = partial(_sliced_loss, group)
        self._sizes = layer_spans(layers)
        self.n = self._sizes[-1].stop

    def admit(self, m: int, rows: int, params: Vector, x: FloatArray | None = None) -> None:
        """Take in a batch; only its rows are looked at."""
        super().admit(m, rows, params[:0], x)

    def gradient_spans(self) -> tuple[Span, ...]:
        """Return the layers' spans, the last one first."""
        return self._sizes[::-1]


class _Pairs:
    """Batches as those of a chain."""

    def __init__(self, sizes: Any) -> None:
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[tuple[FloatArray, FloatArray]]:
        for size in self._sizes:
            rows = np.empty((size, 0), np.float32)
            yield rows, rows


async def _sliced_loss(group: SliceGroup, outputs: FloatArray, targets: Any, rows: int) -> float:
    """Wait for the other slices as a cross-entropy does."""
    await group.max(np.empty((len(outputs), 1), np.float32))
    await group.sum(np.empty((2, len(outputs)), np.float32))
    return 0.0


class _Empty:
    """A layer without parameters, and without width but where slices are summed."""

    n = saved = 0

    def __init__(self, layer: ChainLayer) -> None:
        self.sums_forward = bool(getattr(layer, "sums_forward", False))
        self.sums_backward = bool(getattr(layer, "sums_backward", False))
        self.inputs = layer.inputs if self.sums_backward else 0
        self.outputs = layer.outputs if self.sums_forward else 0

    def finish(self, out: FloatArray, params: Vector, saved: FloatArray) -> None:
        """Do nothing."""

    def forward(self, x: FloatArray, params: Vector, out: FloatArray, saved: FloatArray) -> None:
        """Do nothing."""

    def backward_input(
        self,
        dy: FloatArray,
        x: FloatArray,
        y: FloatArray,
        saved: FloatArray,
        params: Vector,
        dx: FloatArray | None,
    ) -> None:
        """Do nothing."""

    def backward_weight(
        self, dy: FloatArray, x: FloatArray, y: FloatArray, saved: FloatArray, out: Vector
    ) -> None:
        """Do nothing."""
