"""A stage that borrows parameters, and memory for gradients, layer by layer. Pure.

``Stage`` is given a vector of all its parameters, and one for their gradient. Here one layer after
another asks for what it needs, and returns it by asking for the next. So the lender may have less
than all of it at a time.

A gradient is taken away as soon as it is written, so nothing can be added to it. So each layer's
gradient must be one product: of a batch in one micro-batch, or with weights deferred.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import numpy as np

from psrt.core.arrays import AnyArray, FloatArray, Vector
from psrt.model.chain import SliceLayer
from psrt.model.stage import Ready, Stage
from psrt.model.stage_memory import Slot
from psrt.pipeline.step import ALL


class Use(NamedTuple):
    """A step's use of a layer: it reads its parameters, or writes its gradient."""

    #: Number of the layer.
    layer: int
    writes: bool


class Lender(Protocol):
    """Lends the parameters of layers, by number; asked in the order of a list of ``Use``."""

    async def params(self, i: int) -> Vector:
        """Return the parameters of a layer, valid until those of another layer are asked for."""

    async def room(self, i: int) -> Vector:
        """Return where the gradient of a layer should be written."""

    def final(self, i: int) -> None:
        """Take away the gradient of a layer, which has been written."""


class LentStage(Stage):
    """A stage that borrows from a ``Lender``, once ``borrow`` was called."""

    _lender: Lender | None = None
    #: Number of the first layer at the lender.
    _first = 0
    #: Whether parameters are borrowed, too; otherwise they are those given to ``begin``.
    _gathers = False

    def borrow(
        self,
        lender: Lender,
        first: int,
        *,
        gathers: bool,
        spend: Callable[[float], Awaitable[None]],
    ) -> None:
        """Borrow from now on.

        Args:
            lender: of gradients, and of parameters if they are not all here.
            first: the lender's number of the first layer.
            gathers: whether it lends parameters.
            spend: lets the time of the current pass go by, up to a share of it.
        """
        self._lender, self._first, self._gathers = lender, first, gathers
        self._spend = spend

    def begin(
        self, rows: int, params: Vector, gradient: Vector, x: FloatArray | None = None
    ) -> None:
        """Begin a step; see ``Stage``. Arguments that are borrowed instead are not used."""
        if self._gathers:
            self._arrange(rows, (), x)
            self.collect(gradient)
        else:
            super().begin(rows, params, gradient, x)

    def collect(self, gradient: Vector) -> None:
        """Have the next gradient written where the lender says; ``gradient`` is not used."""
        if self._lender is None:
            super().collect(gradient)
        else:
            self._gradient, self._written = [gradient[:0]] * len(self.layers), False

    async def forward(self, m: int) -> None:
        """Compute the output of a micro-batch; if it has no rows, only borrow, as others do."""
        if self._gathers and self._slot(m) is None:
            for i in range(len(self.layers)):
                await self._params_of(i, ())
        else:
            await super().forward(m)

    def backward_weight(self, m: int, ready: Ready | None = None) -> Awaitable[None] | None:
        """Write the gradient of the parameters, after ``backward_input``; to be awaited."""
        if self._lender is None:
            return super().backward_weight(m, ready)
        return self._weights(m, ready)

    async def _params_of(self, i: int, views: tuple[Vector, ...]) -> Vector:
        if not self._gathers:
            return views[i]
        assert self._lender is not None
        return await self._lender.params(self._first + i)

    async def _forward(self, slot: Slot, params: tuple[Vector, ...]) -> None:
        if not self._gathers:
            await super()._forward(slot, params)
            return
        self.forwards += 1
        for i in range(len(self.layers)):
            own = await self._params_of(i, params)
            self._layer_up(slot, own, i)
            if self._sums_up[i]:
                await self._reduce.sum(slot.values[i + 1])
                self._finish_layer(slot, own, i)

    async def _backward(
        self, m: int, targets: AnyArray | None, *, weights: bool, ready: Ready | None
    ) -> float:
        if self._lender is None:
            return await super()._backward(m, targets, weights=weights, ready=ready)
        place = m % self.shape.micro_batches
        slot, params, loss = self._slot(m), self._views[place], 0.0
        if slot is not None and self.shape.recompute:
            self.recomputed += 1
            await self._forward(self._memory.again(slot), params)
        if slot is not None and self._loss is not None:
            loss = await self._loss_of(slot, targets, self._of[place])
        for i in reversed(range(len(self.layers))):
            if slot is None and not self._gathers:
                break
            own = await self._params_of(i, params)
            if slot is None:
                continue
            waiting = self._layer_down(slot, own, i)
            if weights:
                await self._weight_of(i, slot, ready)
            if waiting is not None:
                await waiting
        if weights:
            self._written |= slot is not None
            self._alive.discard(m)
        return loss

    async def _weights(self, m: int, ready: Ready | None) -> None:
        slot = self._whole if m == ALL else self._slot(m)
        if slot is not None:
            for i in reversed(range(len(self.layers))):
                await self._weight_of(i, slot, ready)
            self._written = True
        if m == ALL:
            self._alive.clear()
        else:
            self._alive.discard(m)

    async def _weight_of(self, i: int, slot: Slot, ready: Ready | None) -> None:
        """Write the gradient of a layer, and hand it to the lender."""
        assert self._lender is not None
        assert not self._written, "a gradient that was given away cannot be added to"
        self._gradient[i] = await self._lender.room(self._first + i)
        with np.errstate(all="ignore"):
            self._weight(i, slot)
        # Otherwise others would have its sum, in virtual time, before it is computed.
        start = self.gradient_spans()[-1 - i].start
        await self._spend(1.0 - start / max(self.n, 1))
        if ready is not None:
            ready(len(self.layers) - 1 - i)
        self._lender.final(self._first + i)

    @np.errstate(all="ignore")  # a diverging run shows in its loss, not in warnings
    def _layer_up(self, slot: Slot, params: Vector, i: int) -> None:
        self.layers[i].forward(slot.values[i], params, slot.values[i + 1], slot.saved[i])

    @np.errstate(all="ignore")
    def _finish_layer(self, slot: Slot, params: Vector, i: int) -> None:
        layer: SliceLayer = self.layers[i]  # type: ignore[assignment]
        layer.finish(slot.values[i + 1], params, slot.saved[i])

    @np.errstate(all="ignore")
    def _layer_down(self, slot: Slot, params: Vector, i: int) -> Awaitable[None] | None:
        """Go back through a layer; return the sum over slices that must be awaited, if any."""
        values, dy, dx = slot.values, slot.deltas[i + 1], slot.deltas[i]
        assert dy is not None
        self.layers[i].backward_input(dy, values[i], values[i + 1], slot.saved[i], params, dx)
        return self._reduce.sum(dx) if dx is not None and self._sums_down[i] else None
