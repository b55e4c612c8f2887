"""The strategy of local SGD: H optimizer steps alone, then an average of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

from psrt.arrays import Vector
from psrt.partition import Span
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.push_codec import PushEncoder
from psrt.runtime.reply_codec import ReplyDecoder
from psrt.runtime.strategies.base import (
    LocalSteps,
    ReducePlan,
    Step,
    StepResult,
    WaitBreakdown,
    frame_plan,
)
from psrt.runtime.strategies.boundary import Boundary
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.updater import Updater
from psrt.sync import AveragingPeriod
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import Port, gradient_of


class Averager(Boundary, Protocol):
    """Replaces ``theta`` by the mean over the workers, weighted by their samples."""

    #: What a checkpoint keeps between an average and the next step.
    saved: ClassVar[tuple[str, ...]] = ("frame_bytes", "framed_bytes")
    #: How the mean is summed over all ranks; None where servers do it.
    plan: ReducePlan | None = None
    #: Bytes of the frames of a codec sent so far, and of the vectors that these stand for.
    frame_bytes: int = 0
    framed_bytes: int = 0
    #: See ``Holding.model``.
    model: Vector | None = None

    def begin(self, step: Step) -> None:
        """Prepare for the local steps of round ``step.clock``; the default does nothing."""
        return

    async def average(self, step: Step) -> StepResult:
        """Average once.

        Args:
            step: ``clock`` is the round, ``samples`` counts those since the round before.
        """
        ...

    async def leave(self, clock: int) -> StepResult:
        """Leave the averages; ``clock`` of the result counts those that ``theta`` has seen."""
        ...


class ServerAverager(Averager):
    """Averages over servers: a push carries parameters, an update is their mean.

    By a codec a push carries Δ_i = θ_old − θ_i instead, with θ_old as this worker holds it.
    """

    saved = ("_push_pull", "_base")
    by_element = per_worker = ("_base",)

    def __init__(
        self,
        port: Port,
        *,
        encoder: PushEncoder | None = None,
        decoder: ReplyDecoder | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of a worker, in a job with servers.
            encoder: makes frames of Δ_i; None pushes θ_i as it is.
            decoder: adds the frames of replies to θ_old; None where parameters are sent.
            events: records events for the history; None keeps none.
        """
        self._push_pull = PushPull(port, encoder=encoder, decoder=decoder, events=events)
        self._theta = port.theta
        self._buffer = gradient_of(port)
        #: θ_old; None where θ_i is sent.
        self._base = None if encoder is None else port.theta.copy()

    def go_on(self, averages: int) -> None:
        """Go on from a checkpoint: its averages are the rounds of the servers."""
        self._push_pull.go_on(averages)

    def begin(self, step: Step) -> None:
        """Record the first read."""
        self._push_pull.begin(step)

    async def average(self, step: Step) -> StepResult:
        """Push θ, or Δ, and pull what servers make of it."""
        theta, base, push_pull = self._theta, self._base, self._push_pull
        if base is None:
            np.copyto(self._buffer, theta)
            return await push_pull.step(step)
        np.subtract(base, theta, out=self._buffer)
        np.copyto(theta, base)  # the frame of a reply is added to what servers think is here
        result = await push_pull.step(step)
        np.copyto(base, theta)
        self.frame_bytes, self.framed_bytes = push_pull.frame_bytes, push_pull.framed_bytes
        return result

    def note_left(self, averages: int) -> None:
        """See ``Boundary.note_left``."""
        self._push_pull.note_left(averages)

    async def leave(self, clock: int) -> StepResult:
        """Send ``Leave`` to the servers."""
        await self._push_pull.leave(clock)
        return StepResult(clock)


