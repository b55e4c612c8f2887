"""The strategy of local SGD: H optimizer steps alone, then an average of the parameters."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from psrt.partition import Span
from psrt.runtime.push_pull import PushPull
from psrt.runtime.rounds import Rounds
from psrt.runtime.strategy import Outcome, ReducePlan, Step, Strategy, clip_weight
from psrt.runtime.updater import Contribution, Updater
from psrt.sync import AveragingPeriod
from psrt.transport.port import Port


class Averager(Protocol):
    """Replaces ``theta`` by the mean over the workers, each weighed by its samples."""

    #: How the mean is summed over all ranks; None where servers do it.
    plan: ReducePlan | None = None

    async def average(self, step: Step) -> Outcome:
        """Average once: round ``step.clock``, of ``step.samples`` since the round before."""
        ...

    async def leave(self, clock: int) -> None:
        """Let the others go on without this worker."""
        ...


class ServerAverager(Averager):
    """Averages over servers: a push carries parameters, an update is their mean."""

    def __init__(self, port: Port) -> None:
        self._push_pull = PushPull(port)
        self._theta = port.theta
        self._buffer = port.gradient[: port.wiring.n]

    async def average(self, step: Step) -> Outcome:
        """Push θ and pull the mean."""
        np.copyto(self._buffer, self._theta)
        return await self._push_pull.step(step)

    async def leave(self, clock: int) -> None:
        """Tell the servers."""
        await self._push_pull.leave(clock)


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
    ) -> None:
        """Set up; collective.

        Args:
            port: of a job without servers.
            outer: makes the next θ out of the last average and the mean of the θ_i.
            steps: whether ``outer`` steps from the last average; plain averaging forgets it.
            algorithm: ``auto`` or the name of an all-reduce.
            full: samples of all local steps with full batches.
            check_every: averages between two checks that θ is the same everywhere; 0 for none.
        """
        n = port.wiring.n
        self._rounds = Rounds(
            port,
            outer,
            algorithm=algorithm,
            full=full,
            buckets=[Span(0, n)],
            # θ after the last average: what an outer optimizer steps from.
            base=port.theta.copy() if steps else None,
            check_every=check_every,
        )
        self._theta = port.theta
        self._buffer = port.gradient[:n]
        self.plan = ReducePlan(self._rounds.chosen, self._rounds.why, 1, False)
        port.whom = lambda: "its neighbours in an all-reduce"

    async def average(self, step: Step) -> Outcome:
        """Sum the weighted θ_i and step to their mean."""
        weight = self._rounds.weight(step.samples)
        self._rounds.start(weight, step.progress)
        np.multiply(self._theta, np.float32(weight), out=self._buffer)
        await self._rounds.finish()
        return Outcome(step.clock + 1)

    async def leave(self, clock: int) -> None:
        """Take part with weight zero until nobody is training any more."""
        await self._rounds.attend()


class LocalSGD(Strategy):
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
    ) -> None:
        self._theta = port.theta
        self._gradient = port.gradient[: port.wiring.n]
        self._updater = updater
        self._averager = averager
        self.plan = averager.plan
        self._period = period
        self._clip_norm = clip_norm
        #: Since the last average.
        self._steps = 0
        self._samples = 0
        #: Averages so far.
        self.updates = 0
        self._progress = 0.0

    async def step(self, step: Step) -> Outcome:
        """Take a local step, and average if it is time."""
        if step.samples:
            term = Contribution(self._gradient, clip_weight(self._gradient, self._clip_norm))
            self._updater.apply(self._theta, [term], self._theta, progress=step.progress)
        self._steps += 1
        self._samples += step.samples
        self._progress = step.progress
        outcome = Outcome(step.clock + 1)
        if self._period.due(steps=self._steps, progress=step.progress):
            outcome = (await self._average())._replace(clock=step.clock + 1)
        return outcome

    async def leave(self, clock: int) -> None:
        """Average what is left over, then let the others finish."""
        if self._steps:
            await self._average()
        await self._averager.leave(self.updates)

    async def _average(self) -> Outcome:
        outcome = await self._averager.average(Step(self.updates, self._samples, self._progress))
        self.updates += 1
        self._steps = self._samples = 0
        return outcome
