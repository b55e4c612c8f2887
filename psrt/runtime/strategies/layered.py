"""All-reduce with sharded gradients and parameters: a model is computed layer by layer.

A worker computes the layers, forward and backward, and ``BucketLender`` provides the vectors of
each layer. If the model is split across ranks it computes the layers of its part in the order of
the schedule; the workers of a cell shard that part.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, sections 5.2 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from psrt.core.arrays import Vector, read_only
from psrt.core.partition import Span
from psrt.core.sharding import Sharing
from psrt.history.folds.worker import WorkerFold
from psrt.model.lent_stage import Use
from psrt.runtime.chain_work import LayerWork
from psrt.runtime.cut_problem import CutProblem
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import ReducePlan, Step, Strategy
from psrt.runtime.strategies.buckets import buckets_of
from psrt.runtime.strategies.lender import BucketLender
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.strategies.shares import shares_of
from psrt.runtime.updater import Updater
from psrt.runtime.weakly import weakly
from psrt.transport.port import Port, gradient_of


class LayeredAllReduce(Strategy):
    """Synchronous SGD in which no worker has the whole gradient, or all parameters."""

    saved = ("_reducer", "own")
    by_element = ("own",)

    def __init__(
        self,
        port: Port,
        updater: Callable[[Sequence[Span]], Updater],
        work: LayerWork | CutProblem,
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
            updater: makes what takes the step, of spans of the parameters.
            work: computes the layers: of the whole model, or of this worker's part.
            shard: what is divided among workers.
            algorithm: ``auto`` or the name of an all-reduce.
            batch_size: samples of a full batch.
            spans: of the layers, the last one first.
            bucket_bytes: the smallest bucket but the last, in bytes.
            check_every: updates between two checks that θ is the same everywhere; 0 for none.
            control_algorithm: the all-reduce of the control values; None applies ``algorithm``.
            events: records events for the history; None keeps none.
        """
        buckets = buckets_of(spans, bucket_bytes)
        parts = [bucket.span for bucket in buckets]
        shares = shares_of(port, shard, algorithm, parts)
        self._shares, self._port, self._events = shares, port, events
        self._work: Any = work
        numerics = port.theta.size > 0
        #: The optimizer, of the elements that this worker owns.
        self.updater = updater(shares.owned if numerics else ())
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
            along=weakly(self._along),
            events=events,
        )
        self._theta, self._gradient = port.theta, gradient_of(port)
        #: θ as the layers of a split model are given it.
        self._read = read_only(port.theta)
        self._layers = layers = spans[::-1]
        self._cut = work if isinstance(work, CutProblem) else None
        uses = _uses(len(layers)) if self._cut is None else self._cut.uses()
        self._lender = BucketLender(port, reducer, shares, layers, uses, weakly(self._look))
        if self._cut is not None:
            self._cut.borrow(self._lender, gathers=self._keeps_parts)
        n, first = sum(span.size for span in spans), spans[-1].size
        #: Of the work of a step, that of one product with an element.
        self._product = 1.0 / max(3 * n - first, 1)
        self._weight, self._since, self._clock, self._is_first = 0.0, 0.0, 0, True
        self.updates = 0
        self.counts = WorkerFold()
        self.plan = ReducePlan(
            reducer.chosen,
            reducer.why,
            len(parts),
            len(parts) > 1,
            reducer.control_algorithm,
            what=f"shard: {shard.value}, a worker has {self.memory}",
        )
        port.waiting_for = lambda: "its neighbours in an all-reduce"

    async def _along(self) -> None:
        await self._lender.along()

    def _look(self, at: int, gradient: Vector) -> None:
        if self.look is not None:
            self.look(at, gradient)

    @property
    def own(self) -> Vector | None:
        """The parameters that this worker keeps and others do not; None where all have all."""
        return self._theta[: self._shares.size] if self._keeps_parts else None

    def load(self, initial: Vector) -> None:
        """Take this worker's part of the initial parameters (n,)."""
        if self._theta.size:
            for own, shift in zip(self._shares.owned, self._shares.shifts, strict=True):
                np.copyto(self._theta[own.start + shift : own.stop + shift], own.of(initial))

    @property
    def owned(self) -> Sequence[Span]:
        """See ``Holding.owned``."""
        return self._shares.owned

    def begin(self, step: Step) -> None:
        """Start summing this rank's weight and progress while its gradient is computed."""
        self._weight, self._clock = self._reducer.weight(step.samples), step.clock
        self._reducer.start(self._weight, step)
        self._since = self._port.now() - step.computed

    async def compute(self, batch: Any) -> float:
        """Compute the gradient of a batch, sum it, and return the mean loss."""
        lender, layers = self._lender, self._layers
        lender.begin(self._weight)
        if self._cut is not None:
            return await self._cut.gradient(self._read, batch, self._gradient, clock=self._clock)
        work: LayerWork = self._work
        work.begin(batch)
        self._is_first = True
        for i, span in enumerate(layers):
            await self._do(partial(work.forward, i, await lender.params(i)), span.size)
        loss = work.loss()
        for i, span in reversed(list(enumerate(layers))):
            own, out = await lender.params(i), await lender.room(i)
            await self._do(partial(work.backward, i, own, out), (2 if i else 1) * span.size)
            lender.final(i)
        return loss

    async def _do(self, work: Callable[[], None], products: int) -> None:
        """Compute a layer, and move on what is on its way."""
        first, self._is_first = self._is_first, False
        await self._port.compute_part(products * self._product, work, first=first)
        self._lender.poll()

    async def step(self, step: Step) -> int:
        """Wait for the sums, which ``compute`` has begun, and for the owners' updates."""
        events = self._events
        if events is not None:
            now = self._port.now()
            clock, samples, progress, *_ = step
            events.note((events.stepped, now, clock, samples, progress, 0.0, now - self._since))
        await self._reducer.finish(empty=not step.samples)
        self.updates = self._reducer.updates
        self.counts.waited(reduce=self._reducer.waited)
        return step.clock + 1

    async def leave(self, clock: int) -> None:
        """Take part until no worker is training."""
        self.counts.waited(reduce=await self._reducer.join(clock, self.at_round))
        self.updates = self._reducer.updates

    async def collect(self) -> None:
        """Bring the parameters of all buckets to worker 0, one after the other."""
        if not self._keeps_parts:
            return
        is_first = self._port.role_map.worker_of(self._port.rank) == 0
        model = np.empty(self._port.role_map.n if is_first and self._theta.size else 0, np.float32)
        await self._lender.collect(model)
        if is_first:
            self.model = model


def _uses(layers: int) -> list[Use]:
    """Return what a step of a whole model does with its layers.

    >>> [*map(tuple, _uses(2))]
    [(0, False), (1, False), (1, False), (1, True), (0, False), (0, True)]
    """
    back = [Use(i, writes) for i in reversed(range(layers)) for writes in (False, True)]
    return [Use(i, False) for i in range(layers)] + back
