"""The strategy of local SGD: H optimizer steps alone, then an average of the parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.history.folds.worker import WorkerFold
from psrt.runtime.checksum import digest
from psrt.runtime.conserved import signed_sum, within_float32
from psrt.runtime.elastic import Drawn
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.paces import pace_of
from psrt.runtime.push_codec import PushEncoder
from psrt.runtime.reply_codec import ReplyDecoder
from psrt.runtime.strategies.base import (
    LocalSteps,
    ReducePlan,
    Step,
    frame_plan,
)
from psrt.runtime.strategies.boundary import Boundary
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.strategies.team import Copy, Heard, Team
from psrt.runtime.updater import Updater
from psrt.sync import AveragingPeriod
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import Port, gradient_of


class Averager(Boundary, Protocol):
    """Replaces ``theta`` by the mean over the workers, weighted by their samples."""

    #: What a checkpoint keeps between an average and the next step.
    #: How the mean is summed over all ranks; None where servers do it.
    plan: ReducePlan | None = None
    #: See ``Strategy.counts``.
    counts: WorkerFold
    #: See ``Holding.model``.
    model: Vector | None = None
    #: The local steps before the next average, where servers say so; 0 if they do not.
    local_steps: int = 0

    def begin(self, step: Step) -> None:
        """Prepare for the local steps of round ``step.clock``; the default does nothing."""
        return

    async def average(self, step: Step) -> None:
        """Average once.

        Args:
            step: ``clock`` is the round, ``samples`` counts those since the round before.
        """
        ...

    async def leave(self, clock: int) -> int:
        """Leave the averages, after that many; return how many ``theta`` has seen then."""
        ...


class PushPullAverager(Averager):
    """Averages by a push to servers and the reply; what they mean, each kind says."""

    _push_pull: PushPull

    @property
    def at_cut(self) -> bool:
        """Whether all workers come to the average that was the last one."""
        return self._push_pull.at_cut

    @property
    def cut(self) -> int:
        """See ``Boundary.cut``."""
        return self._push_pull.cut

    def go_on(self, averages: int) -> None:
        """Resume from a checkpoint: its averages are the rounds of the servers."""
        self._push_pull.go_on(averages)

    def begin(self, step: Step) -> None:
        """Record the first read."""
        self._push_pull.begin(step)

    def note_left(self, averages: int) -> None:
        """See ``Boundary.note_left``."""
        self._push_pull.note_left(averages)

    async def leave(self, clock: int) -> int:
        """Send ``Leave`` to the servers."""
        await self._push_pull.leave(clock)
        return clock


class ServerAverager(PushPullAverager):
    """Averages over servers: a push carries parameters, an update is their mean.

    Where servers merge (``Mode.merges``), and with a codec, a push carries Δ_i = θ_old − θ_i
    instead, with θ_old as this worker holds it: the version that it read last, its anchor.
    """

    saved = ("_push_pull", "_base")
    by_element = per_worker = ("_base",)

    def __init__(
        self,
        port: Port,
        *,
        differences: bool = False,
        parks: bool = False,
        encoder: PushEncoder | None = None,
        decoder: ReplyDecoder | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of a worker, in a job with servers.
            differences: whether to push Δ_i rather than θ_i; an ``encoder`` always does.
            parks: see ``PushPull``.
            encoder: makes frames of Δ_i; None pushes vectors as they are.
            decoder: adds the frames of replies to θ_old; None where parameters are sent.
            events: records events for the history; None keeps none.
        """
        self._push_pull = PushPull(
            port, parks=parks, encoder=encoder, decoder=decoder, events=events
        )
        self.counts = self._push_pull.counts
        self._theta = port.theta
        self._buffer = gradient_of(port)
        #: θ_old; None where θ_i is sent.
        self._base = port.theta.copy() if differences or encoder is not None else None
        self._port = port
        self._events: WorkerEventRecorder | None = None
        if differences and events is not None and events.is_exact and port.theta.size:
            self._events = events
        #: Δ_i as servers see it.
        self._sent = self._buffer
        if self._events is not None and encoder is not None:
            self._sent = np.empty_like(port.theta)
            encoder.decode_into([span.of(self._sent) for span in port.role_map.spans])

    @property
    def local_steps(self) -> int:  # type: ignore[override]
        """The local steps before the next push, where servers say so."""
        return self._push_pull.local_steps

    async def park(self, averages: int) -> None:
        """Wait until all are parked, and read the newest version."""
        await self._push_pull.park(averages)
        if self._base is not None:
            np.copyto(self._base, self._theta)

    async def average(self, step: Step) -> None:
        """Push θ, or Δ, and pull what servers make of it."""
        theta, base, push_pull = self._theta, self._base, self._push_pull
        if base is None:
            np.copyto(self._buffer, theta)
            await push_pull.step(step)
            return
        np.subtract(base, theta, out=self._buffer)
        np.copyto(theta, base)  # the frame of a reply is added to what servers think is here
        await push_pull.step(step)
        np.copyto(base, theta)
        if self._events is not None and step.samples:
            shards = range(len(self._port.role_map.spans))
            note_anchor(
                self._events, self._port, step.clock, shards, pushed=self._sent, anchor=base
            )