class ReduceAverager(Averager):
    """Averages by an all-reduce; the outer step of each element is taken by its owner.

    With a codec it averages Δ_i = θ_old − θ_i, which are small, where what a frame loses is a part
    of what has changed; of θ_i it would be a part of the parameters.
    """

    saved = ("_reducer",)  # θ_old is θ between an average and the next step

    def __init__(
        self,
        port: Port,
        outer: Updater,
        *,
        steps: bool,
        algorithm: str,
        full: int,
        check_every: int = 0,
        control_algorithm: str | None = None,
        codec: SumCodec | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up; collective.

        Args:
            port: of a job without servers.
            outer: makes the next θ out of the last average and the mean, of the θ_i or the Δ_i.
            steps: whether ``outer`` steps from the last average, which plain averaging ignores.
            algorithm: ``auto`` or the name of an all-reduce.
            full: samples of all local steps with full batches.
            check_every: averages between two checks that θ is the same everywhere; 0 for none.
            control_algorithm: the all-reduce of the control values; None applies ``algorithm``.
            codec: makes frames of Δ_i; None sends θ_i as it is.
            events: records events for the history; None keeps none.
        """
        n = port.role_map.n
        # θ after the last average: what an outer optimizer steps from.
        base = port.theta.copy() if steps or codec is not None else None
        #: The same, which Δ_i is the difference to; None where θ_i is sent.
        self._old = base if codec is not None else None
        self._codec = codec
        self._reducer = Reducer(
            port,
            outer,
            algorithm=algorithm,
            full=full,
            buckets=[Span(0, n)],
            base=base,
            check_every=check_every,
            control_algorithm=control_algorithm,
            codec=codec,
            events=events,
        )
        self._theta = port.theta
        self._buffer = gradient_of(port)
        reducer = self._reducer
        frames = frame_plan([] if codec is None else [codec])
        self.plan = ReducePlan(
            reducer.chosen, reducer.why, 1, False, reducer.control_algorithm, frames
        )
        port.waiting_for = lambda: "its neighbours in an all-reduce"

    async def average(self, step: Step) -> StepResult:
        """Sum the weighted θ_i, or Δ_i, and step to their mean."""
        weight = self._reducer.weight(step.samples)
        self._reducer.start(weight, step)
        theta, old, mine = self._theta, self._old, self._theta
        if old is not None:
            mine = np.subtract(old, theta, out=self._buffer)
        np.multiply(mine, np.float32(weight), out=self._buffer)
        await self._reducer.finish()
        if old is not None:
            np.copyto(old, theta)  # all of it: the reducer keeps what this worker owns
        self._count()
        return StepResult(step.clock + 1, waiting=WaitBreakdown(reduce=self._reducer.waited))

    async def leave(self, clock: int) -> StepResult:
        """Take part with weight zero until no worker is training."""
        waited = await self._reducer.join(clock)
        self._count()
        return StepResult(self._reducer.updates, waiting=WaitBreakdown(reduce=waited))

    def _count(self) -> None:
        codec = self._codec
        if codec is not None:
            self.frame_bytes, self.framed_bytes = codec.frame_bytes, codec.framed_bytes


class LocalSGD(LocalSteps):
    """Local steps between averages.

    Source: Stich, ICLR 2019 (arXiv:1805.09767); outer optimizers as in SlowMo (Wang et al., ICLR
    2020) and DiLoCo (Douillard et al. 2023, arXiv:2311.08105).
    """

    saved = ("_averager",)

    def __init__(
        self,
        port: Port,
        updater: Updater,
        averager: Averager,
        period: AveragingPeriod,
        *,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        super().__init__(port, updater, events=events)
        self._averager = averager
        self.plan, self.model = averager.plan, averager.model
        self._period = period
        #: Since the last average; ``updates`` counts those.
        self._steps = 0
        self._samples = 0
        self._progress = 0.0

    @property
    def at_cut(self) -> bool:
        """Whether the last step was followed by an average, which all workers have come to."""
        return not self._steps and self._averager.at_cut

    @property
    def cut(self) -> int:
        """See ``Boundary.cut``."""
        return self._averager.cut

    async def park(self, clock: int) -> None:
        """Wait until all are parked."""
        await self._averager.park(self.updates)

    def go_on(self, clock: int) -> None:
        """Go on from a checkpoint, which is of an average."""
        self._averager.go_on(self.updates)

    def begin(self, step: Step) -> None:
        """Note when a step begins."""
        if not self._steps:
            self._averager.begin(Step(self.updates, 0, step.progress))
        self._since = self._port.now()  # after that, which is no part of the step

    async def step(self, step: Step) -> StepResult:
        """Take a local step, and average if one is due."""
        await self._take(step)
        self._steps += 1
        self._samples += step.samples
        self._progress = step.progress
        outcome = StepResult(step.clock + 1)
        if self._period.due(steps=self._steps, progress=step.progress):
            outcome = (await self._average())._replace(clock=step.clock + 1)
        return outcome

    async def finish(self) -> Sequence[StepResult]:
        """Average the steps since the last average."""
        return [await self._average()] if self._steps else []

    def note_left(self, clock: int) -> None:
        """Record the end of a worker that had left; servers count its averages."""
        self._averager.note_left(self.updates)

    async def leave(self, clock: int) -> Sequence[StepResult]:
        """Average the steps since the last average, then leave."""
        last = await self.finish()
        left = await self._averager.leave(self.updates)
        self._count()
        self.updates = left.clock
        return [*last, left]

    async def _average(self) -> StepResult:
        outcome = await self._averager.average(Step(self.updates, self._samples, self._progress))
        self.updates += 1
        self._steps = self._samples = 0
        self._count()
        return outcome

    def _count(self) -> None:
        """Take over what frames have come to."""
        averager = self._averager
        self.frame_bytes, self.framed_bytes = averager.frame_bytes, averager.framed_bytes
