"""The training loop: one, for every mode."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence, Sized
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from psrt.checkpoint import Tree, restore, state_of
from psrt.core.arrays import ReadOnly, Vector
from psrt.core.errors import CheckpointError, DivergedError, FencedError
from psrt.core.stats import Evaluated, Stats
from psrt.optim import clip_factor, square_sum
from psrt.runtime.checksum import fingerprint
from psrt.runtime.compute import CutCompute, compute_of, packed
from psrt.runtime.cut_problem import CutProblem
from psrt.runtime.delays import Delays
from psrt.runtime.length import Length, share_of
from psrt.runtime.meter import Meter
from psrt.runtime.no_gradient import NoGradient
from psrt.runtime.own_loop import Ending, OwnBatches, OwnLoop
from psrt.runtime.pipedream import PipeDream
from psrt.runtime.problem import Problem, gradient_spans
from psrt.runtime.problem_rules import (
    check_written,
    first_not_finite,
    mark_unwritten,
    not_a_loss,
    not_iterable,
    uncounted,
    wrote_to_theta,
)
from psrt.runtime.strategies.base import Step, Strategy
from psrt.runtime.weakly import weakly
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import Port, ThetaMemory, gradient_of

#: What is behind the last batch.
_END = object()


def _never() -> bool:
    return False


class Worker:
    """One worker's role: batches in, gradients through the strategy, parameters back."""

    saved = (
        *("clock", "epoch", "_taken", "_share", "_skip", "_among", "has_left"),
        *("checks_gradient", "meter", "strategy", "_delays", "_rng", "_cut"),
    )

    def __init__(
        self,
        port: Port,
        problem: Problem,
        strategy: Strategy,
        meter: Meter,
        *,
        length: Length,
        dealt: Callable[[int, Sequence[int]], Sequence[np.ndarray[Any, Any]]] | None = None,
        members: Callable[[int], Awaitable[Sequence[int]]] | None = None,
        clip_norm: float | None = None,
        no_gradient: NoGradient | None = None,
        delays: Delays | None = None,
        rng: np.random.Generator | None = None,
        servers: Sequence[int] | None = None,
        is_served: bool | None = None,
    ) -> None:
        """Set up.

        Args:
            port: this rank's end of the transport.
            problem: the model and data.
            strategy: the synchronization scheme; has a ``ready`` only if the problem takes one.
            meter: counts and reports.
            length: when to stop.
            dealt: returns the samples of each step of an epoch, with those workers; None where the
                problem chooses.
            members: returns the workers that share an epoch's samples, ascending; None: all.
            clip_norm: largest l2 norm of a gradient, None for any; needs the whole gradient, so
                ``strategy`` must take none in parts.
            no_gradient: refuses to move what has no gradient; None lets it be.
            delays: injected delays; None for none.
            rng: draws the delays.
            servers: by shard, the rank that it pushes to; None: those of the port.
            is_served: whether servers count the updates; None: if it pushes to some.
        """
        self._servers = port.role_map.servers if servers is None else servers
        self._is_served = bool(self._servers) if is_served is None else is_served
        worker = port.role_map.worker_of(port.rank)
        assert worker is not None, "a worker's role runs at a worker's rank"
        self._port = port
        #: The model and data, or this worker's part of a model.
        self.problem = problem
        #: The part of a split model, which is computed together with other workers.
        self._cut = problem if isinstance(problem, CutProblem) else None
        if isinstance(problem, PipeDream) and problem.counts:
            strategy.counts.count_ages(worker)
        #: Computes the gradient.
        self.compute = compute_of(port, problem)
        if isinstance(problem, OwnLoop):
            problem.member = self
        #: The synchronization scheme.
        self.strategy = strategy
        if strategy.compute is not None:
            strategy.look = weakly(self._check_finite)
        #: Reports what the strategy and this worker count.
        self.meter = meter
        self._counts = meter.counts = strategy.counts
        #: Its number, among the workers of its part where a model is split.
        self.number = worker
        #: What messages call it.
        self._name = port.role_map.worker_name(worker)
        self._workers = len(port.role_map.workers)
        self._length = length
        self._clip_norm = clip_norm
        self._no_gradient = no_gradient
        self._dealt, self._members = dealt, members
        self._delays = delays
        self._is_timed = delays is not None and delays.asks_for_computed
        self._rng = rng or np.random.default_rng(0)
        own = strategy.gradient
        self._gradient = gradient_of(port) if own is None else own
        #: The parameters as code of the user's is given them.
        self._read = ReadOnly()
        #: Further arguments of ``loss_and_grad``.
        takes_ready = strategy.ready is not None or callable(
            getattr(problem, "gradient_spans", None)
        )
        ready = strategy.ready and weakly(self._part_ready)
        self._hook = (ready,) if takes_ready else ()
        #: The parts in which the gradient comes, where it is on its way before it is whole. Of all
        #: elements, also where only time is simulated and the gradient has none.
        self._parts = gradient_spans(problem, port.role_map.n) if ready else ()
        #: Whether the next gradient is checked: the first one, unless the problem is known.
        self.checks_gradient = True
        #: Gradient steps finished.
        self.clock = 0
        #: Epochs finished.
        self.epoch = 0
        #: Time from the first step to the last, in seconds; set at the end.
        self.seconds = 0.0
        #: Bytes sent to bring the parameters together at the end.
        self.collected = 0
        #: Batches to skip, because rounds with backups were closed without this worker.
        self._skip = 0
        #: Batches of this epoch that are behind this worker: it has taken or skipped them.
        self._taken = 0
        #: The share that a batch is of this epoch or, before its first one, of the one before.
        self._share = 0.0
        #: The number of workers that share this epoch's samples.
        self._among = self._workers
        #: Called between two steps, with the clock, where this worker's state is part of a cut: all
        #: workers reach that clock, and nothing is in flight. Returns whether the run ends there,
        #: for all of them. None costs nothing.
        self.at_boundary: Callable[[int], Awaitable[bool]] | None = None
        #: Whether worker 0 evaluates the model at the end of an epoch.
        self.evaluates = True
        #: Called after each step; returns whether it is the last one before the run's own end.
        self.ends: Callable[[], bool] = _never
        #: Whether the run ends there.
        self._stops = False
        #: Whether that was before all steps were taken.
        self.has_stopped = False
        #: Whether it had left before the checkpoint that this run resumes from.
        self.has_left = False
        #: Bytes of the messages that say so, while a worker that has left is saved.
        self._leave_bytes = 0
        #: Whether the others have continued without it.
        self.is_fenced = False
        #: Called when this worker has done all its steps, before others learn it.
        self.at_end: Callable[[], Awaitable[None]] | None = None

    async def run(self) -> Meter:
        """Train to the end, or until others have given this worker up; return the meter."""
        try:
            return await self._run()
        except FencedError:
            self.is_fenced = True
            self.seconds = self.meter.stop()
            return self.meter

    async def _run(self) -> Meter:
        self.meter.begin()
        await self._park()  # as every worker was when the checkpoint was made that it resumes from
        await self.strategy.set_out()
        while not self._finished(self.epoch):
            batches = await self._batches(self.epoch)
            complete = await self._epoch(self.epoch, batches)
            if not complete:
                break
            self.epoch += 1
            self._taken = 0
            # Still batches to skip: the worker was overtaken past the end of this epoch, and its
            # clock belongs to a later one.
            if self._skip or self._finished(self.epoch):
                continue
            if self.clock > self.meter.reported_step:  # else it was an epoch without batches
                await self._report(self._model(self._port.theta), epoch_end=True)
        theta = self._port.theta
        if self._port.theta_memory is ThetaMemory.SHARED:
            # Workers with more data continue, and their next versions are made there.
            np.copyto(self._gradient, theta)
            theta = self._gradient
        if self.at_boundary is not None:
            self.strategy.at_round = weakly(self._boundary)
        await self.strategy.finish()
        if self.strategy.cut:
            await self._boundary()
        # A worker that is saved from here on has left. When it resumes, it does not say so to
        # servers again. It does to neighbours, which wait for each other at their end.
        left = self.has_left and self._is_served
        self.has_left = self.at_end is not None
        if self.at_end is not None:
            shards = () if left else self._servers
            self._leave_bytes = len(shards) * FRAME_BYTES
            await self.at_end()
            self._leave_bytes = 0
        self.strategy.at_round = self.at_boundary
        if left:
            self.strategy.note_left(self.clock)
        else:
            await self.strategy.leave(self.clock)
        self.seconds = self.meter.stop()
        before = self._port.bytes_sent
        await self.strategy.collect()
        self.collected = self._port.bytes_sent - before
        await self._report(self._model(theta), epoch_end=True, last=True)
        return self.meter

    def show_evaluated(self) -> None:
        """Send each model that is evaluated to rank 0, before its figures."""
        self.compute.watched = weakly(self._show)

    def _show(self, theta: Vector) -> None:
        self._port.report(Evaluated(packed(self.compute.whole, theta)))

    def state(self) -> Tree:
        """Return what a checkpoint keeps of this worker; its arrays are those in use.

        The parameters are not in it where all workers have the same: who starts a job hands them
        out. Where a worker has its own, they are part of its strategy.
        """
        tree: Tree = state_of(self)
        tree["meter"]["before"][1] += self._leave_bytes
        tree["meter"]["before"][2] -= self.strategy.early_bytes
        own = getattr(self.compute.whole, "state", None)
        return tree | {"problem": own()} if callable(own) else tree

    def restore(self, tree: Tree) -> None:
        """Resume from what ``state`` returned, before ``run``; nothing of the tree is kept.

        Raises:
            CheckpointError: if it is of another worker, or another problem.
        """
        load = getattr(self.compute.whole, "load_state", None)
        if callable(load) != ("problem" in tree):
            whose = "the problem has load_state(), the checkpoint no state of it"
            if not callable(load):
                whose = "the checkpoint has a state of the problem, which has no load_state()"
            raise CheckpointError(whose)
        restore(self, {name: it for name, it in tree.items() if name != "problem"})
        if self._length.passed(self.clock, self.epoch, self._taken, self._share):
            raise CheckpointError(
                f"worker {self._name} had taken {self.clock} steps when it was made; a shorter run "
                "resumes from an earlier checkpoint, which psrt checkpoints lists"
            )
        # At clock 0 because it has no data, of which a longer run gives it no more.
        if self.has_left and self.clock and not self._length.reached(self.clock, self.progress):
            raise CheckpointError(
                f"worker {self._name} had left when it was made, after {self.clock} steps; a "
                "longer run resumes from an earlier checkpoint, which psrt checkpoints lists"
            )
        if self._skip > self.clock:
            raise CheckpointError(f"a worker at clock {self.clock} skips {self._skip} batches")
        if callable(load):
            load(tree["problem"])
        self.strategy.go_on(self.clock)

    @property
    def late_error(self) -> Exception | None:
        """What evaluation has raised after the last step, if anything; see ``Compute``."""
        return self.compute.late_error

    @property
    def theta(self) -> Vector:
        """(n,) the parameters as this worker has them."""
        return self._port.theta

    @property
    def stats(self) -> Stats:
        """This rank's counters; complete once ``run`` has returned."""
        port, stats = self._port, self._counts.stats
        stats.worker = self.meter.worker
        stats.steps, stats.epochs = self.clock, self.epoch
        stats.seconds = self.seconds - self.meter.spent
        stats.bytes_sent, stats.bytes_received = self.meter.bytes
        if not self._is_served:
            stats.updates = self.strategy.updates
            stats.fingerprint = fingerprint(port.theta) if self.strategy.whole else 0
        if self._cut is not None:
            stats.cut_bytes_sent, stats.cut_bytes_received = self._cut.bytes
        memory = self.strategy.memory
        if memory is not None:
            if self._cut is not None:
                memory = replace(
                    memory,
                    parameters=memory.parameters + self._cut.stash_bytes,
                    activations=self._cut.activation_bytes,
                )
            stats.memory = astuple(memory)
        return stats

    def _model(self, theta: Vector) -> Vector:
        return theta if self.strategy.model is None else self.strategy.model

    def _finished(self, progress: float) -> bool:
        if self._length.reached(self.clock, progress):
            return True
        self.has_stopped |= self._stops
        return self._stops

    async def _batches(self, epoch: int) -> Iterable[Any] | OwnBatches:
        """Return this worker's batches of an epoch.

        Raises:
            FencedError: if others have it already.
        """
        members: Sequence[int] = range(self._workers)
        if self._members is not None:
            members = await self._members(epoch)
            if self.number not in members:
                raise FencedError(f"worker {self.number} has been given up")
        self._among = len(members)
        own = () if self._dealt is None else (self._dealt(epoch, members),)
        place = members.index(self.number)
        return await self.compute.batches(place, len(members), epoch, own)

    async def _epoch(self, epoch: int, batches: Iterable[Any] | OwnBatches) -> bool:
        """Take the steps of an epoch; return whether it was completed."""
        own = batches if isinstance(batches, OwnBatches) else None
        try:
            following = iter(()) if isinstance(batches, OwnBatches) else iter(batches)
        except TypeError:
            raise not_iterable(batches) from None
        self._share = share = share_of(batches)
        is_counted = share > 0 or (own is None and isinstance(batches, Sized))
        if self._length.ends_within and not is_counted:
            raise uncounted(batches, self._length.epochs)
        drains = self.compute.drains
        empty = True
        for index in itertools.count():
            progress = epoch + index * share
            if own is None:
                batch = next(following, _END)
            else:
                void = index < self._taken or self._skip or self._finished(progress)
                batch = await own.next(self._port.now, counts=not void)
            if batch is Ending.TRAINING:
                return False
            if batch is _END or batch is Ending.EPOCH:
                break
            empty = False
            if index < self._taken:
                continue  # taken before the checkpoint that this run resumes from
            if self._finished(progress):
                return False
            if self._skip:
                self._skip -= 1
                continue
            # Not right after the step: it may end the epoch, or averages may follow at the end.
            if self.meter.due(self.clock):
                await self._report(self._port.theta)
            self.meter.look(self.clock, self._port.theta)
            await self._step(batch, progress)
            self._taken = index + 1
            if not drains:
                await self._pause()
        if drains and not empty:
            await self._pause()
        # With a limit of steps only, a worker without data would otherwise never stop.
        return not (empty and self._length.epochs == math.inf)

    @property
    def taken(self) -> int:
        """The number of batches of this epoch that are behind it, or are skipped."""
        return self._taken

    @property
    def owns_theta(self) -> bool:
        """Whether the parameters are this worker's alone between two steps."""
        return self.strategy.owns_theta

    @property
    def progress(self) -> float:
        """Epochs so far, as far as a problem's batches have a length."""
        return self.epoch + self._taken * self._share

    @property
    def versions(self) -> Sequence[int]:
        """By shard, the version of the parameters that it has; empty without servers."""
        return self.strategy.versions

    async def _pause(self) -> None:
        """Between two steps, with no batch in flight, save what is due and look for the end."""
        if self.at_boundary is not None and self.strategy.at_cut:
            await self._boundary()
        self._stops |= self.ends()

    async def _boundary(self, clock: int | None = None) -> None:
        """Save what this worker has if it is time, where that is part of a cut.

        Args:
            clock: of those that train; None is this worker's.
        """
        if self.at_boundary is not None:
            clock = self.clock if clock is None else clock
            self._stops = await self.at_boundary(self.strategy.cut or clock)
        await self._park()

    async def _park(self) -> None:
        """Wait for all others, if this is a cut to which they come at clocks of their own."""
        if self.strategy.cut:
            await self.strategy.park(self.clock)

    async def _step(self, batch: Any, progress: float) -> None:
        compute, strategy, gradient = self.compute, self.strategy, self._gradient
        samples = compute.samples_in(batch)
        step = Step(self.clock, samples, progress)
        if compute.awaits_batches:
            step = step._replace(computed=compute.computed_s(batch))
        strategy.begin(step)
        loss = computed_s = 0.0
        theta = self._read.of(self._port.theta)
        if samples:
            is_first = self.checks_gradient and strategy.compute is None  # which has no whole one
            if is_first:
                mark_unwritten(gradient)
            began = self._port.now() if self._is_timed else 0.0
            try:
                if strategy.compute is not None:
                    loss = await strategy.compute(batch)
                elif is_first and strategy.ready is None:
                    loss = await compute.first_gradient(
                        theta, batch, gradient, self._hook, self.clock
                    )
                else:
                    loss = await compute.gradient(theta, batch, gradient, self._hook, self.clock)
            except ValueError as error:
                self._blame(error)
                raise
            if self._is_timed:
                computed_s = self._port.now() - began + step.computed
            self._check_loss(loss, batch)
            if self._no_gradient is not None:
                # Those of the batch just computed; only loops and problems of torch know it.
                without = getattr(self.problem, "without_gradient", None)
                if without is not None:
                    clock = self.clock + 1
                    self._no_gradient.check(without, clock, self._name, is_first=is_first)
            if self.checks_gradient:
                self.checks_gradient = False
                if is_first:
                    compute.check_first(batch, gradient, is_whole=strategy.ready is None)
            if strategy.ready is None and strategy.compute is None:
                self._check_finite(0, gradient)
        else:
            await compute.pass_over(theta, batch, gradient)
        # After the gradient: in a simulation all workers share the problem's batch buffers, and
        # another one would overwrite them while this one pauses.
        if self._delays is not None:
            delay = self._delays.seconds(self.clock, computed_s, self._rng)
            if delay:
                await self._port.pause(delay)
        if samples and self._clip_norm is not None:
            await self._clip(self._clip_norm)
        reached = await self.strategy.step(step)
        # More than one clock further only if backups overtook this worker: the data of the steps
        # between is not trained on, so that all workers stay at the same place in the epoch.
        self._skip = reached - self.clock - 1
        self.clock = reached
        # All cells of a copy train on the same samples: the first one counts them.
        counts = self._cut is None or self._cut.is_first
        self._counts.stepped(loss, samples if counts else 0)
        if isinstance(self._cut, PipeDream) and self._cut.counts:
            self._counts.aged(self._cut.staleness)

    def _blame(self, error: ValueError) -> None:
        """Raise what an error means that comes of writing to the parameters, if it does.

        Raises:
            ConfigError: then.
        """
        is_layered = self.strategy.compute is not None
        by = CutCompute.by if is_layered else self.compute.by
        when = f" at step {self.clock + 1} on worker {self._name}"
        if (wrong := wrote_to_theta(error, by, when)) is not None:
            raise wrong from error

    def _check_loss(self, loss: float, batch: Any) -> None:
        """Check the loss of a batch.

        Raises:
            ConfigError: if it is no number.
            DivergedError: if it is nan or infinite.
        """
        try:
            if math.isfinite(loss) or self.compute.without_loss(batch):
                return
        except TypeError:
            raise not_a_loss(loss) from None
        raise DivergedError(
            f"diverged: the loss is {loss} at step {self.clock + 1} on worker "
            f"{self._name}; try a smaller --lr, or scale the inputs"
        )

    def _part_ready(self, i: int) -> None:
        """Hand over a part of the gradient, before it is summed with those of others."""
        if self.checks_gradient:
            check_written(self._parts[i].of(self._gradient))
        self._check_finite(self._parts[i].start, self._parts[i].of(self._gradient))
        assert self.strategy.ready is not None, "who hands over parts asks for them"
        self.strategy.ready(i)

    def _check_finite(self, start: int, part: Vector) -> None:
        """Check a part of this step's gradient, whose first element has that place.

        Raises:
            DivergedError: if an element is nan or infinite; others would only see their sum.
        """
        at = first_not_finite(part)
        if at is None:
            return
        name, hint = self.compute.name_of(start + at), self.compute.hint
        found = f"{name and f' of {name}'} is {part[at]}"
        raise DivergedError(
            f"diverged: the gradient{found} at step {self.clock + 1} on worker {self._name}; {hint}"
        )

    async def _clip(self, limit: float) -> None:
        """Scale this step's gradient down to a norm; of a split model, that of all its parts.

        Here, before any strategy has it: rates, codecs and sums are not linear, so a factor that
        one of them took along would mean something else with each.
        """
        strategy = self.strategy
        assert (strategy.ready, strategy.compute) == (None, None), "no strategy has it in parts"
        factor = clip_factor(await self._norm(), limit)
        if factor < 1.0:
            np.multiply(self._gradient, np.float32(factor), out=self._gradient)

    async def _norm(self) -> float:
        """Return the norm of this step's gradient, of all its parts where the model is split."""
        return math.sqrt(await self.compute.total(square_sum(self._gradient)))

    async def _report(self, theta: Vector, *, epoch_end: bool = False, last: bool = False) -> None:
        figures: dict[str, float] = {}
        known = self.strategy.whole or self.strategy.model is not None
        if self.number == 0 and epoch_end and known and self.evaluates:
            figures = await self.compute.figures(theta, last=last)
        self.meter.look(self.clock, self._port.theta, is_due=True)
        self.meter.report(self.epoch, self.clock, figures, epoch_end=epoch_end, last=last)
