"""An MLP whose layers are split over several ranks, by columns and by rows in turn. Pure.

Layers come in pairs. The first of a pair is split by columns: a slice takes whole rows of x and
computes some columns of y, including its activation. The second is split by rows: it takes those
columns and computes one term of the sum that is its output. So a pair has one sum forward, after
its second layer, and one backward, of the gradient of its first layer's input. All other arrays are
the same on all ranks. If the number of layers is odd, the last has no second: each slice then has
some columns of the outputs, and the loss takes what it needs from the others.

Source: Shoeybi et al. 2019 (1909.08053), section 3.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from psrt.core.arrays import AnyArray, FloatArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Part, Rectangle, Span, even_span
from psrt.core.units import plural
from psrt.model.activation import Activation
from psrt.model.chain import ChainLayer, SliceGroup, layer_spans
from psrt.model.dense import Dense
from psrt.model.mlp import MLP
from psrt.model.sliced_loss import SLICED_LOSSES
from psrt.model.workspace import Workspace


class ColumnSlice(Dense):
    """Some columns of a dense layer; its ``dx`` is one term of a sum."""

    sums_backward = True


@dataclass(eq=False)
class RowSlice:
    """Some rows of a dense layer's weight; its output is one term of a sum.

    Parameters are the weight (inputs, outputs) and, in one of the slices, the bias (outputs,),
    which is added to the term of that slice.
    """

    sums_forward = True

    #: Of this slice: rows of its weight.
    inputs: int
    outputs: int
    #: Of this layer's values, if any.
    activation: Activation | None
    space: Workspace
    _: KW_ONLY
    #: Whether the bias is in this slice.
    biased: bool

    def __post_init__(self) -> None:
        """Describe the layer; ``inputs`` are this slice's."""
        self.saved = self.outputs if self.activation is not None and self.activation.saves else 0
        self.n = self.inputs * self.outputs + self.outputs * self.biased

    def _weight(self, vector: Vector) -> FloatArray:
        return vector[: self.inputs * self.outputs].reshape(self.inputs, self.outputs)

    def _bias(self, vector: Vector) -> Vector:
        return vector[self.inputs * self.outputs :]

    def forward(self, x: FloatArray, params: Vector, out: FloatArray, saved: FloatArray) -> None:
        """Write this slice's term of the sums."""
        np.dot(x, self._weight(params), out=out)
        if self.biased:
            rows_of_bias = self.space.scratch(*out.shape)
            np.copyto(rows_of_bias, self._bias(params))
            np.add(out, rows_of_bias, out)

    def finish(self, out: FloatArray, params: Vector, saved: FloatArray) -> None:
        """Turn the sums into values, the same on each rank."""
        if self.activation is not None:
            self.activation.forward(out, saved, self.space)

    def backward_input(
        self,
        dy: FloatArray,
        x: FloatArray,
        y: FloatArray,
        saved: FloatArray,
        params: Vector,
        dx: FloatArray | None,
    ) -> None:
        """Turn ``dy`` into the gradient of the sums, dz = dy·f′, and write dx = dz Wᵀ."""
        if self.activation is not None:
            self.activation.backward(y, saved, dy, self.space)
        if dx is not None:
            np.dot(dy, self._weight(params).T, out=dx)

    def backward_weight(
        self, dy: FloatArray, x: FloatArray, y: FloatArray, saved: FloatArray, out: Vector
    ) -> None:
        """Write xᵀ dz and, where the bias is, the sum of the rows of dz."""
        np.dot(x.T, dy, out=self._weight(out))
        if self.biased:
            np.add.reduce(dy, axis=0, out=self._bias(out))


class TensorSlice:
    """One rank's part of an MLP: its layers, its parameters and its loss.

    >>> first, second = (TensorSlice(MLP([2, 3, 2], batch_size=4), 2, i) for i in range(2))
    >>> first.part.size, second.part.size  # of 17 parameters; the second layer's bias is in one
    (12, 5)
    """

    def __init__(
        self, model: MLP, slices: int, index: int, group: SliceGroup | None = None
    ) -> None:
        """Split a model.

        Args:
            model: the whole model.
            slices: the number of slices, T.
            index: of this slice, in [0, T).
            group: of all slices; only needed by ``loss``.

        Raises:
            ConfigError: if a layer has fewer columns than there are slices.
        """
        for i, width in enumerate(model.sizes[1::2]):
            if width < slices:
                raise ConfigError(
                    f"{slices} tensor slices of layer {2 * i}, which has "
                    f"{plural(width, 'column')}: each must have at least one"
                )
        self._model, self._group = model, group
        space = Workspace()
        layers: list[ChainLayer] = []
        parts: list[Part] = []
        for i, (whole, span) in enumerate(
            zip(model.layers(), layer_spans(model.layers()), strict=True)
        ):
            inputs, outputs, bias = whole.inputs, whole.outputs, span.stop - whole.outputs
            if i % 2 == 0:
                columns = even_span(outputs, slices, index)
                weight = Rectangle(span.start + columns.start, inputs, columns.size, outputs)
                shown = Span(bias + columns.start, bias + columns.stop)
                layers.append(ColumnSlice(inputs, columns.size, whole.activation, space))
            else:
                rows, biased = even_span(inputs, slices, index), index == 0
                weight = Rectangle(span.start + rows.start * outputs, rows.size, outputs, outputs)
                shown = Span(bias, span.stop if biased else bias)
                layers.append(RowSlice(rows.size, outputs, whole.activation, space, biased=biased))
            parts.append(Part([weight, *Part.of_spans([shown])]))
        self._layers = tuple(layers)
        #: By layer, this slice's part of the model's parameters.
        self.parts = tuple(parts)
        self._loss = None
        if len(layers) % 2:
            new = SLICED_LOSSES[model.loss_name]
            self._loss = new(model.batch_size, model.sizes[-1], columns)

    @property
    def part(self) -> Part:
        """This slice's part of the model's parameters, in the order of its layers."""
        return Part(it for part in self.parts for it in part)

    def layers(self) -> tuple[ChainLayer, ...]:
        """Return this slice's layers, from the input to the output."""
        return self._layers

    async def loss(self, outputs: FloatArray, targets: AnyArray, rows: int) -> float:
        """Return the loss of some rows of a batch of ``rows``, the same for all slices.

        ``outputs`` are this slice's columns if the number of layers is odd, otherwise all; they
        become their gradient.
        """
        if self._loss is None:
            return self._model.loss(outputs, targets, rows)
        assert self._group is not None, "the loss of slices is that of a group"
        return await self._loss(outputs, targets, rows, self._group)


def tensor_slice(
    problem: object, slices: int, index: int, group: SliceGroup | None = None
) -> TensorSlice:
    """Return a slice of a problem's model; see ``TensorSlice``.

    Raises:
        ConfigError: if the problem has no ``tensor_slice()``, or there are too many slices.
    """
    asked = getattr(problem, "tensor_slice", None)
    if not callable(asked):
        raise ConfigError(
            f"the problem, {type(problem).__name__}, has no tensor_slice(): the layers of psrt's "
            "MLP alone can be split into slices"
        )
    found: TensorSlice = asked(slices, index, group)
    return found
