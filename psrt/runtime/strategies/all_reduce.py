"""The strategy without servers: mean gradient by a collective, the same step on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from psrt.core.errors import ProtocolError
from psrt.core.partition import Span
from psrt.core.sharding import Sharing, memory
from psrt.history.folds.worker import WorkerFold
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import (
    ReducePlan,
    Step,
    Strategy,
    frame_plan,
)
from psrt.runtime.strategies.buckets import buckets_of
from psrt.runtime.strategies.push_pull import shares_of as work_shares_of
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.strategies.shares import shares_of
from psrt.runtime.updater import Updater
from psrt.runtime.weakly import weakly
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import Port, gradient_of


class AllReduce(Strategy):
    """Synchronous SGD by all-reduce: θ stays the same, to the bit, on all ranks.

    With more than one bucket, the sum of a bucket overlaps the backward pass of the layers below;
    a single bucket is summed at the end.
    """

    saved = ("_reducer",)

    def __init__(
        self,
        port: Port,
        updater: Callable[[Sequence[Span]], Updater],
        *,
        algorithm: str,
        batch_size: int,
        spans: Sequence[Span] = (),
        bucket_bytes: int = 0,
        check_every: int = 0,
        control_algorithm: str | None = None,
        codec: SumCodec | None = None,
        shard: Sharing | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up; collective.

        Args:
            port: of a job without servers.
            updater: makes what takes the step, of spans of the parameters, each on its owner.
            algorithm: ``auto`` or the name of an all-reduce.
            batch_size: samples of a full batch: it has weight 1, so nothing needs scaling.
            spans: parts of the gradient in the order in which they become ready; without any, the
                whole is summed at the end.
            bucket_bytes: the smallest bucket but the last, in bytes.
            check_every: updates between two checks that θ is the same everywhere; 0 for none.
            control_algorithm: the all-reduce of the control values; None applies ``algorithm``.
            codec: makes the messages of the buckets; None sends numbers as they are.
            shard: None, or the optimizer's state is sharded.
            events: records events for the history; None keeps none.
        """
        n = port.role_map.n
        whole = (Span(0, n),)
        buckets = buckets_of(spans or whole, bucket_bytes)
        parts = [bucket.span for bucket in buckets]
        self._shares = shares = None if shard is None else shares_of(port, shard, algorithm, parts)
        owned = whole if shares is None else shares.owned
        #: The optimizer, of the elements that this worker owns.
        self.updater = updater(owned if port.theta.size else ())
        vectors = len(self.updater.optimizer.state)
        self.memory = memory(None, n, workers=1, vectors=vectors)
        if shares is not None:
            self.memory = shares.memory(n, vectors)
        self._reducer = Reducer(
            port,
            self.updater,
            algorithm=algorithm,
            full=batch_size,
            buckets=parts,
            one_theta=True,
            check_every=check_every,
            control_algorithm=control_algorithm,
            codec=codec,
            shares=shares,
            events=events,
        )
        self._gradient = gradient_of(port)
        self._parts = [bucket.span.of(self._gradient) for bucket in buckets]
        #: By span, the share of the work that is done when it is ready, and what is done then.
        fills = {bucket.last for bucket in buckets}
        self._overlaps = [
            (share, partial(weakly(self._overlap), fills=i in fills))
            for i, share in enumerate(work_shares_of(spans))
        ]
        #: Spans and buckets of this step that are ready.
        self._spans_ready = self._parts_ready = 0
        self._weight = 0.0
        self._port = port
        self._events = events
        self._since = 0.0
        self.updates = 0
        self.ready = weakly(self._ready) if len(buckets) > 1 else None
        reducer, overlaps = self._reducer, self.ready is not None
        self.plan = ReducePlan(
            reducer.chosen,
            reducer.why,
            len(buckets),
            overlaps,
            reducer.control_algorithm,
            frame_plan([] if codec is None else [codec]),
            what="" if shard is None else f"shard: {shard.value}, a worker has {self.memory}",
        )
        self.counts = WorkerFold()
        if codec is not None:
            codec.counts = self.counts
        port.waiting_for = lambda: "its neighbours in an all-reduce"

    @property
    def owned(self) -> Sequence[Span]:
        """See ``Holding.owned``."""
        return self._reducer.owned if self._shares is None else self._shares.owned

    def begin(self, step: Step) -> None:
        """Start summing this rank's weight and progress while its gradient is computed."""
        self._spans_ready = self._parts_ready = 0
        self._weight = self._reducer.weight(step.samples)
        self._reducer.start(self._weight, step)
        self._since = self._port.now() - step.computed

    def _ready(self, i: int) -> None:
        """Move on with the sums: the i-th span is ready."""
        if i != self._spans_ready:
            raise ProtocolError(
                f"the problem said that span {i} of its gradient is ready, expected span "
                f"{self._spans_ready}"
            )
        self._spans_ready += 1
        self._port.amid(*self._overlaps[i])

    def _overlap(self, *, fills: bool) -> None:
        """Begin the sum of the next bucket if a span has filled it, and progress the others."""
        if fills:
            self._weigh(self._weight)
            self._reducer.begin()
        self._reducer.poll()

    async def step(self, step: Step) -> int:
        """Average the gradients over all samples of the step and take the optimizer's step."""
        events = self._events
        if events is not None:
            now = self._port.now()
            clock, samples, progress, *_ = step
            events.note((events.stepped, now, clock, samples, progress, 0.0, now - self._since))
        if step.samples and self._parts_ready < len(self._parts):
            while self._parts_ready < len(self._parts):
                self._weigh(self._weight)
        await self._reducer.finish(empty=not step.samples)
        self.updates = self._reducer.updates
        self.counts.waited(reduce=self._reducer.waited)
        return step.clock + 1

    @property
    def samples(self) -> int:
        """The samples of all workers in the newest step."""
        return self._reducer.samples

    def go_on_at(self, updates: int) -> None:
        """Resume after that many updates."""
        self.updates = self._reducer.updates = updates

    async def follow(self, clock: int) -> bool:
        """Take part with weight zero in one step of the others; return whether any has one."""
        training = await self._reducer.follow(clock)
        self.updates = self._reducer.updates
        self.counts.waited(reduce=self._reducer.waited)
        return training

    async def leave(self, clock: int) -> None:
        """Take part with weight zero until no worker is training."""
        self.counts.waited(reduce=await self._reducer.join(clock, self.at_round))
        self.updates = self._reducer.updates

    def _weigh(self, scale: float) -> None:
        """Multiply the next bucket, which is final, with its weight."""
        part = self._parts[self._parts_ready]
        self._parts_ready += 1
        if scale != 1.0:
            np.multiply(part, np.float32(scale), out=part)
