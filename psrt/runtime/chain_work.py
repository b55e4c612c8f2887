"""The gradient of a chain, layer by layer, with separate memory for each layer's vectors.

``Problem.loss_and_grad`` has all parameters, and memory for the whole gradient. Here each layer
gets its own in turn, and the caller may take them away in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from psrt.core.arrays import FloatArray, Vector
from psrt.model.chain import ChainLayer


class LayerWork(Protocol):
    """A step: ``begin``, ``forward`` of all layers, ``loss``, ``backward`` from the last layer."""

    def begin(self, batch: Any) -> None:
        """Take a batch; the caller may overwrite it afterwards."""
        ...

    def forward(self, i: int, params: Vector) -> None:
        """Compute the values of layer i from those of the one before."""
        ...

    def loss(self) -> float:
        """Return the mean loss, and start the backward pass."""
        ...

    def backward(self, i: int, params: Vector, out: Vector) -> None:
        """Write the gradient of layer i, and make that of the values of the one before."""
        ...


class ChainWork:
    """The layers of a chain, and the values of one batch."""

    def __init__(
        self, layers: Sequence[ChainLayer], loss: Callable[[FloatArray, Any, int], float]
    ) -> None:
        """Set up; the memory of values is made for the largest batch so far.

        Args:
            layers: of the whole model.
            loss: see ``Chain.loss``.
        """
        self._layers, self._loss = layers, loss
        self._most = 0
        self._rows = 0
        self._targets: Any = None
        #: Flat, by layer: its values, and what it saves for the way back; before them the input.
        self._values: list[Vector] = []
        self._saved: list[Vector] = []
        #: Gradients of the values of a layer and of the one before, in turn.
        self._deltas: list[Vector] = []
        self._delta: FloatArray = np.zeros((0, 0), np.float32)

    def begin(self, batch: Any) -> None:
        """Copy a batch: virtual workers share its memory, and others run in between."""
        x, targets = batch
        self._rows = rows = len(x)
        if rows > self._most:
            self._reserve(rows)
        np.copyto(self._of(self._values[0], self._layers[0].inputs), x)
        self._targets = np.array(targets)

    def _reserve(self, rows: int) -> None:
        self._most = rows
        widths = [self._layers[0].inputs, *(layer.outputs for layer in self._layers)]
        self._values = [np.empty(rows * width, np.float32) for width in widths]
        self._saved = [np.empty(rows * layer.saved, np.float32) for layer in self._layers]
        self._deltas = [np.empty(rows * max(widths[1:]), np.float32) for _ in range(2)]

    def _of(self, flat: Vector, width: int) -> FloatArray:
        return flat[: self._rows * width].reshape(self._rows, width)

    @np.errstate(all="ignore")  # a diverging run shows in its loss, not in warnings
    def forward(self, i: int, params: Vector) -> None:
        """Compute the values of layer i."""
        layer = self._layers[i]
        x, y = self._of(self._values[i], layer.inputs), self._of(self._values[i + 1], layer.outputs)
        layer.forward(x, params, y, self._of(self._saved[i], layer.saved))

    @np.errstate(all="ignore")
    def loss(self) -> float:
        """Return the mean loss; the outputs become its gradient."""
        self._delta = self._of(self._values[-1], self._layers[-1].outputs)
        return float(self._loss(self._delta, self._targets, self._rows))

    @np.errstate(all="ignore")
    def backward(self, i: int, params: Vector, out: Vector) -> None:
        """Write the gradient of layer i, and that of its input unless it is the first one."""
        layer, dy = self._layers[i], self._delta
        x, y = self._of(self._values[i], layer.inputs), self._of(self._values[i + 1], layer.outputs)
        saved = self._of(self._saved[i], layer.saved)
        below = self._of(self._deltas[i % 2], layer.inputs) if i else None
        layer.backward_input(dy, x, y, saved, params, below)
        layer.backward_weight(dy, x, y, saved, out)
        if below is not None:
            self._delta = below


class NoWork:
    """Without numerics nothing is computed."""

    def begin(self, batch: Any) -> None:
        """Do nothing."""

    def forward(self, i: int, params: Vector) -> None:
        """Do nothing."""

    def loss(self) -> float:
        """Return no loss."""
        return 0.0

    def backward(self, i: int, params: Vector, out: Vector) -> None:
        """Do nothing."""
