"""A multi-layer perceptron over one flat float32 vector. Pure: arrays in, arrays out.

Parameters and gradient are flat vectors, the form in which they are sent, sharded and updated;
the layers are views of them. A step allocates no array: every product, activation and loss is
written into a buffer that was made with the model, and the gradient of each tensor directly into
its place in the vector to be sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from psrt.codec import Matrix
from psrt.core.arrays import AnyArray, FloatArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.model.activation import ACTIVATIONS
from psrt.model.chain import ChainLayer, layer_spans
from psrt.model.dense import Dense
from psrt.model.layers import FlatViews, SpanViews
from psrt.model.loss import LOSSES
from psrt.model.workspace import Workspace

PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True)
class Buffers:
    """The intermediate values of a batch of ``b`` rows; views of the model's own memory."""

    #: Values of the hidden layers and, last, the outputs: ``(b, width)`` each.
    values: tuple[FloatArray, ...]
    #: What each layer saves for its backward pass beside these: ``(b, saved)``.
    saved: tuple[FloatArray, ...]
    #: Gradient of the loss with respect to the values of the hidden layers, ``(b, width)``.
    deltas: tuple[FloatArray, ...]

    @classmethod
    def new(cls, rows: int, layers: Sequence[ChainLayer]) -> Buffers:
        """Make buffers for a number of rows."""

        def arrays(widths: Iterable[int]) -> tuple[FloatArray, ...]:
            return tuple(np.empty((rows, width), np.float32) for width in widths)

        values = arrays(layer.outputs for layer in layers)
        saved = arrays(layer.saved for layer in layers)
        return cls(values, saved, arrays(layer.inputs for layer in layers[1:]))

    def first(self, rows: int) -> Buffers:
        """Return views of the first rows."""
        parts = ((it[:rows] for it in arrays) for arrays in (self.values, self.saved, self.deltas))
        return Buffers(*map(tuple, parts))


