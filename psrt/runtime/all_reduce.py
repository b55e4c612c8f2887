"""The strategy without servers: mean gradient by a collective, the same step on every rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from psrt.collective import ALGORITHMS
from psrt.optim import clip_factor, l2_norm
from psrt.runtime.strategy import Outcome, Step, Strategy
from psrt.runtime.updater import Contribution, Updater
from psrt.transport.port import EXTRA, PRESENT, PROGRESS, WEIGHT, Port

#: The MPI library's own all-reduce, beside those of ``psrt.collective.ALGORITHMS``.
LIBRARY = "mpi"


class Reducer:
    """Sums the port's ``gradient``, extras included, over all workers."""

    def __init__(self, port: Port, algorithm: str) -> None:
        """Compile this rank's steps.

        Args:
            port: of a job without servers, so that worker numbers are ranks.
            algorithm: a key of ``ALGORITHMS``, or ``LIBRARY``.
        """
        assert not port.wiring.servers, "an all-reduce is among all ranks"
        self._port = port
        self._library = algorithm == LIBRARY
        size = len(port.wiring.workers)
        n = port.wiring.n + EXTRA
        self._steps = [] if self._library else list(ALGORITHMS[algorithm](port.rank, size, n))
        received = [step.receive.size for step in self._steps if step.receive_from is not None]
        self._scratch = np.empty(max(received, default=0), np.float32)

    async def sum(self) -> None:
        """Carry the schedule out."""
        if self._library:
            await self._port.library_allreduce()
            return
        for step in self._steps:
            await self._port.exchange(step, self._scratch)


class Rounds:
    """Weighted sums that also tell who is still there.

    Behind the n numbers travel three more: the weight, so that the divisor is what was really
    there; how many ranks are still training, so that all stop together; and their progress, so
    that all take the same learning rate.
    """

    def __init__(self, port: Port, algorithm: str, *, full: int) -> None:
        """Set up.

        Args:
            port: of a job without servers.
            algorithm: a key of ``ALGORITHMS``, or ``LIBRARY``.
            full: samples that weigh 1: those of the usual case, in which nothing needs scaling.
        """
        self._full = full
        self._reducer = Reducer(port, algorithm)
        self._extras = port.gradient[port.wiring.n :]
        self._vector = port.gradient[: port.wiring.n]
        self._alone = len(port.wiring.workers) == 1

    def weight(self, samples: int) -> float:
        """Return the weight of so many samples of this rank; alone, all there is weighs 1."""
        return float(samples > 0) if self._alone else samples / self._full

    async def sum(self, weight: float, progress: float) -> tuple[float, float]:
        """Sum the gradient buffer, which holds ``weight`` times this rank's numbers.

        Returns:
            the sum of the weights, and the mean progress of those present.
        """
        if self._alone:
            return weight, progress
        self._extras[:] = weight, 1.0, progress
        await self._reducer.sum()
        present = float(self._extras[PRESENT])
        return float(self._extras[WEIGHT]), float(self._extras[PROGRESS]) / present

    async def attend(self, take: Callable[[float, float], None]) -> None:
        """Take part with nothing, until no rank is training any more.

        Args:
            take: called after each round with the sum of the weights and the mean progress.
        """
        while not self._alone:
            self._vector[:] = 0.0
            self._extras[:] = 0.0
            await self._reducer.sum()
            present = float(self._extras[PRESENT])
            if not present:
                return
            take(float(self._extras[WEIGHT]), float(self._extras[PROGRESS]) / present)


class AllReduce(Strategy):
    """Synchronous SGD by all-reduce: θ stays the same, to the bit, on all ranks."""

    def __init__(
        self,
        port: Port,
        updater: Updater,
        *,
        algorithm: str = "ring",
        batch_size: int,
        clip_norm: float | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of a job without servers.
            updater: takes the step, on every rank alike.
            algorithm: a key of ``ALGORITHMS``, or ``LIBRARY``.
            batch_size: samples of a full batch: it has weight 1, so nothing needs scaling.
            clip_norm: longest gradient of a worker.
        """
        self._updater = updater
        self._rounds = Rounds(port, algorithm, full=batch_size)
        self._gradient = port.gradient[: port.wiring.n]
        self._theta = port.theta
        self._clip_norm = clip_norm
        self.updates = 0
        port.whom = lambda: "its neighbours in an all-reduce"

    async def step(self, step: Step) -> Outcome:
        """Average the gradients over all samples of the step and take the optimizer's step."""
        weight = self._rounds.weight(step.samples)
        scale = weight
        if self._clip_norm is not None and step.samples:
            scale *= clip_factor(l2_norm(self._gradient), self._clip_norm)
        if not step.samples:
            self._gradient[:] = 0.0
        elif scale != 1.0:
            np.multiply(self._gradient, np.float32(scale), out=self._gradient)
        self._take(*await self._rounds.sum(weight, step.progress))
        return Outcome(step.clock + 1)

    async def leave(self, clock: int) -> None:
        """Take part with weight zero until nobody is training any more."""
        await self._rounds.attend(self._take)

    def _take(self, total: float, progress: float) -> None:
        if total:
            self.updates += 1
            term = Contribution(self._gradient, 1.0 / total)
            self._updater.apply(self._theta, [term], self._theta, progress=progress)
