"""All-reduce with gradients, and parameters, shared out: a model is computed layer by layer.

A worker goes through the buckets of layers, forward and back. With ``--shard parameters`` a bucket
is gathered from its owners before it is used, while the one before is computed; it stays until the
place is needed for the next but one, so that on the way back the last two are still there.

.. code-block:: text

    place 0   gather 2 │ forward 2 │ gather 0 │ forward 0, back 0 │ gather 2 │ back 2
    place 1              gather 1    forward 1 │            back 1 │

On the way back the gradient of a bucket goes to its owners, who update at once, while that of the
next one is computed; the one after waits until the place is free. A worker that has no samples, or
has left while others train, gathers and sums along with them, since it owns a part as well.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, sections 5.2 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from psrt.arrays import Vector
from psrt.partition import Span
from psrt.runtime.chain_work import LayerWork
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import ReducePlan, Step, StepResult, Strategy, WaitBreakdown
from psrt.runtime.strategies.buckets import buckets_of
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.strategies.shares import places_of, shares_of
from psrt.runtime.updater import Updater
from psrt.sharding import BUCKETS, Sharing
from psrt.transport.port import Port, Reduction, gradient_of


class LayeredAllReduce(Strategy):
    """Synchronous SGD in which no worker has the whole gradient, or all parameters."""

    def __init__(
        self,
        port: Port,
        updater: Callable[[int], Updater],
        work: LayerWork,
        *,
        shard: Sharing,
        algorithm: str,
        batch_size: int,
        spans: Sequence[Span],
        bucket_bytes: int,
        check_every: int = 0,
        control_algorithm: str | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up; collective.

        Args:
            port: of a job without servers, with room for what this worker holds.
            updater: makes what takes the step, of that many elements.
            work: computes the layers.
            shard: what workers share out.
            algorithm: ``auto`` or the name of an all-reduce.
            batch_size: samples of a full batch.
            spans: of the layers, the last one first.
            bucket_bytes: the smallest bucket but the last, in bytes.
            check_every: updates between two checks that θ is the same everywhere; 0 for none.
            control_algorithm: the all-reduce of the control values; None applies ``algorithm``.
            events: records events for the history; None keeps none.
        """
        buckets = buckets_of(spans, bucket_bytes)
        self._buckets = parts = [bucket.span for bucket in buckets]
        shares = shares_of(port, shard, algorithm, parts)
        self._shares, self._work, self._port, self._events = shares, work, port, events
        numerics = port.theta.size > 0
        #: The optimizer, of the elements that this worker owns.
        self.updater = updater(shares.size if numerics else 0)
        self.memory = shares.memory(port.role_map.n, len(self.updater.optimizer.state))
        self._keeps_parts = shard is Sharing.PARAMETERS
        self.whole = not self._keeps_parts
        self._reducer = reducer = Reducer(
            port,
            self.updater,
            algorithm=algorithm,
            full=batch_size,
            buckets=parts,
            one_theta=not self._keeps_parts,
            check_every=check_every,
            control_algorithm=control_algorithm,
            shares=shares,
            along=self._along,
            events=events,
        )
        self._theta, self._gradient = port.theta, gradient_of(port)
        #: By bucket: its layers from the first one on, as (number, span).
        self._layers = _by_bucket(list(enumerate(spans[::-1])), parts)
        self._gathers: list[Reduction] = []
        if self._keeps_parts:
            self._gathers = [
                port.gather(part, reducer.chosen, at)
                for part, at in zip(parts, shares.gathered, strict=True)
            ]
        #: By place, the bucket whose parameters are there; those that are on their way.
        self._there: list[int | None] = [None] * BUCKETS
        self._coming: set[int] = set()
        n, first = sum(span.size for span in spans), spans[-1].size
        #: Of the work of a step, that of one product with an element.
        self._product = 1.0 / max(3 * n - first, 1)
        self._weight, self._since, self._is_first = 0.0, 0.0, True
        self.updates = 0
        self.plan = ReducePlan(
            reducer.chosen,
            reducer.why,
            len(parts),
            True,
            reducer.control_algorithm,
            what=f"shard: {shard.value}, a worker has {self.memory}",
        )
        port.waiting_for = lambda: "its neighbours in an all-reduce"

    def load(self, initial: Vector) -> None:
        """Take this worker's part of the initial parameters (n,)."""
        if self._theta.size:
            for own, shift in zip(self._shares.owned, self._shares.shifts, strict=True):
                np.copyto(self._theta[own.start + shift : own.stop + shift], own.of(initial))

    def begin(self, step: Step) -> None:
        """Start summing this rank's weight and progress while its gradient is computed."""
        self._weight = self._reducer.weight(step.samples)
        self._reducer.start(self._weight, step)
        self._since = self._port.now()

    async def compute(self, batch: Any) -> float:
        """Compute the gradient of a batch, sum it, and return the mean loss."""
        self._work.begin(batch)
        self._is_first = True
        return await self._pass(computes=True)

    async def _along(self) -> None:
        """Take part in the sums of others with zeros."""
        await self._pass(computes=False)

    async def _pass(self, *, computes: bool) -> float:
        """Go through all buckets, forward and back; return the loss."""
        count, loss = len(self._buckets), 0.0
        self._there = [None] * BUCKETS
        self._want(count - 1)
        for b in reversed(range(count)):
            self._want(b - 1)
            await self._have(b)
            for i, span in self._layers[b] if computes else ():
                await self._do(partial(self._work.forward, i, self._params(b, span)), span.size)
        if computes:
            loss = self._work.loss()
        for b, place in enumerate(places_of(self._buckets)):
            self._want(b + 1)
            await self._have(b)
            await self._reducer.release(b - BUCKETS)
            part = self._buckets[b]
            gradient = self._gradient[place : place + part.size]
            for i, span in self._layers[b][::-1] if computes else ():
                out = gradient[span.start - part.start : span.stop - part.start]
                work = partial(self._work.backward, i, self._params(b, span), out)
                await self._do(work, (2 if span.start else 1) * span.size)
            if not computes:
                gradient[:] = 0.0
            elif self._weight != 1.0:
                np.multiply(gradient, np.float32(self._weight), out=gradient)
            self._reducer.begin()
            self._reducer.poll()
        return loss

    async def _do(self, work: Callable[[], None], products: int) -> None:
        """Compute a layer, and move on what is on its way."""
        first, self._is_first = self._is_first, False
        await self._port.compute_part(products * self._product, work, first=first)
        for b in self._coming:
            self._gathers[b].poll()
        self._reducer.poll()

    def _params(self, b: int, span: Span) -> Vector:
        """Return the parameters of a layer of a bucket."""
        shift = self._shares.gathered[b] - self._buckets[b].start if self._keeps_parts else 0
        return self._theta[span.start + shift : span.stop + shift]

    def _want(self, b: int) -> None:
        """Begin to gather a bucket's parameters, unless there is none, or they are there."""
        if not self._gathers or not 0 <= b < len(self._buckets) or self._there[b % BUCKETS] == b:
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

    async def step(self, step: Step) -> StepResult:
        """Wait for the sums, which ``compute`` has begun, and for the owners' updates."""
        events = self._events
        if events is not None:
            now = self._port.now()
            clock, samples, progress = step
            events.note((events.stepped, now, clock, samples, progress, 0.0, now - self._since))
        await self._reducer.finish(empty=not step.samples)
        self.updates = self._reducer.updates
        return StepResult(step.clock + 1, waiting=WaitBreakdown(reduce=self._reducer.waited))

    async def leave(self, clock: int) -> Sequence[StepResult]:
        """Take part until no worker is training."""
        waited = await self._reducer.join(clock)
        self.updates = self._reducer.updates
        return (StepResult(clock, waiting=WaitBreakdown(reduce=waited)),)

    async def collect(self) -> None:
        """Bring the parameters of all buckets to worker 0, one after the other."""
        if not self._keeps_parts:
            return
        is_first = self._port.role_map.worker_of(self._port.rank) == 0
        model = np.empty(self._port.role_map.n if is_first and self._theta.size else 0, np.float32)
        for b, part in enumerate(self._buckets):
            self._there[b % BUCKETS] = None
            self._want(b)
            await self._have(b)
            if model.size:
                np.copyto(part.of(model), self._params(b, part))
        if is_first:
            self.model = model


def _by_bucket(
    layers: Sequence[tuple[int, Span]], parts: Sequence[Span]
) -> list[list[tuple[int, Span]]]:
    """Return the layers of each bucket, those without parameters with the one that follows.

    >>> _by_bucket([(0, Span(0, 5)), (1, Span(5, 5)), (2, Span(5, 9))], [Span(5, 9), Span(0, 5)])
    [[(1, Span(start=5, stop=5)), (2, Span(start=5, stop=9))], [(0, Span(start=0, stop=5))]]
    """
    found: list[list[tuple[int, Span]]] = [[] for _ in parts]
    last = 0
    for number, span in reversed(layers):
        if span.size:
            last = next(b for b, part in enumerate(parts) if part.start <= span.start < part.stop)
        found[last].insert(0, (number, span))
    return found
