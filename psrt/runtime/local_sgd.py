"""The strategy of local SGD: H optimizer steps alone, then an average of the parameters."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from psrt.runtime.all_reduce import Rounds
from psrt.runtime.push_pull import PushPull
from psrt.runtime.strategy import Outcome, Step, Strategy, clip_weight
from psrt.runtime.updater import Contribution, Updater
from psrt.sync import AveragingPeriod
from psrt.transport.port import Port


class Averager(Protocol):
    """Replaces ``theta`` by the mean over the workers, each weighed by its samples."""

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
    """Averages by an all-reduce; every rank takes the outer step, alike."""

    def __init__(
        self, port: Port, outer: Updater, *, steps: bool, algorithm: str, full: int
    ) -> None:
        """Set up.

        Args:
            port: of a job without servers.
            outer: makes the next θ out of the last average and the mean of the θ_i.
            steps: whether ``outer`` steps from the last average; plain averaging forgets it.
            algorithm: names the all-reduce.
            full: samples of a full batch.
        """
        self._rounds = Rounds(port, algorithm, full=full)
        self._theta = port.theta
        self._buffer = port.gradient[: port.wiring.n]
        self._outer = outer
        #: θ after the last average: what an outer optimizer steps from.
        self._anchor = port.theta.copy() if steps else port.theta
        port.whom = lambda: "its neighbours in an all-reduce"

    async def average(self, step: Step) -> Outcome:
        """Sum the weighted θ_i and step to their mean."""
        weight = self._rounds.weight(step.samples)
        np.multiply(self._theta, np.float32(weight), out=self._buffer)
        self._take(*await self._rounds.sum(weight, step.progress))
        return Outcome(step.clock + 1)

    async def leave(self, clock: int) -> None:
        """Take part with weight zero until nobody is training any more."""
        await self._rounds.attend(self._take)

    def _take(self, total: float, progress: float) -> None:
        if not total:
            return
        term = Contribution(self._buffer, 1.0 / total)
        self._outer.apply(self._anchor, [term], self._theta, progress=progress)
        if self._anchor is not self._theta:
            np.copyto(self._anchor, self._theta)


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
