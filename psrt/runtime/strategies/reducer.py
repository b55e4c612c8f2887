"""Weighted sums over all workers in buckets, each followed by the update of its elements.

One round is one shared update of θ. It has two parts:

1. The *control values*, three numbers behind the gradient: the weight, so that the divisor counts
   the samples actually used; the number of workers still training, so that all stop together; and
   their progress, so that all use the same learning rate. They are known before a worker computes
   its gradient, so their sum begins there. With several buckets it progresses whenever a bucket
   is handed over; with one bucket, or without overlap, nothing polls it while the gradient is
   computed, so all but its first step adds to the time of the round: with a ring of 16 ranks, two
   milliseconds of latency where the gradient takes ten.
2. The *buckets* of the gradient, each a sum of its own. As soon as sums are complete, their
   elements are updated, each by the worker that the port makes its owner. No update is taken
   before the control values are known: they give the divisor and the learning rate.

Optimizers are element-wise, so θ depends neither on the split into buckets, nor on the order in
which they finish, nor on the owner of an element. But a schedule may add the workers' terms of an
element in an order that depends on its position in the bucket, as the ring does. Then other buckets
give other roundings, though the same on all workers.

**With a codec** buckets are summed as frames, by ``transport.coded_sum``, and the result is the
mean. What is encoded depends on the divisor, so no bucket starts before the control values are
known; buckets that are final before then wait, and start at the next poll.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.errors import ProtocolError
from psrt.core.partition import Span
from psrt.history.log import QUEUED
from psrt.runtime.checksum import checksum
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.controls import ControlSum
from psrt.runtime.strategies.shares import Shares
from psrt.runtime.updater import Updater
from psrt.runtime.weakly import weakly
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import CONTROL, Port, Reduction, gradient_of


class Reducer:
    """One worker's part in all rounds."""

    saved = ("updates", "_updater", "_codec")

    def __init__(
        self,
        port: Port,
        updater: Updater,
        *,
        algorithm: str,
        full: int,
        buckets: Sequence[Span],
        base: Vector | None = None,
        one_theta: bool = False,
        check_every: int = 0,
        control_algorithm: str | None = None,
        codec: SumCodec | None = None,
        shares: Shares | None = None,
        along: Callable[[], Awaitable[None]] | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Make the plans; collective.

        Args:
            port: of a job without servers, so that worker numbers are ranks.
            updater: turns the mean into the next θ.
            algorithm: ``auto`` or the name of an all-reduce.
            full: the number of samples with weight 1, those of a full batch: no scaling needed.
            buckets: tile ``gradient[:n]`` in the order in which they are begun.
            base: (n,) the vector that the updater steps from, if not θ itself; kept equal to the
                θ of the last round in the elements that this worker owns.
            one_theta: whether θ is the same on all workers at all times, so that those of a host
                may share it.
            check_every: rounds between two checks that θ is the same everywhere; 0 for none.
            control_algorithm: the all-reduce of the control values; None applies ``algorithm``.
            codec: makes the messages of the buckets; None sends numbers as they are.
            shares: the parts of the buckets that this worker owns, where the updater knows no
                other elements; None where it knows all.
            along: begins all buckets of a round in which this worker contributes zeros; None has
                the whole gradient set to zero and begins them at once.
            events: records events for the history; None keeps none.
        """
        assert not port.role_map.servers, "an all-reduce is among all ranks"
        self._port = port
        self._along = along
        self._updater = updater
        self._full = full
        self._check_every = check_every
        self._events = events
        self._alone = len(port.role_map.workers) == 1
        self._vector = gradient_of(port)
        #: The all-reduce of the control values, after ``auto``.
        self.control_algorithm = port.choice(control_algorithm or algorithm, CONTROL)[0]
        self._control = ControlSum(port, self.control_algorithm)
        largest = max(buckets, key=lambda span: span.size, default=Span(0, 0))
        #: The all-reduce of the buckets, after ``auto``, and the reason.
        alone = self._alone and not (codec is not None and codec.of_optimizer)
        self._codec = None if alone else codec
        coded = None if self._codec is None else self._codec.coding(largest)
        self.chosen, self.why = port.choice(
            algorithm,
            largest.size,
            coded=coded,
            sharded=None if shares is None else shares.shard,
        )
        if one_theta and not self._alone:
            port.share_theta(self.chosen)
        self._theta = port.theta
        self._base = port.theta if base is None else base
        if shares is None:
            self._buckets = [
                port.reduction(span, self.chosen, weakly(self._take), self._codec)
                for span in buckets
            ]
        else:
            self._buckets = [
                port.reduction(
                    span,
                    self.chosen,
                    partial(weakly(self._take_own), shift, held.spreads),
                    held=held,
                )
                for span, shift, held in zip(buckets, shares.shifts, shares.held, strict=True)
            ]
        #: Buckets of this round that are final, and those that have begun.
        self._final = self._begun = 0
        #: Those of them that are not known to be complete.
        self._open: list[Reduction] = []
        #: The sum of all weights; None until the control values are summed and heeded.
        self._total: float | None = None
        #: 1 / the total; None if that is 1, or if a codec has divided by it.
        self._scale: np.ndarray | None = None
        #: By first element, where each block ends that this worker has updated, by its place in θ.
        self._taken: dict[int, int] = {}
        #: Updates so far, the same on every worker.
        self.updates = 0
        #: Waiting time of the newest round, in seconds.
        self.waited = 0.0
        #: This worker's part in the round: the step, its weight, whether it is still training.
        self._brought = Step(0, 0, 0.0), 0.0, False

    @property
    def owned(self) -> list[Span]:
        """The elements that this worker updates, where all keep the whole vector, in order."""
        found: list[Span] = []
        for start, stop in sorted(self._taken.items()):
            if found and start <= found[-1].stop:
                found[-1] = Span(found[-1].start, max(stop, found[-1].stop))
            else:
                found.append(Span(start, stop))
        return found

    def weight(self, samples: int) -> float:
        """Return the weight of this rank's ``samples``: a single worker's always weigh 1."""
        return float(samples > 0) if self._alone else samples / self._full

    def start(self, weight: float, step: Step, *, present: bool = True) -> None:
        """Begin a round with the sum of the control values. Never waits.

        Args:
            weight: the factor of this worker's numbers, in [0, 1]; 0 without samples.
            step: its clock, samples and progress.
            present: whether it is still training.
        """
        self._brought = step, weight, present
        self._final = self._begun = 0
        self._total = None
        self._control.begin(weight, present=present, progress=step.progress)
        if self._alone:
            self._heed()

    def begin(self) -> None:
        """Begin the sum of the next bucket, whose numbers are final and weighted."""
        self._final += 1
        self._begin_final()

    def _begin_final(self) -> None:
        """Begin the buckets that are final, unless a codec must know the divisor first."""
        if self._codec is not None and self._total is None:
            return
        for reduction in self._buckets[self._begun : self._final]:
            reduction.begin()
            self._open.append(reduction)
        self._begun = self._final

    def poll(self) -> None:
        """Progress the sums that have begun, without waiting."""
        if self._total is None:
            if not self._control.poll():
                return
            self._heed()
            self._begin_final()
        self._open = [reduction for reduction in self._open if not reduction.poll()]

    async def release(self, i: int) -> None:
        """Wait until the i-th bucket, if there is one, is summed: its place is free again."""
        if i >= 0:
            if self._total is None:
                await self._control.finish()
                self._heed()
            await self._buckets[i].finish()

    async def finish(self, *, empty: bool = False) -> bool:
        """Wait until every bucket is summed and the next θ is in place on all workers.

        Buckets that have not begun do so now. In a round without any samples there is nothing to
        sum, and no bucket begins on any worker.

        Args:
            empty: this worker contributes zeros, whatever its gradient holds; no bucket has begun.

        Returns:
            Whether any worker is still training.

        Raises:
            ProtocolError: on every worker, if θ was compared and is not the same everywhere.
        """
        began = self._port.now()
        events = self._events
        if events is not None:
            (clock, samples, progress, *_), weight, present = self._brought
            events.note(
                (events.reduces, began, clock, self.updates, samples, progress, weight, present)
            )
        if self._total is None:
            await self._control.finish()
            self._heed()
        if self._total:
            if empty and self._along is not None:
                await self._along()
            elif empty:
                self._vector[:] = 0.0
            self._final = len(self._buckets)
            self._begin_final()
            for reduction in self._open:
                await reduction.finish()
            self._open.clear()
            self.updates += 1
            if self._check_every and self.updates % self._check_every == 0:
                await self._check()
        assert not self._open, "a worker with samples has a weight"
        training = self._control.present > 0
        now = self._port.now()
        self.waited = now - began
        if events is not None:
            clock, rate = self._brought[0].clock, self._updater.lr if self._total else 0.0
            total = self._total or 0.0
            if len(events.noted) >= QUEUED:
                events.drain()
            events.note(
                (events.reduced, now, clock, self.updates, total, rate, self.waited, training)
            )
        return training

    async def join(
        self, clock: int, at_round: Callable[[int], Awaitable[object]] | None = None
    ) -> float:
        """Take part with weight zero until no worker is training.

        Args:
            clock: gradient steps that this worker finished.
            at_round: called after each round in which others trained, with their clock.

        Returns:
            The waiting time of these rounds, in seconds.
        """
        if self._events is not None:
            self._events.left(self._port.now(), clock)
        training, waited, ahead = not self._alone, 0.0, 0
        while training:
            training = await self.follow(clock)
            waited += self.waited
            ahead += 1
            if training and at_round is not None:
                await at_round(clock + ahead)
        return waited

    async def follow(self, clock: int) -> bool:
        """Take part in one round with weight zero; return whether any worker is training."""
        self.start(0.0, Step(clock, 0, 0.0), present=False)
        return await self.finish(empty=True)

    @property
    def samples(self) -> int:
        """The samples of all workers in the newest round."""
        return round((self._total or 0.0) * self._full)

    def _heed(self) -> None:
        """Take up the sums of the control values; from now on blocks can be updated."""
        control = self._control
        self._total = total = control.total
        if total:
            progress = control.progress / control.present
            scale = np.float32(1.0 / total)
            divides = self._codec is None and scale != 1.0
            self._scale = np.array(scale) if divides else None
            self._updater.begin(progress)
            if self._codec is not None:
                rate = self._updater.lr
                self._codec.begin_round(self.updates, int(progress), total, rate)

    def _take(self, span: Span, sums: Vector) -> None:
        """Update one block from its sums."""
        self._taken[span.start] = span.stop
        if self._scale is not None:
            np.multiply(sums, self._scale, out=sums)
        theta, base = span.of(self._theta), span.of(self._base)
        self._updater.block(span, base, sums, theta)
        if self._base is not self._theta:
            np.copyto(base, theta)

    def _take_own(self, shift: int, spreads: bool, span: Span, sums: Vector) -> None:
        """Update one block of those that the updater knows, by their places there.

        Where parameters are not spread, they are kept in the same order as the optimizer's state.
        """
        if self._scale is not None:
            np.multiply(sums, self._scale, out=sums)
        own = Span(span.start + shift, span.stop + shift)
        theta = (span if spreads else own).of(self._theta)
        self._updater.block(own, theta, sums, theta)

    async def _check(self) -> None:
        port = self._port
        wrong = await port.differing(checksum(self._theta))
        if wrong:
            who = ", ".join(map(port.role_map.worker_name, wrong))
            raise ProtocolError(
                f"the parameters of worker {who} differ from the others' after update "
                f"{self.updates}, they must be equal to the bit"
            )
