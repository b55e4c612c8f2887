"""A model as a chain of layers, so that it can be split into stages. Pure: the protocol.

A problem whose model is a chain returns its layers one by one. Then psrt decides which of them a
rank computes, in which order, and where inputs and gradients lie. All arrays are float32,
C-contiguous and made by the caller: a layer writes into them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from itertools import accumulate, pairwise
from operator import index
from typing import Any, Protocol

from psrt.core.arrays import FloatArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span


class ChainLayer(Protocol):
    """One layer y = f(x; params), which treats each row by itself.

    Rows of a batch come in micro-batches, and backward passes may come late. So what a layer needs
    for them must be in the arrays that it is given, never in the layer.
    """

    @property
    def n(self) -> int:
        """Number of parameters."""

    @property
    def inputs(self) -> int:
        """Elements of a row of x."""

    @property
    def outputs(self) -> int:
        """Elements of a row of y."""

    @property
    def saved(self) -> int:
        """Elements per row that are kept for the backward passes, beside x and y."""

    def forward(self, x: FloatArray, params: Vector, out: FloatArray, saved: FloatArray) -> None:
        """Write y.

        Args:
            x: (b, inputs), only read, as in the other methods.
            params: (n,), only read, as in the other methods.
            out: (b, outputs), receives y.
            saved: (b, saved), kept for the backward passes of these rows.
        """

    def backward_input(
        self,
        dy: FloatArray,
        x: FloatArray,
        y: FloatArray,
        saved: FloatArray,
        params: Vector,
        dx: FloatArray | None,
    ) -> None:
        """Write the gradient of x; called before ``backward_weight`` of the same rows.

        Args:
            dy: (b, outputs), the gradient of y. It may be overwritten, as may ``saved``:
                ``backward_weight`` gets both as they are left here.
            x: (b, inputs).
            y: (b, outputs), only read: it is the next layer's x.
            saved: (b, saved).
            params: (n,), those of the forward pass.
            dx: (b, inputs), receives the gradient; None in the first layer, which needs none.
        """

    def backward_weight(
        self, dy: FloatArray, x: FloatArray, y: FloatArray, saved: FloatArray, out: Vector
    ) -> None:
        """Write the parameters' gradient, the sum over these rows, into ``out`` (n,).

        The rows may be those of several micro-batches at once.
        """


class SliceLayer(ChainLayer, Protocol):
    """One slice of a layer that is split over several ranks.

    The caller sums its partial results over all slices, before they are used.
    """

    @property
    def sums_forward(self) -> bool:
        """Whether ``out`` of ``forward`` is one term of the sum that ``finish`` makes into y."""

    @property
    def sums_backward(self) -> bool:
        """Whether ``dx`` of ``backward_input`` is one term of the sum that is the gradient of x."""

    def finish(self, out: FloatArray, params: Vector, saved: FloatArray) -> None:
        """Make y of the sum of all terms, in place; called if ``sums_forward`` is true."""


class SliceGroup(Protocol):
    """Reductions over the slices of a layer, in place; all slices end with equal bits.

    A reduction may begin with the call, or when its result is awaited.
    """

    def sum(self, array: FloatArray) -> Awaitable[None]:
        """Replace a C-contiguous array by the sum over all slices."""

    def max(self, array: FloatArray) -> Awaitable[None]:
        """Replace an array by the largest over all slices, element by element."""


class Chain(Protocol):
    """The methods that a problem has beside those of ``Problem`` if its model can be split.

    Its batches are pairs (x, targets), x (b, inputs) float32. Its ``loss_and_grad`` computes the
    same result with the same layers.
    """

    def layers(self) -> Sequence[ChainLayer]:
        """Return the layers from the input to the output.

        In theta the parameters of each layer follow those of the previous one.
        """

    def loss(self, outputs: FloatArray, targets: Any, rows: int) -> float:
        """Return the sum of the loss over given rows, divided by ``rows``.

        Args:
            outputs: (b, k), of the last layer; overwritten with the gradient of the returned loss.
            targets: of these rows, a slice of the batch's.
            rows: of the whole batch, of which a micro-batch is a part.
        """


def chain_layers(problem: object, n: int) -> tuple[ChainLayer, ...]:
    """Return the layers of a problem whose model is a chain of ``n`` parameters.

    Raises:
        ConfigError: if the model is not a chain, or layers do not fit each other or the parameters.
    """
    name = type(problem).__name__
    missing = [it for it in ("layers", "loss") if not callable(getattr(problem, it, None))]
    if missing:
        raise ConfigError(
            f"the problem, {name}, is not a chain that can be split into stages: it has no "
            + " and no ".join(f"{it}()" for it in missing)
        )
    given = problem.layers()  # type: ignore[attr-defined]
    if not isinstance(given, Iterable):
        raise ConfigError(f"layers() of the problem, {name}, gave no sequence of layers: {given!r}")
    layers: tuple[ChainLayer, ...] = tuple(given)
    if not layers:
        raise ConfigError(f"layers() of the problem, {name}, gave none")
    for i, layer in enumerate(layers):
        for size, least in (("n", 0), ("inputs", 1), ("outputs", 1), ("saved", 0)):
            _check_size(i, size, getattr(layer, size, None), least)
    for i, (below, above) in enumerate(pairwise(layers)):
        if below.outputs != above.inputs:
            raise ConfigError(
                f"layer {i} gives rows of {below.outputs}, and layer {i + 1} takes rows of "
                f"{above.inputs}"
            )
    if (total := sum(layer.n for layer in layers)) != n:
        raise ConfigError(f"the layers have {total} parameters, and theta has {n}")
    return layers


def _check_size(number: int, name: str, size: Any, least: int) -> None:
    try:
        right = index(size) >= least
    except TypeError:
        right = False
    if not right:
        raise ConfigError(
            f"{name} of layer {number} is {size!r}, expected a whole number of at least {least}"
        )


def layer_spans(layers: Sequence[ChainLayer]) -> tuple[Span, ...]:
    """Return the span of each layer's parameters in the vector of all of them."""
    bounds = accumulate((index(layer.n) for layer in layers), initial=0)
    return tuple(Span(start, stop) for start, stop in pairwise(bounds))
