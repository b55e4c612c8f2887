"""One dense layer of a chain: y = f(x W + b). Pure: writes into the arrays that it is given."""

from __future__ import annotations

import numpy as np

from psrt.core.arrays import FloatArray, Vector
from psrt.model.activation import Activation
from psrt.model.layers import FlatViews
from psrt.model.workspace import Workspace


class Dense:
    """A dense layer; its parameters are the weight (inputs, outputs), then the bias (outputs,)."""

    def __init__(
        self, inputs: int, outputs: int, activation: Activation | None, space: Workspace
    ) -> None:
        """Describe the layer; the last one of a model has no activation."""
        self.inputs, self.outputs = inputs, outputs
        self.saved = outputs if activation is not None and activation.saves else 0
        #: Of this layer's values, if any.
        self.activation = activation
        self._space = space
        self._parameters = FlatViews((inputs, outputs))
        self._gradient = FlatViews((inputs, outputs))
        self.n = self._parameters.n

    def forward(self, x: FloatArray, params: Vector, out: FloatArray, saved: FloatArray) -> None:
        """Write the values; see ``ChainLayer``."""
        ((weight, bias),) = self._parameters.of(params)
        np.dot(x, weight, out=out)
        # Adding a row to every row would have numpy allocate a buffer; a copy does not.
        rows_of_bias = self._space.scratch(*out.shape)
        np.copyto(rows_of_bias, bias)
        np.add(out, rows_of_bias, out)
        if self.activation is not None:
            self.activation.forward(out, saved, self._space)

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
            self.activation.backward(y, saved, dy, self._space)
        if dx is not None:
            ((weight, _),) = self._parameters.of(params)
            np.dot(dy, weight.T, out=dx)

    def backward_weight(
        self, dy: FloatArray, x: FloatArray, y: FloatArray, saved: FloatArray, out: Vector
    ) -> None:
        """Write xᵀ dz and the sum of the rows of dz, where ``dy`` holds dz."""
        ((weight, bias),) = self._gradient.of(out)
        np.dot(x.T, dy, out=weight)
        np.add.reduce(dy, axis=0, out=bias)
