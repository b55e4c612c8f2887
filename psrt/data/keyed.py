"""What one worker computes at one step: which samples, and what its random draws depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from psrt.arrays import AnyArray
from psrt.data.batches import BatchPlan
from psrt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples by number. They are looked up when the gradient is computed, with the same draws."""

    #: Of the worker, the epoch, and the step in it.
    key: tuple[int, int, int]
    #: (b,) whole numbers.
    indices: AnyArray


class Epoch:
    """One worker's batches of an epoch."""

    def __init__(
        self, worker: int, epoch: int, steps: int, indices: Callable[[int], AnyArray]
    ) -> None:
        """Set up; ``indices`` returns the samples of a step."""
        self._worker, self._epoch, self._steps, self._indices = worker, epoch, steps, indices

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self._steps):
            yield Batch((self._worker, self._epoch, step), self._indices(step))


class KeyedBatches:
    """The part of a problem that says which samples are whose, by a plan or as they are dealt."""

    def __init__(self, samples: int, *, batch_size: int, seed: int) -> None:
        """Set up.

        Args:
            samples: number of training samples.
            batch_size: samples of one worker's step, at least 1.
            seed: of the order of the samples, at least 0.

        Raises:
            ConfigError: if one of them is out of range.
        """
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0)):
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        self._samples, self._batch_size, self._seed = samples, batch_size, seed
        self._plans: dict[int, BatchPlan] = {}

    def batch_plan(self, workers: int) -> tuple[int, int]:
        """Return the samples of an epoch and of a full batch, which a ``BatchPlan`` cuts."""
        return self._samples, self._batch_size

    def batches(
        self,
        worker: int,
        workers: int,
        epoch: int,
        samples: Sequence[AnyArray] | None = None,
    ) -> Epoch:
        """Return worker ``worker``'s slices of the epoch's global batches, or given samples."""
        if samples is not None:
            return Epoch(worker, epoch, len(samples), samples.__getitem__)
        if workers not in self._plans:
            self._plans[workers] = BatchPlan(
                self._samples, batch_size=self._batch_size, workers=workers, seed=self._seed
            )
        plan = self._plans[workers]
        steps = plan.steps_per_epoch
        return Epoch(worker, epoch, steps, lambda step: plan.indices(epoch, step, worker))

    def samples(self, batch: Batch) -> int:
        """Return the number of samples of a batch."""
        return len(batch.indices)
