"""The protocol behind ``await strategy.step(…)`` in the training loop, and its values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from psrt.core.arrays import ITEMSIZE, Vector
from psrt.core.sharding import memory
from psrt.core.ways import Way
from psrt.history.folds.worker import WorkerFold
from psrt.history.log import QUEUED
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.boundary import Boundary
from psrt.runtime.strategies.holding import Holding
from psrt.runtime.updater import Contribution, Updater
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import Port, gradient_of

if TYPE_CHECKING:
    from psrt.runtime.strategies.team import Team


class Step(NamedTuple):
    """One gradient step of one worker, done but not yet shared."""

    #: Gradient steps finished before this one.
    clock: int
    #: Samples behind the gradient; with 0 the gradient is not valid.
    samples: int
    #: Where the worker stands, in epochs.
    progress: float
    #: Seconds that its gradient took to compute before ``begin``: where the loop is the user's own.
    computed: float = 0.0
    #: Gradient steps in it: more than one where it is what local steps have changed.
    steps: int = 1
    #: Of them steps a second; 0 where nobody needs it.
    pace: float = 0.0


class FramePlan(NamedTuple):
    """What a worker sends in an update, or a period, if a codec makes the messages of sums."""

    #: In which the messages travel.
    way: Way
    #: Bytes of the frames, at most.
    frame_bytes: int
    #: Whether it is always that many.
    is_fixed: bool
    #: Bytes of the numbers that they stand for.
    framed_bytes: int
    #: Of these frames, the bytes that are sent at once, at most.
    peak_bytes: int
    #: How often.
    when: str


def frame_plan(codecs: Sequence[SumCodec], when: str = "an update") -> FramePlan | None:
    """Return what a worker sends by codecs that make frames one after the other.

    Args:
        codecs: of the parts of the parameters that are sent one by one, together all of them.
        when: how often all of them are.

    Returns:
        None if it sends no frames.
    """
    parts = [it for codec in codecs for it in codec.sums]
    if not parts:
        return None
    sizes = [sum(it.most_bytes for it in codec.sums) for codec in codecs]
    is_fixed = all(it.frame_bytes is not None for it in parts)
    framed_bytes = sum(it.framed_bytes for it in parts)
    way = parts[0].way
    return FramePlan(way, sum(sizes), is_fixed, framed_bytes, max(sizes), when)


class ReducePlan(NamedTuple):
    """How gradients or parameters are summed over all ranks, after ``auto`` has chosen."""

    #: Name of the all-reduce.
    algorithm: str
    #: The reason for it, to follow "because", or ``AS_ASKED``.
    why: str
    #: Number of sums that make one update.
    buckets: int
    #: Whether they begin while the gradient is still being computed.
    overlap: bool
    #: Name of the all-reduce of the control values, three numbers.
    control_algorithm: str
    #: What a codec makes of it; None without one.
    frames: FramePlan | None = None
    #: What is summed when, where it is not simply all at every update; a line for the user.
    what: str = ""
    #: Elements of the largest part that is summed at once, of those of ``what``; 0 of all.
    largest: int = 0


class Strategy(Boundary, Holding, Protocol):
    """One synchronization scheme, as the training loop meets it.

    The gradient is in the port's ``gradient``; the next parameters are in its ``theta`` when
    ``step`` returns. What it is to checkpoints (``Boundary``) and which vectors a worker has
    (``Holding``) most schemes leave as it is.
    """

    #: Updates of this rank's own parameters that all ranks share: averages in local SGD; 0 in
    #: the modes whose servers count.
    updates: int
    #: Called with i as soon as the i-th span of the gradient is final, see ``Problem``; None if
    #: the strategy needs the whole.
    ready: Callable[[int], None] | None = None
    #: By shard, the version of the parameters that were read last; empty without servers.
    versions: Sequence[int] = ()
    #: How this strategy sums over all ranks; None where it does not.
    plan: ReducePlan | None = None
    #: What it counts; the worker counts into it, too, and reports it.
    counts: WorkerFold
    #: Computes the gradient of a batch, and returns its mean loss; None leaves that to the problem.
    compute: Callable[[Any], Awaitable[float]] | None = None
    #: Called by ``compute`` with each part of this worker's gradient before it is summed, and the
    #: place of its first element; set by the worker. None if it is not needed.
    look: Callable[[int, Vector], None] | None = None
    #: What a checkpoint keeps, see ``psrt.checkpoint.state``.
    saved: ClassVar[tuple[str, ...]] = ("updates",)

    def begin(self, step: Step) -> None:
        """Prepare for a step before its gradient is computed; the default does nothing."""
        return

    async def step(self, step: Step) -> int:
        """Share a gradient, and wait for the parameters of the next step.

        Returns:
            The gradient steps finished, from which the worker continues.
        """
        ...

    async def finish(self) -> None:
        """After the last step, share the rest; ``leave`` does so if this was not called."""
        return

    async def leave(self, clock: int) -> None:
        """Finish: this worker has done all its steps; others may not have."""
        ...


class LocalSteps(Strategy):
    """A strategy that takes local optimizer steps, on this rank's parameters."""

    saved: ClassVar[tuple[str, ...]] = ("_updater", "_team")
    of_worker: ClassVar[tuple[str, ...]] = ("_updater",)
    owns_theta = True

    def __init__(
        self,
        port: Port,
        updater: Updater,
        *,
        team: Team | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: holds the gradient and θ.
            updater: takes the steps.
            team: takes them instead, if this is one of several ranks of a learner.
            events: records events for the history; None keeps none.
        """
        self._port = port
        self._team = team
        self._events = events
        self._since = 0.0
        #: Seconds of computing since the last push.
        self._busy_s = 0.0
        #: Steps with samples in it: others take no time, and would make a pace look faster.
        self._busy_steps = 0
        self._theta = port.theta
        self._gradient = gradient_of(port)
        if team is not None:
            self.plan, self._gradient = team.plan, team.gradient
            self.gradient = self._gradient
        self._updater = updater
        self.updates = 0
        self.counts = WorkerFold()
        vectors = len(updater.optimizer.state)
        self.memory = memory(None, port.role_map.n, workers=1, vectors=vectors)

    def _begin(self, step: Step) -> None:
        """Begin a step, before its gradient is computed."""
        if self._team is not None:
            self._team.begin(step)

    async def _add(self, step: Step) -> None:
        """Count a step that was taken, and communicate if that is due."""
        raise NotImplementedError

    async def _follow(self) -> None:
        """Take part in the steps of a team until no rank of it has one left."""
        while self._team is not None and (step := await self._team.follow()) is not None:
            await self._add(step)
            if self.at_cut and self.at_round is not None:
                await self.at_round(step.clock + 1)

    async def _take(self, step: Step) -> Step:
        """Take an optimizer step on the gradient, and record it; return it, that of all ranks."""
        if self._team is not None:
            step = await self._team.step(step)
            self._busy_s += self._port.now() - self._since
            self._busy_steps += step.samples > 0
            return step
        now, apply_s = self._port.now(), self._port.apply_s
        self._busy_s += now - self._since
        self._busy_steps += step.samples > 0
        if apply_s is not None and step.samples:
            await self._port.pause(apply_s(0, ITEMSIZE * self._port.role_map.n), works=True)
        if step.samples:
            term = Contribution(self._gradient)
            self._updater.apply(self._theta, [term], self._theta, progress=step.progress)
        events = self._events
        if events is not None:
            rate = self._updater.lr if step.samples else 0.0
            clock, samples, progress, *_ = step
            if len(events.noted) >= QUEUED:
                events.drain()
            events.note((events.stepped, now, clock, samples, progress, rate, now - self._since))
        return step


class Serial(LocalSteps):
    """No communication at all: the reference of every other scheme."""

    def begin(self, step: Step) -> None:
        """Note when the step begins."""
        self._since = self._port.now() - step.computed

    async def step(self, step: Step) -> int:
        """Take an optimizer step."""
        await self._take(step)
        self.updates += step.samples > 0
        return step.clock + 1

    async def leave(self, clock: int) -> None:
        """Record the end; there are no peers."""
        if self._events is not None:
            self._events.left(self._port.now(), clock)
