"""What one worker computes at one step: which samples, and what its random draws depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psrt.arrays import AnyArray


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
