"""The computations of one stage of a chain. Pure: the caller says which micro-batch is where.

A step starts with ``begin``. Then for each micro-batch, in this order:

- the caller puts its input into ``input(m)``, unless all inputs were given at the beginning;
- ``forward`` fills ``output(m)``;
- the caller puts the gradient of the output into ``output_gradient(m)``;
- ``backward`` fills ``input_gradient(m)`` and adds to the gradient of the parameters.

The caller may interleave micro-batches as a pipeline's schedule wants. Gradients of weights must be
in ascending order of micro-batches, so that a sum has the same bits under every schedule.

``forward`` and ``backward`` are coroutines, as the layers of a slice wait for sums over all slices;
without slices they never wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from itertools import pairwise
from typing import Any, cast

import numpy as np

from psrt.core.arrays import AnyArray, FloatArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span, even_spans
from psrt.model.chain import ChainLayer, SliceGroup, SliceLayer, layer_spans
from psrt.model.layers import SpanViews
from psrt.model.stage_memory import Boundary, Empty, Slot, StageMemory, StageShape, sums
from psrt.pipeline.step import ALL

Ready = Callable[[int], None]


#: Outputs, targets and rows of the batch: see ``Chain.loss``; the loss of a slice is awaited.
StageLoss = Callable[[FloatArray, Any, int], float | Awaitable[float]]


class Stage:
    """Some consecutive layers of a chain, with the memory of the micro-batches in flight.

    >>> from psrt.model import MLP
    >>> model = MLP([2, 3, 2], batch_size=4)
    >>> stage = Stage(model.layers()[:1], StageShape(rows=4, micro_batches=2))
    >>> stage.n, stage.activation_bytes
    (9, 104)
    """

    def __init__(
        self,
        layers: Sequence[ChainLayer],
        shape: StageShape,
        *,
        loss: StageLoss | None = None,
        group: SliceGroup | None = None,
        boundary: Boundary | None = None,
        summed: Empty | None = None,
    ) -> None:
        """Reserve the memory of a step.

        Args:
            layers: consecutive ones, at least one.
            shape: of batches and of what is kept.
            loss: of the last stage; None in the others.
            group: for layers that are slices.
            boundary: arrays of the caller to use.
            summed: makes arrays that are summed over slices; None makes them like all others.

        Raises:
            ConfigError: if the arrays do not fit the layers.
        """
        assert layers, "a stage has at least one layer"
        self.layers, self.shape = tuple(layers), shape
        self._loss, self._group = loss, group
        self._memory = StageMemory(layers, shape, boundary, summed)
        self._spans = layer_spans(layers)
        #: Number of parameters.
        self.n = self._spans[-1].stop
        self._params, self._gradients = SpanViews(self._spans), SpanViews(self._spans)
        self._sums_up = [sums(layer, "sums_forward") for layer in layers]
        self._sums_down = [sums(layer, "sums_backward") for layer in layers]
        self._sums_down[0] &= not shape.first
        #: Layers between two sums, as (first, last + 1), upwards and downwards.
        self._runs_up = _runs(self._sums_up)
        self._runs_down = [
            (len(layers) - i, len(layers) - j) for i, j in _runs(self._sums_down[::-1])
        ]
        #: The place of each micro-batch, its parameters, and the rows that its loss is divided by.
        self._slots: list[Slot | None] = [None] * shape.micro_batches
        self._views: list[tuple[Vector, ...]] = [()] * shape.micro_batches
        self._of: list[int] = [0] * shape.micro_batches
        self._batches: dict[int, list[Slot | None]] = {}
        self._whole: Slot | None = None
        self._gradient: list[Vector] = []
        self._written = False
        self._scratch: tuple[Vector, ...] = ()
        self._alive: set[int] = set()
        #: The most micro-batches whose activations were kept at once.
        self.most_alive = 0
        #: Forward passes of micro-batches so far, including recomputed ones.
        self.forwards = 0
        #: The number of those that were recomputed.
        self.recomputed = 0

    @property
    def computes_loss(self) -> bool:
        """Whether this is the last stage."""
        return self._loss is not None

    def gradient_spans(self) -> tuple[Span, ...]:
        """Return the layers' spans, the last layer first: the order in which they are ready."""
        return self._spans[::-1]

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations and their gradients, as allocated."""
        return self._memory.nbytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the gradient of one layer and one micro-batch, before it is added."""
        return max((it.nbytes for it in self._scratch), default=0)

    def begin(
        self, rows: int, params: Vector, gradient: Vector, x: FloatArray | None = None
    ) -> None:
        """Begin a step.

        Args:
            rows: of the batch, split into micro-batches by ``even_spans``. Micro-batches without
                rows are skipped; without any row the gradient is zero.
            params: (n,), which must not change before the last pass of the step.
            gradient: (n,), receives the sum over all micro-batches.
            x: (rows, inputs), C-contiguous, of a stage whose ``shape`` has inputs ``given``: must
                not change before the last pass of the step.
        """
        self._arrange(rows, self._params.of(params), x)
        self.collect(gradient)

    def _arrange(self, rows: int, views: tuple[Vector, ...], x: FloatArray | None) -> None:
        """Assign places to the micro-batches of a batch, all with the same parameters."""
        if rows > self.shape.rows:
            raise ConfigError(f"a batch of {rows} rows for a stage made for {self.shape.rows}")
        if rows not in self._batches:
            spans = even_spans(rows, self.shape.micro_batches)
            self._batches[rows] = [self._place(m, span) for m, span in enumerate(spans)]
        self._slots = self._batches[rows]
        count = self.shape.micro_batches
        self._views, self._of = [views] * count, [rows] * count
        self._whole = self._memory.slot(0, rows, 0, 0) if rows else None
        if x is not None and self._whole is not None:
            spans = even_spans(rows, count)
            self._slots = [
                slot and _with_input(slot, x[slice(*span)])
                for slot, span in zip(self._slots, spans, strict=True)
            ]
            self._whole = _with_input(self._whole, x)
        self._alive.clear()

    def admit(self, m: int, rows: int, params: Vector, x: FloatArray | None = None) -> None:
        """Begin batch m as one micro-batch: the ``begin`` of an asynchronous schedule.

        It takes the place of batch m − ``slots``, the number of batches in flight. A second call
        for m switches to other memory with its parameters.

        Args:
            m: the number of the batch, counted from 0.
            rows: of the batch, at most ``shape.micro_rows``.
            params: (n,), for its forward and for its backward pass.
            x: as in ``begin``.
        """
        if rows > self.shape.micro_rows:
            raise ConfigError(f"a batch of {rows} rows for slots of {self.shape.micro_rows}")
        place = m % self.shape.micro_batches
        start = m * self.shape.micro_rows % self.shape.kept_rows
        self._slots = list(self._slots)
        slot = self._memory.slot(m, rows, start, start) if rows else None
        self._slots[place] = slot if slot is None or x is None else _with_input(slot, x)
        self._views[place], self._of[place] = self._params.of(params), rows

    def collect(self, gradient: Vector) -> None:
        """Have the next gradient written into ``gradient`` (n,), and later ones added to it."""
        self._gradient, self._written = list(self._gradients.of(gradient)), False

    def gradient(self, i: int) -> Vector:
        """Return the gradient of the i-th of ``gradient_spans``, as far as it is computed."""
        return self._gradient[-1 - i]

    def _place(self, m: int, span: Span) -> Slot | None:
        start, kept = span.start, self.shape.kept_rows
        if kept < self.shape.rows:  # slots take turns
            start = m * self.shape.micro_rows % kept
        return self._memory.slot(m, span.size, start, span.start) if span.size else None

    def _slot(self, m: int) -> Slot | None:
        return self._slots[m % self.shape.micro_batches]

    def rows(self, m: int) -> int:
        """Return the rows of micro-batch m; without rows it has no arrays and no passes."""
        slot = self._slot(m)
        return 0 if slot is None else slot.rows

    def input(self, m: int) -> FloatArray:
        """Return the array for the input of micro-batch m, (rows, inputs), kept until the end."""
        return _there(self._slot(m)).values[0]

    def output(self, m: int) -> FloatArray:
        """Return the array that ``forward`` writes the output of micro-batch m to, (rows, outputs).

        If activations are recomputed, and the array is the stage's own, it is valid until the next
        pass.
        """
        return _there(self._slot(m)).values[-1]

    def output_gradient(self, m: int) -> FloatArray:
        """Return the array for the output's gradient, which ``backward`` overwrites."""
        found = _there(self._slot(m)).deltas[-1]
        assert found is not None
        return found

    def input_gradient(self, m: int) -> FloatArray:
        """Return the array that ``backward`` writes the input's gradient to; not in stage 0.

        An array of the stage itself is valid until the next backward pass.
        """
        found = _there(self._slot(m)).deltas[0]
        assert found is not None, "the model's input has no gradient"
        return found

    async def forward(self, m: int) -> None:
        """Compute the output of micro-batch m from its input."""
        slot = self._slot(m)
        if slot is None:
            return
        self._alive.add(m)
        self.most_alive = max(self.most_alive, len(self._alive))
        assert len(self._alive) <= (self.shape.slots or self.shape.micro_batches), "no slot is free"
        await self._forward(slot, self._views[m % self.shape.micro_batches])

    async def backward(
        self, m: int, targets: AnyArray | None = None, ready: Ready | None = None
    ) -> float:
        """Compute the gradient of the input, and add that of the parameters.

        Args:
            m: the micro-batch.
            targets: of its rows, at the last stage, which computes its loss here.
            ready: given in the last backward pass of a step: called with i as soon as the i-th of
                ``gradient_spans`` is final and its parameters are not read any more in this pass.
                Not called for a batch without rows.

        Returns:
            The micro-batch's part of the mean loss at the last stage, otherwise 0.
        """
        return await self._backward(m, targets, weights=True, ready=ready)

    async def backward_input(self, m: int, targets: AnyArray | None = None) -> float:
        """Compute only the gradient of the input; otherwise like ``backward``."""
        return await self._backward(m, targets, weights=False, ready=None)

    @np.errstate(all="ignore")
    def backward_weight(self, m: int, ready: Ready | None = None) -> Awaitable[None] | None:
        """Add the gradient of the parameters, after ``backward_input``.

        Args:
            m: the micro-batch, or ``ALL`` of the step in one product for each layer.
            ready: as in ``backward``.

        Returns:
            An awaitable, if there is anything to wait for; here None.
        """
        slot = self._whole if m == ALL else self._slot(m)
        assert m != ALL or self.shape.kept_rows == self.shape.rows, (
            "rows lie in turns, not side by side"
        )
        last, any_rows = len(self.layers) - 1, self._of[m % self.shape.micro_batches] > 0
        for i in range(last, -1, -1):
            if slot is not None:
                self._weight(i, slot)
            elif not any_rows:
                self._gradient[i].fill(0)
            if ready is not None and any_rows:
                ready(last - i)
        self._written |= slot is not None
        if m == ALL:
            self._alive.clear()
        else:
            self._alive.discard(m)
        return None

    async def _forward(self, slot: Slot, params: tuple[Vector, ...]) -> None:
        self.forwards += 1
        for start, stop in self._runs_up:
            self._layers_up(slot, params, start, stop)
            if self._sums_up[stop - 1]:
                await self._reduce.sum(slot.values[stop])
                self._finish(slot, params, stop - 1)

    @np.errstate(all="ignore")  # a diverging run shows in its loss, not in warnings
    def _layers_up(self, slot: Slot, params: tuple[Vector, ...], start: int, stop: int) -> None:
        values, saved, layers = slot.values, slot.saved, self.layers
        for i in range(start, stop):
            layers[i].forward(values[i], params[i], values[i + 1], saved[i])

    @np.errstate(all="ignore")
    def _finish(self, slot: Slot, params: tuple[Vector, ...], i: int) -> None:
        layer = cast("SliceLayer", self.layers[i])
        layer.finish(slot.values[i + 1], params[i], slot.saved[i])

    @property
    def _reduce(self) -> SliceGroup:
        assert self._group is not None, "slices of a layer have a group"
        return self._group

    async def _backward(
        self, m: int, targets: AnyArray | None, *, weights: bool, ready: Ready | None
    ) -> float:
        slot, params = self._slot(m), self._views[m % self.shape.micro_batches]
        if slot is None:
            if weights:
                self.backward_weight(m, ready)
            return 0.0
        if self.shape.recompute:
            self.recomputed += 1
            await self._forward(self._memory.again(slot), params)
        loss = 0.0
        if self._loss is not None:
            loss = await self._loss_of(slot, targets, self._of[m % self.shape.micro_batches])
        for top, bottom in self._runs_down:
            waiting = self._layers_down(slot, params, top, bottom, weights, ready)
            if waiting is not None:
                await waiting
        if weights:
            self._written = True
            self._alive.discard(m)
        return loss

    async def _loss_of(self, slot: Slot, targets: AnyArray | None, rows: int) -> float:
        """Return the loss, and leave its gradient for the backward pass.

        The outputs themselves do not change: a layer may read its y there.
        """
        assert self._loss is not None
        outputs = slot.deltas[-1]
        assert outputs is not None
        np.copyto(outputs, slot.values[-1])
        with np.errstate(all="ignore"):
            found = self._loss(outputs, targets, rows)
        value = await found if isawaitable(found) else found
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ConfigError(
                f"loss() of the problem returned {value!r}, expected the loss, a number"
            ) from None

    @np.errstate(all="ignore")
    def _layers_down(
        self,
        slot: Slot,
        params: tuple[Vector, ...],
        top: int,
        bottom: int,
        weights: bool,
        ready: Ready | None,
    ) -> Awaitable[None] | None:
        """Go back through layers ``top - 1`` to ``bottom``; return a sum to await, if any."""
        values, saved, deltas = slot.values, slot.saved, slot.deltas
        last = len(self.layers) - 1
        waiting: Awaitable[None] | None = None
        for i in range(top - 1, bottom - 1, -1):
            layer, dy, dx = self.layers[i], deltas[i + 1], deltas[i]
            assert dy is not None
            layer.backward_input(dy, values[i], values[i + 1], saved[i], params[i], dx)
            if dx is not None and self._sums_down[i]:  # then i is the last one here
                waiting = self._reduce.sum(dx)  # in flight while the weights are computed
            if weights:
                self._weight(i, slot)
                if ready is not None:
                    ready(last - i)
        return waiting

    def _weight(self, i: int, slot: Slot) -> None:
        """Write or add the gradient of layer i."""
        dy = slot.deltas[i + 1]
        assert dy is not None
        values, saved, gradient = slot.values, slot.saved[i], self._gradient[i]
        if not self._written:
            self.layers[i].backward_weight(dy, values[i], values[i + 1], saved, gradient)
            return
        if not self._scratch:
            largest = np.empty(max(span.size for span in self._spans), np.float32)
            self._scratch = tuple(largest[: span.size] for span in self._spans)
        part = self._scratch[i]
        self.layers[i].backward_weight(dy, values[i], values[i + 1], saved, part)
        np.add(gradient, part, gradient)


def _runs(ends: Sequence[bool]) -> list[tuple[int, int]]:
    """Split positions behind each marked one, and at the end.

    >>> _runs([False, True, False])
    [(0, 2), (2, 3)]
    """
    cuts = [0, *(i + 1 for i, marked in enumerate(ends) if marked)]
    return list(pairwise(cuts if cuts[-1] == len(ends) else [*cuts, len(ends)]))


def _with_input(slot: Slot, x: FloatArray) -> Slot:
    return slot._replace(values=(x, *slot.values[1:]))


def _there(slot: Slot | None) -> Slot:
    assert slot is not None, "a micro-batch without rows has no arrays"
    return slot
