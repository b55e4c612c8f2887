"""The work of one worker at one step: its samples, and the key of its random draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError
from psrt.data.batches import BatchPlan


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples by number. They are looked up when the gradient is computed, with the same draws."""

    #: The worker, the epoch, and the step in it.
    key: tuple[int, int, int]
    #: (b,) whole numbers.
    indices: AnyArray


@dataclass(eq=False, slots=True)
class Epoch:
    """One worker's batches of an epoch."""

    worker: int
    epoch: int
    steps: int
    indices: Callable[[int], AnyArray]

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.steps):
            yield Batch((self.worker, self.epoch, step), self.indices(step))


class KeyedBatches:
    """The part of a problem that assigns samples to workers, by a plan or a partition."""

    def __init__(
        self,
        samples: int,
        *,
        batch_size: int,
        seed: int,
        weight: Callable[[Any], Any] | None = None,
    ) -> None:
        """Set up.

        Args:
            samples: number of training samples.
            batch_size: samples of one worker's step, at least 1.
            seed: of the order of the samples, at least 0.
            weight: returns the number of terms in a batch's mean loss; None: the number of rows.

        Raises:
            ConfigError: if an argument is out of range.
        """
        if weight is not None and not callable(weight):
            raise ConfigError(f"weight is {weight!r}, expected a function of a batch")
        self._weight = weight
        #: The rows that ``samples`` has looked up, for the gradient that follows.
        self._looked_up: tuple[Batch | None, Any] = None, None
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0)):
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        self._samples, self._batch_size, self._seed = samples, batch_size, seed
        self._plans: dict[int, BatchPlan] = {}

    def batch_plan(self, workers: int) -> tuple[int, int] | None:
        """Return the samples of an epoch and of a full batch, from which a ``BatchPlan`` is made.

        None if batches have weights, since these are not numbers of samples.
        """
        return None if self._weight is not None else (self._samples, self._batch_size)

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

    def rows(self, batch: Batch) -> Any:
        """Return the rows of a batch; overridden."""
        raise NotImplementedError

    def rows_once(self, batch: Batch) -> Any:
        """Return the rows of a batch; they are not looked up again after ``samples``."""
        known, rows = self._looked_up
        self._looked_up = None, None
        return rows if known is batch else self.rows(batch)

    def samples(self, batch: Batch) -> int:
        """Return the weight of a batch in a mean over workers: the number of its samples.

        Raises:
            ConfigError: if ``weight`` did not return a whole number from 0 on.
        """
        if self._weight is None or not len(batch.indices):
            return len(batch.indices)
        rows = self.rows(batch)
        self._looked_up = batch, rows
        return self.weight_of(rows, len(batch.indices))

    def weight_of(self, rows: Any, count: int) -> int:
        """Return the number of terms in the mean loss of ``count`` rows."""
        return count if self._weight is None else whole_weight(self._weight(rows), "weight()")


def whole_weight(found: Any, by: str) -> int:
    """Return a batch's weight, given as a Python number or as an array or tensor of one element.

    >>> whole_weight(3.0, "weight()"), whole_weight(0, "weight()")
    (3, 0)

    Raises:
        ConfigError: if it is not a whole number from 0 on; a sum of shares may be multiplied.
    """
    try:
        number = float(found)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = -1.0
    if number < 0 or number != number // 1:
        raise ConfigError(
            f"{by} returned {str(found)[:40]}, expected a whole number from 0 on, such as the "
            "tokens that count"
        )
    return int(number)
