"""The strategy of synchronous gossip: a local step, and an average with neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import block_spans
from psrt.history.log import QUEUED
from psrt.optim import BLOCK
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import LocalSteps, Step
from psrt.runtime.strategies.neighbours import Arrived, Neighbours
from psrt.runtime.updater import Contribution, Updater
from psrt.transport.port import Port


class Gossip(LocalSteps):
    """Combines θ with that of neighbours, and adapts it to the gradient, in either order.

    Combine-then-adapt sends θ_i before the gradient is computed, so it travels meanwhile, and takes
    θ_i ← opt(Σ_j M_ij θ_j, G_i). Adapt-then-combine takes θ_i ← Σ_j M_ij opt(θ_j, G_j).

    The sum is computed as θ_i + Σ_j M_ij (θ_j − θ_i). So elements on which neighbours agree keep
    their bits; and with symmetric weights one loses exactly what the other gains, so rounding does
    not make the mean drift.

    Sources: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?",
    NeurIPS 2017 (arXiv:1705.09056); A. H. Sayed, Foundations and Trends in Machine Learning 7,
    2014, for the two orders.
    """

    # What neighbours have sent for the next round they send again.
    saved: ClassVar[tuple[str, ...]] = ("vector",)
    by_element: ClassVar[tuple[str, ...]] = ("vector",)

    def __init__(
        self,
        port: Port,
        updater: Updater,
        neighbours: Neighbours,
        *,
        adapts_first: bool,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of a worker with neighbours, in whose ``theta`` the initial parameters are.
            updater: takes the steps.
            neighbours: what is exchanged.
            adapts_first: whether a step adapts, then combines.
            events: records events for the history; None keeps none.
        """
        super().__init__(port, updater, events=events)
        self._neighbours = neighbours
        self._adapts_first = adapts_first
        #: Of two regions in turn: what was sent for a round may still be read in the next one.
        self._offers = port.offers
        n = port.theta.size
        self._blocks = block_spans(n, BLOCK)
        self._scratch = np.empty(min(n, BLOCK), np.float32)

    @property
    def held(self) -> tuple[Vector, float]:
        """θ, which all workers bring with the same weight."""
        return self._theta, 1.0

    @property
    def vector(self) -> Vector:
        """What it brings to the mean; filled where a run is resumed."""
        return self.held[0]

    def go_on(self, clock: int) -> None:
        """Expect of neighbours what they send from the round of that clock on."""
        self._neighbours.go_on(clock)

    @property
    def early_bytes(self) -> int:  # type: ignore[override]
        """Bytes of what neighbours that are ahead have sent."""
        return self._neighbours.early(self.updates)

    def begin(self, step: Step) -> None:
        """Send θ_i on its way, if it is combined before the step."""
        if not self._adapts_first:
            self._send(self._port.now())
        self._since = self._port.now() - step.computed

    async def step(self, step: Step) -> int:
        """Combine and adapt."""
        port = self._port
        began = port.now()
        self._note_step(step, began)
        if self._adapts_first:
            self._adapt(step)
            began = port.now()
        waited = await self._combine(began)
        if not self._adapts_first:
            self._adapt(step)
        self.updates += 1
        self._wait(waited)
        return step.clock + 1

    async def leave(self, clock: int) -> None:
        """Tell the neighbours, and wait until all of them are done, too."""
        began = self._port.now()
        await self._neighbours.leave(self.updates)
        waited = self._port.now() - began
        if self._events is not None:
            self._events.left(self._port.now(), clock, waited)
        self._wait(waited)
        self._note_left()

    def _note_left(self) -> None:
        """Count the rounds that neighbours who have left took part in."""
        self.counts.stats.left = dict(self._neighbours.part.left)

    def _wait(self, seconds: float) -> None:
        """Count which worker this one waited for: the last to arrive, if any."""
        neighbours = self._neighbours
        worker, neighbours.waited_for = neighbours.waited_for, -1
        if worker < 0:
            self.counts.waited(messages=seconds)
        else:
            self.counts.waited(workers=seconds, waiting_for=worker if seconds else -1)

    def _adapt(self, step: Step) -> None:
        """Take an optimizer step."""
        if step.samples:
            term = Contribution(self._gradient)
            self._updater.apply(self._theta, [term], self._theta, progress=step.progress)

    def _note_step(self, step: Step, now: float) -> None:
        """Record the step, whose gradient is computed."""
        if (events := self._events) is None:
            return
        clock, samples, progress, *_ = step
        rate = self._updater.rate_at(progress) if samples else 0.0
        if len(events.noted) >= QUEUED:
            events.drain()
        events.note((events.stepped, now, clock, samples, progress, rate, now - self._since))

    @property
    def _region(self) -> int:
        """The region of this round."""
        return self.updates % len(self._offers)

    @property
    def _offer(self) -> Vector:
        """What is sent in this round."""
        return self._offers[self._region]

    def _send(self, now: float, weight: float = 1.0, waited: float = 0.0) -> None:
        """Send what this worker has, after it has ``waited`` for its receivers.

        Recorded is when it begins to: one neighbour may take it while another is being sent to.
        """
        np.copyto(self._offer, self._theta)
        to = self._neighbours.send(self.updates, self._region, weight)
        if (events := self._events) is not None:
            for vector, flag in self._vectors(self._offer):
                content = events.content(vector)
                events.note((events.offered, now, self.updates, content, to, weight, waited, flag))
                waited = 0.0  # the next one waits no more

    async def _combine(self, began: float) -> float:
        """Replace θ, which was offered, by the weighted mean of it and of what neighbours offered.

        Args:
            began: when this worker was ready for it.

        Returns:
            The seconds since then.
        """
        if self._adapts_first:
            self._send(began)
        await self._neighbours.collect(self.updates, self._mix_in)
        await self._free()
        return self._note_mixed(began)

    async def _free(self) -> None:
        """Wait until the region of the next round may be written."""
        await self._neighbours.free((self.updates + 1) % len(self._offers))

    def _note_mixed(self, began: float) -> float:
        """Record that all has been mixed; return the seconds since ``began``."""
        now, events = self._port.now(), self._events
        waited = now - began
        if events is not None:
            for vector, flag in self._vectors(self._theta):
                note = now, self.updates, events.content(vector), waited, math.nan, 1.0, 0.0, flag
                events.note((events.mixed, *note))
                waited = 0.0
        return now - began

    def _mix_in(self, arrived: Arrived) -> None:
        """Move by what a neighbour's vector differs from this worker's."""
        self._move(self._theta, self._offer, arrived.vector, self._note_taken(arrived))

    def _move(self, moved: Vector, start: Vector, end: Vector, factor: np.float32) -> None:
        """Move a vector by a share of what another two differ by."""
        for span in self._blocks:
            to, out = span.of(end), span.of(moved)
            part = np.subtract(to, span.of(start), out=self._scratch[: to.size])
            np.multiply(part, factor, out=part)
            np.add(out, part, out=out)

    def _note_taken(self, arrived: Arrived) -> np.float32:
        """Record what is mixed in; return the weight that it gets."""
        factor = np.float32(self._neighbours.part.weight(arrived.worker, self.updates))
        if (events := self._events) is not None:
            now = self._port.now()
            for vector, flag in self._vectors(arrived.vector):
                note = now, self.updates, arrived.worker, events.digest(vector), float(factor), flag
                events.note((events.took, *note))
        return factor

    def _vectors(self, whole: Vector) -> Sequence[tuple[Vector, int]]:
        """Return the vectors that travel as one, each with the flag of its events."""
        return ((whole, 0),)
