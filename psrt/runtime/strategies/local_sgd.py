"""The strategy of local SGD: H optimizer steps alone, then an average of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from psrt.partition import Span
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import (
    LocalSteps,
    ReducePlan,
    Step,
    StepResult,
    WaitBreakdown,
)
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.updater import Updater
from psrt.sync import AveragingPeriod
from psrt.transport.port import Port, gradient_of


class Averager(Protocol):
    """Replaces ``theta`` by the mean over the workers, weighted by their samples."""

    #: How the mean is summed over all ranks; None where servers do it.
    plan: ReducePlan | None = None

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
    """Averages over servers: a push carries parameters, an update is their mean."""

    def __init__(self, port: Port, *, events: WorkerEventRecorder | None = None) -> None:
        self._push_pull = PushPull(port, events=events)
        self._theta = port.theta
        self._buffer = gradient_of(port)

    def begin(self, step: Step) -> None:
        """Record the first read."""
        self._push_pull.begin(step)

    async def average(self, step: Step) -> StepResult:
        """Push θ and pull the mean."""
        np.copyto(self._buffer, self._theta)
        return await self._push_pull.step(step)

    async def leave(self, clock: int) -> StepResult:
        """Send ``Leave`` to the servers."""
        await self._push_pull.leave(clock)
        return StepResult(clock)


class ReduceAverager(Averager):
    """Averages by an all-reduce; the outer step of each element is taken by its owner."""

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
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up; collective.

        Args:
            port: of a job without servers.
            outer: makes the next θ out of the last average and the mean of the θ_i.
            steps: whether ``outer`` steps from the last average, which plain averaging ignores.
            algorithm: ``auto`` or the name of an all-reduce.
            full: samples of all local steps with full batches.
            check_every: averages between two checks that θ is the same everywhere; 0 for none.
            control_algorithm: the all-reduce of the control values; None applies ``algorithm``.
            events: records events for the history; None keeps none.
        """
        n = port.role_map.n
        self._reducer = Reducer(
            port,
            outer,
            algorithm=algorithm,
            full=full,
            buckets=[Span(0, n)],
            # θ after the last average: what an outer optimizer steps from.
            base=port.theta.copy() if steps else None,
            check_every=check_every,
            control_algorithm=control_algorithm,
            events=events,
        )
        self._theta = port.theta
        self._buffer = gradient_of(port)
        reducer = self._reducer
        self.plan = ReducePlan(reducer.chosen, reducer.why, 1, False, reducer.control_algorithm)
        port.waiting_for = lambda: "its neighbours in an all-reduce"

    async def average(self, step: Step) -> StepResult:
        """Sum the weighted θ_i and step to their mean."""
        weight = self._reducer.weight(step.samples)
        self._reducer.start(weight, step)
        np.multiply(self._theta, np.float32(weight), out=self._buffer)
        await self._reducer.finish()
        return StepResult(step.clock + 1, waiting=WaitBreakdown(reduce=self._reducer.waited))

    async def leave(self, clock: int) -> StepResult:
        """Take part with weight zero until no worker is training."""
        waited = await self._reducer.join(clock)
        return StepResult(self._reducer.updates, waiting=WaitBreakdown(reduce=waited))


class LocalSGD(LocalSteps):
    """Local steps between averages.

    Source: Stich, ICLR 2019 (arXiv:1805.09767); outer optimizers as in SlowMo (Wang et al., ICLR
    2020) and DiLoCo (Douillard et al. 2023, arXiv:2311.08105).
    """

    def __init__(
        self,
        port: Port,
        updater: Updater,
        averager: Averager,
        period: AveragingPeriod,
        *,
        clip_norm: float | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        super().__init__(port, updater, clip_norm=clip_norm, events=events)
        self._averager = averager
        self.plan = averager.plan
        self._period = period
        #: Since the last average; ``updates`` counts those.
        self._steps = 0
        self._samples = 0
        self._progress = 0.0

    def begin(self, step: Step) -> None:
        """Note when a step begins."""
        if not self._steps:
            self._averager.begin(Step(self.updates, 0, step.progress))
        self._since = self._port.now()  # after that, which is no part of the step

    async def step(self, step: Step) -> StepResult:
        """Take a local step, and average if one is due."""
        self._take(step)
        self._steps += 1
        self._samples += step.samples
        self._progress = step.progress
        outcome = StepResult(step.clock + 1)
        if self._period.due(steps=self._steps, progress=step.progress):
            outcome = (await self._average())._replace(clock=step.clock + 1)
        return outcome

    async def leave(self, clock: int) -> Sequence[StepResult]:
        """Average the steps since the last average, then leave."""
        last = [await self._average()] if self._steps else []
        left = await self._averager.leave(self.updates)
        self.updates = left.clock
        return [*last, left]

    async def _average(self) -> StepResult:
        outcome = await self._averager.average(Step(self.updates, self._samples, self._progress))
        self.updates += 1
        self._steps = self._samples = 0
        return outcome
