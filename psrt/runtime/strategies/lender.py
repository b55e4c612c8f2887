"""Lends a worker the layer that it computes, if no worker has all layers.

Layers are in buckets. With ``shard=parameters`` a bucket is gathered from its owners before it is
used, while the one before is computed; it stays until its place is needed for another one:

.. code-block:: text

    place 0   gather 2 │ forward 2 │ gather 0 │ forward 0, back 0 │ gather 2 │ back 2
    place 1              gather 1    forward 1 │            back 1 │

The gradient of a bucket goes to its owners, which update immediately, while that of the next one is
computed; the one after that waits until the place is free. All workers use the layers of a step in
the same order, which is known in advance. So a worker that has no samples, or has left while others
train, can take part in the gathers and sums.

**No deadlock.** With a split model, a worker also waits for the other stages of its copy. All
copies of a stage do the same in the same order, and a worker that waits for a bucket needs the
others only to reach the place where they wait for it, too. So an awaited worker is behind in that
order, and waits, if at all, only for something earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from psrt.core.arrays import Vector, read_only
from psrt.core.partition import Span
from psrt.core.sharding import BUCKETS, Sharing
from psrt.model.lent_stage import Use
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.strategies.shares import Shares, places_of
from psrt.transport.port import Port, Reduction, gradient_of


class BucketLender:
    """One worker's buckets, step after step; a ``psrt.model.lent_stage.Lender``."""

    def __init__(
        self,
        port: Port,
        reducer: Reducer,
        shares: Shares,
        layers: Sequence[Span],
        uses: Sequence[Use],
        look: Callable[[int, Vector], None],
    ) -> None:
        """Make the plans; collective.

        Args:
            port: with room for what this worker holds.
            reducer: sums the buckets.
            shares: what this worker owns of them.
            layers: by number, ascending: the parameters of each.
            uses: of the layers, in each step.
            look: called with the gradient of a layer, and its place, before it is summed.
        """
        self._reducer, self._shares, self._layers, self._uses = reducer, shares, layers, uses
        self._look = look
        self._buckets = shares.buckets
        #: By layer its bucket, and by bucket the layer whose gradient completes it.
        self._bucket_of = bucket_numbers(layers, self._buckets)
        self._lowest = [self._bucket_of.index(b) for b in range(len(self._buckets))]
        self._theta, self._gradient = port.theta, gradient_of(port)
        #: The same, for layers.
        self._read = read_only(port.theta)
        self._places = places_of(self._buckets)
        self._gathers: list[Reduction] = []
        if shares.shard is Sharing.PARAMETERS:
            self._gathers = [
                port.gather(part, reducer.chosen, at)
                for part, at in zip(self._buckets, shares.gathered, strict=True)
            ]
        #: The buckets whose parameters a step reads, one after the other, and which is read now.
        self._reads = [b for b, _ in groupby(self._bucket_of[i] for i, w in uses if not w)]
        self._at = -1
        #: By place, the bucket whose parameters are there; those that are on their way.
        self._there: list[int | None] = [None] * BUCKETS
        self._coming: set[int] = set()
        #: The bucket whose gradient is being written, and the weight of gradients.
        self._written, self._weight = -1, 1.0

    def begin(self, weight: float) -> None:
        """Begin a step, whose gradient counts with a weight."""
        self._there = [None] * BUCKETS
        self._at = self._written = -1
        self._weight = weight

    async def params(self, i: int) -> Vector:
        """Return the parameters of a layer; they last until those of another one are asked for."""
        if self._gathers:
            b = self._bucket_of[i]
            if self._at < 0 or self._reads[self._at] != b:
                self._at += 1
            assert self._reads[self._at] == b, "layers are used in another order than all agreed on"
            self._want(b)
            following = self._reads[self._at + 1 : self._at + 2]
            if following and (following[0] - b) % BUCKETS:  # else it needs this one's place
                self._want(following[0])
            await self._have(b)
        return self._params(self._bucket_of[i], self._layers[i], self._read)

    async def room(self, i: int) -> Vector:
        """Return where the gradient of a layer is to be written, once that place is free."""
        b = self._bucket_of[i]
        if b != self._written:
            await self._reducer.release(b - BUCKETS)
            self._written = b
        return self._room(i)

    def final(self, i: int) -> None:
        """Begin the sum of a layer's bucket, if the layer completes it."""
        b = self._bucket_of[i]
        self._look(self._layers[i].start, self._room(i))
        if i == self._lowest[b]:
            if self._weight != 1.0:
                place = self._places[b]
                gradient = self._gradient[place : place + self._buckets[b].size]
                np.multiply(gradient, np.float32(self._weight), out=gradient)
            self._reducer.begin()
        self.poll()

    def poll(self) -> None:
        """Move on what is on its way."""
        for b in self._coming:
            self._gathers[b].poll()
        self._reducer.poll()

    async def along(self) -> None:
        """Take part in a step of others, with a gradient of zeros."""
        self.begin(1.0)
        for i, writes in self._uses:
            if writes:
                (await self.room(i))[:] = 0.0
                self.final(i)
            else:
                await self.params(i)

    async def collect(self, model: Vector) -> None:
        """Bring the parameters of all buckets, one after the other, to where ``model`` is (n,).

        Args:
            model: empty where they are not wanted.
        """
        for b, part in enumerate(self._buckets):
            self._there[b % BUCKETS] = None
            self._want(b)
            await self._have(b)
            if model.size:
                np.copyto(part.of(model), self._params(b, part, self._theta))

    def _room(self, i: int) -> Vector:
        """Return where the gradient of a layer is written."""
        b, span = self._bucket_of[i], self._layers[i]
        shift = self._places[b] - self._buckets[b].start
        return self._gradient[span.start + shift : span.stop + shift]

    def _params(self, b: int, span: Span, theta: Vector) -> Vector:
        """Return the parameters of a span of a bucket, of those that this worker has."""
        shift = self._shares.gathered[b] - self._buckets[b].start if self._gathers else 0
        return theta[span.start + shift : span.stop + shift]

    def _want(self, b: int) -> None:
        """Begin to gather a bucket's parameters, unless they are there."""
        if self._there[b % BUCKETS] == b:
            return
        self._there[b % BUCKETS] = b
        own, shift = self._shares.owned[b], self._shares.shifts[b]
        at = self._shares.gathered[b] - self._buckets[b].start
        mine = self._theta[own.start + shift : own.stop + shift]
        np.copyto(self._theta[own.start + at : own.stop + at], mine)
        self._gathers[b].begin()
        self._coming.add(b)

    async def _have(self, b: int) -> None:
        """Wait until a bucket's parameters are there."""
        if b in self._coming:
            await self._gathers[b].finish()
            self._coming.remove(b)


def bucket_numbers(layers: Sequence[Span], parts: Sequence[Span]) -> list[int]:
    """Return the bucket of each layer; those without parameters have that of the one behind.

    >>> bucket_numbers([Span(0, 5), Span(5, 5), Span(5, 9)], [Span(5, 9), Span(0, 5)])
    [1, 0, 0]
    """
    found, last = [], 0
    for span in reversed(layers):
        if span.size:
            last = next(b for b, part in enumerate(parts) if part.start <= span.start < part.stop)
        found.append(last)
    return found[::-1]
