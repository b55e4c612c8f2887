"""Weighted sums over all workers in buckets, each with the update that it leads to.

One round is one shared update of θ. It has two parts:

1. The *extras*, three numbers behind the gradient: the weight, so that the divisor is what was
   really there; how many workers are still training, so that all stop together; and their
   progress, so that all take the same learning rate. They are known before a worker computes
   its gradient, so their sum begins there. With several buckets it moves on whenever a bucket is
   handed over; with one bucket, or without overlap, nobody moves it on while the gradient is
   computed, so all but its first step adds to the time of the round: by a ring of 16 ranks, two
   milliseconds of latency where the gradient takes ten.
2. The *buckets* of the gradient, each summed by itself. As soon as sums are there, the update of
   their elements is taken; which of them this worker takes is the port's affair. Nothing is
   taken before the extras are known: they give the divisor and the learning rate.

The cut into buckets, the order in which they are finished and who owns an element do not show in
θ: optimizers are element-wise. But a schedule may add the workers' terms of an element in an order
that depends on where in its bucket it is, as the ring does; then other buckets give other
roundings, the same on all workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.arrays import Vector
from psrt.errors import ProtocolError
from psrt.partition import Span
from psrt.runtime.checksum import checksum
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import Step
from psrt.runtime.updater import Updater
from psrt.transport.port import EXTRA, Port, Reduction, gradient_of

#: Where each control value lies behind the gradient.
_WEIGHT, _PRESENT, _PROGRESS = range(EXTRA)


class Reducer:
    """One worker's part in round after round."""

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
        extras: str | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Make the plans; collective.

        Args:
            port: of a job without servers, so that worker numbers are ranks.
            updater: turns the mean into the next θ.
            algorithm: ``auto`` or the name of an all-reduce.
            full: samples that weigh 1: those of the usual case, in which nothing needs scaling.
            buckets: tile ``gradient[:n]`` in the order in which they are begun.
            base: (n,) what the updater steps from where that is not θ itself; kept equal to the
                θ of the last round, but only where this worker owns it.
            one_theta: whether θ is the same on all workers all the time, so that those of a host
                may share it.
            check_every: rounds between two checks that θ is the same everywhere; 0 for none.
            extras: the all-reduce of the extras; None is what ``algorithm`` comes to for them.
            events: takes what happens; None keeps no history.
        """
        assert not port.role_map.servers, "an all-reduce is among all ranks"
        n = port.role_map.n
        self._port = port
        self._updater = updater
        self._full = full
        self._check_every = check_every
        self._events = events
        self._alone = len(port.role_map.workers) == 1
        self._vector, self._extras = gradient_of(port), port.gradient[-EXTRA:]
        self._head: Reduction | None = None
        #: What the all-reduce of the extras came to.
        self.extras = port.choice(extras or algorithm, EXTRA)[0]
        if not self._alone:
            self._head = port.reduction(Span(n, n + EXTRA), self.extras, None)
        largest = max((span.size for span in buckets), default=0)
        #: What ``algorithm`` came to, and why.
        self.chosen, self.why = port.choice(algorithm, largest)
        if one_theta and not self._alone:
            port.share_theta(self.chosen)
        self._theta = port.theta
        self._base = port.theta if base is None else base
        self._buckets = [port.reduction(span, self.chosen, self._take) for span in buckets]
        #: Buckets of this round that have begun.
        self._begun = 0
        #: Those of them that are not known to be over.
        self._open: list[Reduction] = []
        #: The sum of all weights; None until the extras are there.
        self._total: float | None = None
        #: 1 / the total, or None where it changes nothing.
        self._scale: np.ndarray | None = None
        self._present = 0.0
        #: Updates so far, the same on every worker.
        self.updates = 0
        #: Seconds that the newest round was waited for.
        self.waited = 0.0
        #: What this worker brings to the round: the step, its weight, whether it is still training.
        self._brought = Step(0, 0, 0.0), 0.0, False

    def weight(self, samples: int) -> float:
        """Return the weight of so many samples of this rank; alone, all there is weighs 1."""
        return float(samples > 0) if self._alone else samples / self._full

    def start(self, weight: float, step: Step, *, present: bool = True) -> None:
        """Begin a round: tell the others what is to come. Never waits.

        Args:
            weight: what this worker's numbers will have been multiplied with, 0 for none.
            step: where it stands.
            present: whether it is still training.
        """
        progress = step.progress
        self._brought = step, weight, present
        self._begun = 0
        self._total = None
        if self._head is None:
            self._learn(weight, float(present), progress)
            return
        extras = self._extras
        extras[_WEIGHT], extras[_PRESENT], extras[_PROGRESS] = weight, present, progress
        self._head.begin()

    def begin(self) -> None:
        """Begin the next bucket, whose numbers are final, with their weight in them."""
        reduction = self._buckets[self._begun]
        self._begun += 1
        reduction.begin()
        self._open.append(reduction)

    def poll(self) -> None:
        """Move on what has begun, without waiting."""
        if self._total is None:
            if self._head is None or not self._head.poll():
                return
            self._learn_sums()
        self._open = [reduction for reduction in self._open if not reduction.poll()]

    async def finish(self, *, empty: bool = False) -> bool:
        """Wait until every bucket is summed and θ is the next one everywhere.

        Buckets that have not begun do so now. In a round in which nobody has any samples there
        is nothing to sum, and none of them begins, anywhere.

        Args:
            empty: this worker brings nothing, whatever its gradient holds; no bucket has begun.

        Returns:
            Whether any worker is still training.

        Raises:
            ProtocolError: on every worker, if θ was compared and is not the same everywhere.
        """
        began = self._port.now()
        if self._events is not None:
            (clock, samples, progress), weight, present = self._brought
            self._events.reduces(
                began, clock, self.updates, samples, progress, weight, present=present
            )
        if self._total is None:
            assert self._head is not None, "alone, all is known from the start"
            await self._head.finish()
            self._learn_sums()
        if self._total:
            if empty:
                self._vector[:] = 0.0
            while self._begun < len(self._buckets):
                self.begin()
            for reduction in self._open:
                await reduction.finish()
            self._open.clear()
            self.updates += 1
            if self._check_every and self.updates % self._check_every == 0:
                await self._check()
        assert not self._open, "a worker with samples has a weight"
        training = self._present > 0
        now = self._port.now()
        self.waited = now - began
        if self._events is not None:
            clock, rate = self._brought[0].clock, self._updater.lr if self._total else 0.0
            self._events.reduced(
                now, clock, self.updates, self._total or 0.0, rate, self.waited, present=training
            )
        return training

    async def join(self, clock: int) -> None:
        """Take part with nothing, until no worker is training any more.

        Args:
            clock: of this worker, who is not any more.
        """
        if self._events is not None:
            self._events.left(self._port.now(), clock)
        training = not self._alone
        while training:
            self.start(0.0, Step(clock, 0, 0.0), present=False)
            training = await self.finish(empty=True)

    def _learn_sums(self) -> None:
        extras = self._extras.tolist()
        self._learn(extras[_WEIGHT], extras[_PRESENT], extras[_PROGRESS])

    def _learn(self, total: float, present: float, progress: float) -> None:
        """Take in the sums of the extras: now updates can be taken."""
        self._total, self._present = total, present
        if total:
            scale = np.float32(1.0 / total)
            self._scale = None if scale == 1.0 else np.array(scale)
            self._updater.begin(progress / present)

    def _take(self, span: Span, sums: Vector) -> None:
        """Update one block out of its sums."""
        if self._scale is not None:
            np.multiply(sums, self._scale, out=sums)
        theta, base = span.of(self._theta), span.of(self._base)
        self._updater.block(span, base, sums, theta)
        if self._base is not self._theta:
            np.copyto(base, theta)

    async def _check(self) -> None:
        port = self._port
        wrong = await port.differing(checksum(self._theta))
        if wrong:
            who = ", ".join(f"{worker} (rank {port.role_map.workers[worker]})" for worker in wrong)
            raise ProtocolError(
                f"the parameters of worker {who} differ from the others' after update "
                f"{self.updates}, they must be equal to the bit"
            )
