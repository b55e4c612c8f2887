"""The ranks of one learner: they take each step together, and the first of them talks to servers.

Their gradients are summed in every step, as in ``AllReduce``, so all have the same parameters at
any time. What the first one, the *lead*, learns from servers it shares with the others. When it
does is a matter of steps alone, so nobody has to be asked.

Source: hierarchical local SGD, Lin et al., ICLR 2020 (arXiv:1808.07217).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.history.folds.worker import WorkerFold
from psrt.runtime.strategies.all_reduce import AllReduce
from psrt.runtime.strategies.base import ReducePlan, Step
from psrt.transport.port import Port, control_of, controls_of, gradient_of
from psrt.transport.stage_links import StageLinks

#: What a number is divided into, so that each part is exact as a float32.
_BASE = 1 << 20


class Heard(NamedTuple):
    """What servers tell a learner beside parameters."""

    #: The local steps before its next push; 0 if they do not say.
    local_steps: int = 0
    #: See ``Boundary.cut``.
    cut: int = 0


class Team:
    """One rank's part in the steps of its learner."""

    saved = ("updates", "_clock", "_ahead", "_progress", "_is_over")

    def __init__(self, port: Port, inner: AllReduce, spans: Sequence[Span], *, outer: Port) -> None:
        """Set up; collective over the ranks of the learner.

        Args:
            port: of these ranks.
            inner: takes their steps.
            spans: of the parameters, each of which can be shared by itself.
            outer: this rank's port in the job.
        """
        self._port, self._inner, self._outer = port, inner, outer
        #: Whether this rank talks to the servers.
        self.leads = port.rank == 0
        #: (n,) their parameters, and this rank's gradient.
        self.theta, self.gradient = port.theta, gradient_of(port)
        plan = inner.plan
        assert plan is not None, "it sums"
        #: How their gradients are summed.
        self.plan: ReducePlan = plan
        self._sums = {span: port.reduction(span, plan.algorithm, None) for span in spans}
        [_, numbers] = controls_of(port)
        self._numbers = control_of(port, 1)
        self._sum_of_numbers = port.reduction(numbers, plan.control_algorithm, None)
        #: Steps of this rank, those of the others since, and whether none of them has one left.
        self._clock, self._ahead, self._is_over = 0, 0, False
        #: Where it stands, in epochs.
        self._progress = 0.0

    @property
    def updates(self) -> int:
        """Steps in which some rank had samples."""
        return self._inner.updates

    @updates.setter
    def updates(self, updates: int) -> None:
        self._inner.go_on_at(updates)

    def count_into(self, counts: WorkerFold) -> None:
        """Count the time of waiting for the others there."""
        self._inner.counts = counts

    def begin(self, step: Step) -> None:
        """Begin a step, before this rank's gradient is computed."""
        self._inner.begin(step)

    async def step(self, step: Step) -> Step:
        """Take a step; return it with the samples of all ranks."""
        await self._outer.catch_up()  # in virtual time, what this rank still spends there
        self._clock, self._progress = await self._inner.step(step), step.progress
        return await self._taken()

    async def follow(self) -> Step | None:
        """Take part in a step of the others, when this rank has none left; None if none has."""
        await self._outer.catch_up()
        if self._is_over or not await self._inner.follow(self._clock):
            self._is_over = True
            return None
        self._ahead += 1
        return await self._taken()

    async def _taken(self) -> Step:
        await self._port.catch_up()
        return Step(self._clock + self._ahead - 1, self._inner.samples, self._progress)

    async def bring(self, landing: Vector | None) -> None:
        """Bring the parameters to where the lead averages them."""
        if landing is not None:
            np.copyto(landing, self.theta)

    async def adopt(self, landing: Vector | None, heard: Heard) -> Heard:
        """Give all ranks what the lead has there, and what it has heard; return that."""
        if landing is not None:
            np.copyto(self.theta, landing)
        return await self.share((Span(0, self._port.role_map.n),), heard)

    async def share(self, spans: Sequence[Span], heard: Heard) -> Heard:
        """Give the others the lead's parameters, and what it has heard; return that.

        Args:
            spans: of the parameters that have changed at the lead.
            heard: by the lead.
        """
        await self._outer.catch_up()
        values = self._numbers
        values[:] = 0.0
        if self.leads:
            sign = -1 if heard.cut < 0 else 1
            high, low = divmod(abs(heard.cut), _BASE)
            values[:] = heard.local_steps, sign * high, sign * low
        self._sum_of_numbers.begin()
        for span in spans:
            # A sum of one vector and of zeros: what each schedule can do, and exact.
            part = span.of(self.gradient) if self.gradient.size else self.gradient
            if self.leads and part.size:
                np.copyto(part, span.of(self.theta))
            else:
                part[:] = 0.0
            self._sums[span].begin()
        await self._sum_of_numbers.finish()
        for span in spans:
            await self._sums[span].finish()
            if self.gradient.size:
                np.copyto(span.of(self.theta), span.of(self.gradient))
        await self._port.catch_up()
        steps, high, low = map(int, values.tolist())
        return Heard(steps, high * _BASE + low)


class Copy:
    """One rank's part in a copy of a split model, whose first rank averages the whole of it."""

    def __init__(self, port: Port, links: StageLinks, outer: Port | None) -> None:
        """Set up.

        Args:
            port: with this rank's part.
            links: to the other ranks of the copy.
            outer: of the first rank, with the whole model and the servers; None at the others.
        """
        self._port, self._links, self._outer = port, links, outer

    async def bring(self, landing: Vector | None) -> None:
        """Bring all parts to where the first rank averages them."""
        await self._links.gather(self._port.theta, landing)

    async def adopt(self, landing: Vector | None, heard: Heard) -> Heard:
        """Give each rank its part of what is there, and what the first one has heard."""
        if self._outer is not None:
            await self._outer.catch_up()  # in virtual time, what this rank still spends there
        return Heard(*await self._links.scatter(landing, self._port.theta, heard))