class ReduceAverager(Averager):
    """Averages by an all-reduce; the outer step of each element is taken by its owner.

    With a codec it averages the differences Δ_i = θ_old − θ_i: what a frame loses is then relative
    to the change, not to the parameters.
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
        self.counts = WorkerFold()
        if codec is not None:
            codec.counts = self.counts
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

    async def average(self, step: Step) -> None:
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
        self.counts.waited(reduce=self._reducer.waited)

    async def leave(self, clock: int) -> int:
        """Take part with weight zero until no worker is training."""
        self.counts.waited(reduce=await self._reducer.join(clock))
        return self._reducer.updates


class TeamAverager(Averager):
    """Averages for all ranks of a learner: the first one does, the others take over its result.

    They have all parameters, or one part of a split model each.
    """

    saved = ("_own", "local_steps", "cut")
    #: See ``Boundary.cut``.
    cut: int = 0

    def __init__(
        self,
        port: Port,
        team: Team | Copy,
        own: Averager | None,
        landing: Vector | None,
        *,
        parks: bool,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: has the time.
            team: of this rank.
            own: averages at the first rank; None at the others.
            landing: (n,) what it averages.
            parks: see ``PushPull``.
            events: records events for the history; None keeps none.
        """
        self._port, self._team, self._own, self._parks = port, team, own, parks
        self.counts = WorkerFold() if own is None else own.counts
        self._landing, self._events = landing, events

    @property
    def at_cut(self) -> bool:
        """See ``PushPull.at_cut``."""
        return not self._parks or self.cut != 0

    def go_on(self, averages: int) -> None:
        """Resume from a checkpoint."""
        if self._own is not None:
            self._own.go_on(averages)

    def begin(self, step: Step) -> None:
        """Record the first read."""
        if self._own is not None:
            self._own.begin(step)

    async def average(self, step: Step) -> None:
        """Average at the first rank, and share what comes of it."""
        await self._team.bring(self._landing)
        if self._own is not None:
            await self._own.average(step)
        await self._share()

    async def park(self, averages: int) -> None:
        """Wait until all are parked, and share the newest version."""
        if self._own is not None:
            await self._own.park(averages)
        await self._share()

    async def _share(self) -> None:
        own = self._own
        heard = Heard() if own is None else Heard(own.local_steps, own.cut)
        self.local_steps, self.cut = await self._team.adopt(self._landing, heard)

    def note_left(self, averages: int) -> None:
        """See ``Boundary.note_left``."""
        if self._own is not None:
            self._own.note_left(averages)
        elif self._events is not None:
            self._events.left(self._port.now(), averages)

    async def leave(self, clock: int) -> int:
        """Leave the servers, at the first rank."""
        if self._own is not None:
            return await self._own.leave(clock)
        self.note_left(clock)
        return clock


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
        is_paced: bool = False,
        team: Team | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up; ``is_paced``: whether servers must know how fast this worker is."""
        super().__init__(port, updater, team=team, events=events)
        self._averager = averager
        self._is_paced = is_paced
        self.counts = averager.counts
        self.model = averager.model
        if team is None:
            self.plan = averager.plan
        else:
            team.count_into(self.counts)
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
        """Resume from a checkpoint, which is of an average."""
        self._averager.go_on(self.updates)

    def begin(self, step: Step) -> None:
        """Note when a step begins."""
        if not self._steps:
            self._averager.begin(Step(self.updates, 0, step.progress))
        self._begin(step)
        self._since = self._port.now()  # after that, which does not belong to the step

    async def step(self, step: Step) -> int:
        """Take a local step, and average if one is due."""
        await self._add(await self._take(step))
        return step.clock + 1

    async def _add(self, step: Step) -> None:
        """Count a local step, and average if that is due."""
        self._steps += 1
        self._samples += step.samples
        self._progress = step.progress
        if self._period.due(steps=self._steps, progress=step.progress):
            await self._average()

    async def finish(self) -> None:
        """Average the steps since the last average."""
        await self._follow()
        if self._steps:
            await self._average()

    def note_left(self, clock: int) -> None:
        """Record the end of a worker that had left; servers count its averages."""
        self._averager.note_left(self.updates)

    async def leave(self, clock: int) -> None:
        """Average the steps since the last average, then leave."""
        await self.finish()
        self.updates = await self._averager.leave(self.updates)

    async def _average(self) -> None:
        step = Step(self.updates, self._samples, self._progress, steps=self._steps)
        if self._is_paced:
            step = step._replace(pace=pace_of(self._busy_steps, self._busy_s))
        await self._averager.average(step)
        self.updates += 1
        self._steps = self._samples = 0
        self._busy_steps, self._busy_s = 0, 0.0
        if self._averager.local_steps:
            self._period = self._period._replace(local_steps=self._averager.local_steps)


def note_anchor(
    events: WorkerEventRecorder, port: Port, clock: int, shards: Sequence[int], *,
    pushed: Vector, anchor: Vector,
) -> None:  # fmt: skip
    """Record what a learner has pushed at a clock, as servers see it, and its new anchor."""
    for shard in shards:
        span = port.role_map.spans[shard]
        delta = span.of(pushed)
        with np.errstate(all="ignore"):
            total, norm = signed_sum(delta)
        most = within_float32(math.sqrt(span.size) * norm)
        found = digest(delta), digest(span.of(anchor)), within_float32(total)
        events.note((events.drawn, port.now(), clock, shard, Drawn(*found, 0.0, 0.0, 0.0, most)))