class MLP:
    """Dense layers ``h = f(h W + b)``, the last one without activation, and a mean loss.

    >>> model = MLP([2, 3, 2], batch_size=4)
    >>> model.n
    17
    >>> theta, gradient = model.initial(np.random.default_rng(0)), np.empty(17, np.float32)
    >>> x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 1, 0])
    >>> round(model.loss_and_grad(theta, x, y, gradient), 4)  # zero input: both equally likely
    0.6931
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        activation: str = "relu",
        loss: str = "cross-entropy",
        batch_size: int,
    ) -> None:
        """Reserve the memory of a step.

        Args:
            sizes: widths from the input to the output, at least two, each at least 1.
            activation: of the hidden layers, a name in ``ACTIVATIONS``.
            loss: a name in ``LOSSES``.
            batch_size: largest number of rows of a batch.

        Raises:
            ConfigError: if a size is not positive or a name unknown.
        """
        if len(sizes) < 2 or min(sizes) < 1 or batch_size < 1:
            raise ConfigError(f"no MLP has sizes {list(sizes)} and batches of {batch_size}")
        #: Widths from the input to the output.
        self.sizes = tuple(sizes)
        #: Most rows of a batch.
        self.batch_size = batch_size
        self._bounded = activation == "tanh"
        hidden, space = _named(ACTIVATIONS, activation, "activation"), Workspace()
        last = len(sizes) - 2
        self._layers = tuple(
            Dense(fan_in, fan_out, hidden if i < last else None, space)
            for i, (fan_in, fan_out) in enumerate(pairwise(sizes))
        )
        self._spans = layer_spans(self._layers)
        self._parameters, self._gradient = SpanViews(self._spans), SpanViews(self._spans)
        #: Number of parameters, the length of the flat vector.
        self.n = self._parameters.n
        #: Its name in ``LOSSES``.
        self.loss_name = loss
        self._loss = _named(LOSSES, loss, "loss")(batch_size, sizes[-1])
        #: By number of rows; all of them are views of the one of ``batch_size`` rows.
        self._buffers: dict[int, Buffers] = {}

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return fresh parameters ``(n,)``; biases are zero.

        Under tanh the weights are uniform with variance 2/(in + out) (Glorot & Bengio, AISTATS
        2010), otherwise normal with variance 2/in (He et al., ICCV 2015), so that neither
        signal nor gradient grows or vanishes with depth.
        """
        theta = np.zeros(self.n, np.float32)
        for weight, _ in FlatViews(self.sizes).of(theta):
            fan_in, fan_out = weight.shape
            if self._bounded:
                limit = math.sqrt(6 / (fan_in + fan_out))
                weight[...] = rng.uniform(-limit, limit, weight.shape)
            else:
                rng.standard_normal(out=weight, dtype=np.float32)
                weight *= np.float32(math.sqrt(2 / fan_in))
        return theta

    def gradient_spans(self) -> tuple[Span, ...]:
        """Return the spans in the order in which ``loss_and_grad`` finishes them.

        One for each layer, weight and bias together, the last layer first.

        >>> MLP([2, 3, 2], batch_size=4).gradient_spans()
        (Span(start=9, stop=17), Span(start=0, stop=9))
        """
        return self._spans[::-1]

    def matrices(self) -> tuple[Matrix, ...]:
        """Return the place of each layer's weight in the flat vector, in order.

        >>> MLP([2, 3, 2], batch_size=4).matrices()
        (Matrix(start=0, rows=2, columns=3), Matrix(start=9, rows=3, columns=2))
        """
        return FlatViews(self.sizes).matrices()

    def tensors(self, theta: FloatArray) -> dict[str, FloatArray]:
        """Return named views of ``theta``: ``layers.0.weight`` (in, out), ``layers.0.bias``, …."""
        layers = FlatViews(self.sizes).of(theta)
        return {
            f"layers.{i}.{name}": tensor
            for i, layer in enumerate(layers)
            for name, tensor in layer._asdict().items()
        }

    def layers(self) -> tuple[Dense, ...]:
        """Return the dense layers, from the input to the output; see ``Chain``.

        >>> [(layer.inputs, layer.outputs) for layer in MLP([2, 3, 2], batch_size=4).layers()]
        [(2, 3), (3, 2)]
        """
        return self._layers

    def loss(self, outputs: FloatArray, targets: AnyArray, rows: int) -> float:
        """Return the loss of some rows of a batch of ``rows``; see ``Chain``."""
        return self._loss(outputs, targets, rows)

    @np.errstate(all="ignore")  # a diverging run shows in its loss, not in warnings
    def loss_and_grad(
        self,
        theta: FloatArray,
        x: FloatArray,
        y: AnyArray,
        out: FloatArray,
        ready: Callable[[int], None] | None = None,
    ) -> float:
        """Return the mean loss of a batch and write its gradient; allocates no array.

        The layers of the last ``theta`` and ``out`` are cached, so callers that pass the same two
        vectors every time pay for the views once.

        Args:
            theta: parameters ``(n,)``, float32.
            x: inputs ``(b, d)``, float32, ``b <= batch_size``; an empty batch has loss 0 and
                gradient 0, as it adds nothing to a mean weighted by rows.
            y: class labels ``(b,)``, or targets ``(b, k)`` under the squared loss.
            out: receives the gradient of the mean, ``(n,)``, float32.
            ready: called with i as soon as the i-th of ``gradient_spans`` is finished, once each
                and in order: its gradient is final and its parameters are not read any more, so
                both may be overwritten while the lower layers are still computed. Not called for
                an empty batch.

        Returns:
            The mean loss, NaN or infinite on overflow.

        Raises:
            ConfigError: if shapes or labels do not fit the model.
        """
        params, gradients = self._parameters.of(theta), self._gradient.of(out)
        if len(x) == 0:
            out.fill(0)
            return 0.0
        buffers = self._buffers_for(x, y)
        self._forward(params, x, buffers)
        loss = self._loss(buffers.values[-1], y)
        self._backward(params, x, buffers, gradients, ready)
        return loss

    @np.errstate(all="ignore")
    def evaluate(self, theta: FloatArray, x: FloatArray, y: AnyArray) -> tuple[float, float | None]:
        """Return mean loss and accuracy over any number of rows, a batch at a time.

        Args:
            theta: ``(n,)`` float32.
            x: ``(samples, features)`` float32.
            y: ``(samples,)`` labels, or ``(samples, outputs)`` float32 targets.

        Returns:
            The mean loss and the accuracy, the fraction of rows whose largest output is the
            label's; None if targets are not labels. NaN for no rows.
        """
        params = self._parameters.of(theta)
        total, right = 0.0, 0
        for start in range(0, len(x), self.batch_size):
            part, labels = x[start : start + self.batch_size], y[start : start + self.batch_size]
            buffers = self._buffers_for(part, labels)
            self._forward(params, part, buffers)
            outputs = buffers.values[-1]
            if labels.ndim == 1:
                right += int(np.count_nonzero(outputs.argmax(axis=1) == labels))
            total += self._loss(outputs, labels) * len(part)
        rows = len(x)
        accuracy = (right / rows if rows else math.nan) if y.ndim == 1 else None
        return (total / rows if rows else math.nan), accuracy

    @np.errstate(all="ignore")
    def outputs(self, theta: FloatArray, x: FloatArray) -> FloatArray:
        """Return the outputs for any number of rows, before the loss: (rows, outputs) float32.

        Args:
            theta: ``(n,)`` float32.
            x: ``(rows, features)`` float32.
        """
        params, found = self._parameters.of(theta), np.empty((len(x), self.sizes[-1]), np.float32)
        for start in range(0, len(x), self.batch_size):
            part = x[start : start + self.batch_size]
            buffers = self._buffers_for(part, part)
            self._forward(params, part, buffers)
            found[start : start + len(part)] = buffers.values[-1]
        return found

    def _buffers_for(self, x: FloatArray, y: AnyArray) -> Buffers:
        """Return buffers with the number of rows of ``x``, after a check of ``x`` and ``y``."""
        rows = len(x)
        if x.shape != (rows, self.sizes[0]) or x.dtype != np.float32 or len(y) != rows:
            raise ConfigError(
                f"inputs are {x.dtype} {x.shape} with {len(y)} targets, expected float32 rows "
                f"of {self.sizes[0]}"
            )
        if rows > self.batch_size:
            raise ConfigError(f"a batch of {rows} rows for a model made for {self.batch_size}")
        if rows not in self._buffers:
            whole = self._buffers.get(self.batch_size)
            if whole is None:  # made on first use: a model that is split into stages needs none
                whole = self._buffers[self.batch_size] = Buffers.new(self.batch_size, self._layers)
            self._buffers[rows] = whole.first(rows)
        return self._buffers[rows]

    def _forward(self, params: tuple[Vector, ...], x: FloatArray, buffers: Buffers) -> None:
        """Fill the buffers' values from the inputs ``x``."""
        h = x
        for layer, own, y, saved in zip(
            self._layers, params, buffers.values, buffers.saved, strict=True
        ):
            layer.forward(h, own, y, saved)
            h = y

    def _backward(
        self,
        params: tuple[Vector, ...],
        x: FloatArray,
        buffers: Buffers,
        gradients: tuple[Vector, ...],
        ready: Callable[[int], None] | None,
    ) -> None:
        """Write every layer's gradient; the outputs hold that of the loss."""
        last = len(self._layers) - 1
        delta = buffers.values[-1]
        for i in range(last, -1, -1):
            layer, y, saved = self._layers[i], buffers.values[i], buffers.saved[i]
            h, below = (buffers.values[i - 1], buffers.deltas[i - 1]) if i else (x, None)
            layer.backward_input(delta, h, y, saved, params[i], below)
            layer.backward_weight(delta, h, y, saved, gradients[i])
            if ready is not None:  # not before: the delta below was made of this layer's weight
                ready(last - i)
            if below is not None:
                delta = below


def _named(registry: Mapping[str, PartT], name: str, kind: str) -> PartT:
    """Look ``name`` up.

    Raises:
        ConfigError: if it is not there.
    """
    if name not in registry:
        raise ConfigError(f"unknown {kind} {name!r}, expected one of {', '.join(registry)}")
    return registry[name]
