"""The training loop: one, for every mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from psrt.arrays import Vector
from psrt.errors import DivergedError
from psrt.runtime.checksum import fingerprint
from psrt.runtime.delays import Delays
from psrt.runtime.meter import Meter
from psrt.runtime.problem import Problem
from psrt.runtime.problem_rules import (
    check_written,
    checked_figures,
    mark_unwritten,
    not_a_loss,
    not_iterable,
    reading_only,
    sample_counter,
)
from psrt.runtime.strategies.base import Step, Strategy
from psrt.stats import Stats
from psrt.transport.port import Port, ThetaMemory, gradient_of


@dataclass(frozen=True, slots=True)
class Length:
    """The length of training: epochs or steps per worker, whichever ends first."""

    #: Passes over the training data; part of one counts if a problem's batches have a length.
    epochs: float = math.inf
    #: Gradient steps per worker.
    steps: float = math.inf


class Worker:
    """One worker's role: batches in, gradients through the strategy, parameters back."""

    def __init__(
        self,
        port: Port,
        problem: Problem,
        strategy: Strategy,
        meter: Meter,
        *,
        length: Length,
        dealt: Callable[[int], Sequence[np.ndarray[Any, Any]]] | None = None,
        delays: Delays | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        """Set up.

        Args:
            port: this rank's end of the transport.
            problem: the model and data.
            strategy: the synchronization scheme; has a ``ready`` only if the problem takes one.
            meter: counts and reports.
            length: when to stop.
            dealt: returns the samples of each step of an epoch; None where the problem chooses.
            delays: injected delays; None for none.
            rng: draws the delays.
        """
        worker = port.role_map.worker_of(port.rank)
        assert worker is not None, "a worker's role runs at a worker's rank"
        self._port = port
        self._problem = problem
        self._samples_in = sample_counter(problem)
        #: The synchronization scheme.
        self.strategy = strategy
        #: Counts and reports.
        self.meter = meter
        self._worker = worker
        self._workers = len(port.role_map.workers)
        self._length = length
        self._dealt = dealt
        self._delays = delays
        self._is_timed = delays is not None and delays.asks_for_computed
        self._rng = rng or np.random.default_rng(0)
        own = strategy.gradient
        self._gradient = gradient_of(port) if own is None else own
        #: Further arguments of ``loss_and_grad``.
        takes_ready = strategy.ready is not None or callable(
            getattr(problem, "gradient_spans", None)
        )
        self._hook = (strategy.ready,) if takes_ready else ()
        #: Whether the next gradient is checked: the first one, unless the problem is known.
        self.checks_gradient = True
        #: Gradient steps finished.
        self.clock = 0
        #: Epochs finished.
        self.epoch = 0
        #: Time from the first step to the last, in seconds; set at the end.
        self.seconds = 0.0
        #: Batches to skip, because rounds with backups were closed without this worker.
        self._skip = 0

    async def run(self) -> Meter:
        """Train to the end; return the meter."""
        self.meter.begin()
        while not self._finished(self.epoch):
            own = () if self._dealt is None else (self._dealt(self.epoch),)
            batches = await self._port.aside(
                self._problem.batches, self._worker, self._workers, self.epoch, *own
            )
            complete = await self._epoch(self.epoch, batches)
            if not complete:
                break
            self.epoch += 1
            # Still batches to skip: the worker was overtaken past the end of this epoch, and its
            # clock belongs to a later one.
            if self._skip or self._finished(self.epoch):
                continue
            if self.clock > self.meter.reported_step:  # else it was an epoch without batches
                await self._report(self._port.theta, epoch_end=True)
        theta = self._port.theta
        if self._port.theta_memory is ThetaMemory.SHARED:
            # Workers with more data go on, and their next versions are made there.
            np.copyto(self._gradient, theta)
            theta = self._gradient
        for outcome in await self.strategy.leave(self.clock):
            self.meter.add(0.0, 0, outcome, steps=0)
        self.seconds = self.meter.seconds
        await self._report(theta, epoch_end=True, last=True)
        return self.meter

    @property
    def stats(self) -> Stats:
        """This rank's counters; complete once ``run`` has returned."""
        port, stats = self._port, self.meter.stats
        stats.steps, stats.epochs, stats.seconds = self.clock, self.epoch, self.seconds
        stats.bytes_sent, stats.bytes_received = port.bytes_sent, port.bytes_received
        if not port.role_map.servers:
            stats.updates, stats.fingerprint = self.strategy.updates, fingerprint(port.theta)
        stats.frame_bytes = self.strategy.frame_bytes
        stats.framed_bytes = self.strategy.framed_bytes
        return stats

    def _finished(self, progress: float) -> bool:
        return progress >= self._length.epochs or self.clock >= self._length.steps

    async def _epoch(self, epoch: int, batches: Iterable[Any]) -> bool:
        """Take the steps of an epoch; return whether it was completed."""
        try:
            numbered = enumerate(batches)
        except TypeError:
            raise not_iterable(batches) from None
        share = 1.0 / len(batches) if isinstance(batches, Sized) and len(batches) else 0.0
        empty = True
        for index, batch in numbered:
            empty = False
            progress = epoch + index * share
            if self._finished(progress):
                return False
            if self._skip:
                self._skip -= 1
                continue
            if self.meter.due(self.clock):  # not right after the step: it may end the epoch
                await self._report(self._port.theta)
            await self._step(batch, progress)
        # With a limit of steps only, a worker without data would otherwise never stop.
        return not (empty and self._length.epochs == math.inf)

    async def _step(self, batch: Any, progress: float) -> None:
        samples = self._samples_in(batch)
        step = Step(self.clock, samples, progress)
        self.strategy.begin(step)
        loss = computed_s = 0.0
        if samples:
            loss_and_grad = self._problem.loss_and_grad
            if self.checks_gradient:
                mark_unwritten(self._gradient)
                if self.strategy.ready is None:  # else theta may change as soon as a part is ready
                    loss_and_grad = reading_only(loss_and_grad)
            began = self._port.now() if self._is_timed else 0.0
            loss = await self._port.compute(
                loss_and_grad, self._port.theta, batch, self._gradient, *self._hook
            )
            if self._is_timed:
                computed_s = self._port.now() - began
            try:
                finite = math.isfinite(loss)
            except TypeError:
                raise not_a_loss(loss) from None
            if not finite:
                raise DivergedError(
                    f"diverged: the loss is {loss} at step {self.clock + 1} on worker "
                    f"{self._worker} (rank {self._port.rank}); try a smaller --lr, or scale "
                    "the inputs"
                )
            if self.checks_gradient:
                self.checks_gradient = False
                if self.strategy.ready is None:  # else parts may already hold sums
                    check_written(self._gradient)
        # After the gradient: in a simulation all workers share the problem's batch buffers, and
        # another one would overwrite them while this one pauses.
        if self._delays is not None:
            delay = self._delays.seconds(self.clock, computed_s, self._rng)
            if delay:
                await self._port.pause(delay)
        outcome = await self.strategy.step(step)
        # More than one clock further only if backups overtook this worker: the data of the steps
        # between is not trained on, so that all workers stay at the same place in the epoch.
        self._skip = outcome.clock - self.clock - 1
        self.clock = outcome.clock
        self.meter.add(loss, samples, outcome)

    async def _report(self, theta: Vector, *, epoch_end: bool = False, last: bool = False) -> None:
        figures: dict[str, float] = {}
        if self._worker == 0 and epoch_end:
            found = await self._port.aside(self._problem.evaluate, theta)
            figures = checked_figures(found)
        self.meter.report(self.epoch, self.clock, figures, epoch_end=epoch_end, last=last)
