"""Assign samples to workers and steps: seeded, disjoint, for any number of workers. Pure."""

from __future__ import annotations

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.partition import Span, even_span

#: Number of epochs whose order is kept.
_KEPT = 3


class BatchPlan:
    """Splits every epoch into global batches, and every global batch into one slice per worker.

    The order of an epoch depends only on ``seed`` and the epoch, and step ``t`` takes the next
    ``batch_size * workers`` samples of it. So 4 workers with batches of 8 and 1 worker with
    batches of 32 see the same samples at the same step, and a run with servers or all-reduce
    can be compared with serial mini-batch SGD.

    A worker may ask for epochs in any order. The orders of the last few are kept (8 bytes per
    sample each), because workers in one process need not all be in the same epoch.

    Args:
        samples: number of training samples, at least 1.
        batch_size: number of samples per worker and step, at least 1.
        workers: number of workers that share a global batch, at least 1.
        seed: of the order of the epochs, not negative.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def __init__(self, samples: int, *, batch_size: int, workers: int, seed: int) -> None:
        for name, value, least in (
            ("samples", samples, 1),
            ("batch_size", batch_size, 1),
            ("workers", workers, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        #: Number of training samples, those of one epoch.
        self.samples = samples
        #: Number of samples of one worker in a full step.
        self.batch_size = batch_size
        #: Number of workers, the slices of a global batch.
        self.workers = workers
        #: Seed of the order of the epochs.
        self.seed = seed
        #: Number of samples of all workers together in a full step.
        self.global_batch = batch_size * workers
        #: Number of steps of an epoch, which sees every sample once; the last may be smaller.
        self.steps_per_epoch = -(-samples // self.global_batch)
        #: The epochs requested last → their orders, oldest first.
        self._orders: dict[int, np.ndarray] = {}

    def order(self, epoch: int) -> np.ndarray:
        """Return the permutation (samples,) intp of an epoch; read-only."""
        order = self._orders.get(epoch)
        if order is None:
            rng = np.random.default_rng((self.seed, epoch))
            order = rng.permutation(self.samples).astype(np.intp, copy=False)
            order.flags.writeable = False
            if len(self._orders) == _KEPT:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = order
        return order

    def indices(self, epoch: int, step: int, worker: int) -> np.ndarray:
        """Return the samples of one worker's batch.

        Args:
            epoch: counted from 0.
            step: step of the epoch, in ``[0, steps_per_epoch)``.
            worker: in ``[0, workers)``.

        Returns:
            (b,) intp, a view of the epoch's order. ``b`` is ``batch_size``, except in a smaller
            last step: the remaining samples are split evenly, and the last workers may get none.

        Raises:
            IndexError: if there is no such step or worker.
        """
        if not (0 <= step < self.steps_per_epoch and 0 <= worker < self.workers):
            raise IndexError(
                f"step {step} of worker {worker} is not among "
                f"{self.steps_per_epoch} steps of {self.workers} workers"
            )
        share = self.share(step, worker)
        return self.order(epoch)[share.start : share.stop]

    def share(self, step: int, worker: int) -> Span:
        """Return the span of an epoch's order that belongs to a worker at a step."""
        start = step * self.global_batch
        size = min(self.global_batch, self.samples - start)
        if size == self.global_batch:  # every step but the last; an even split gives the same
            first = start + worker * self.batch_size
            return Span(first, first + self.batch_size)
        share = even_span(size, self.workers, worker)
        return Span(start + share.start, start + share.stop)
