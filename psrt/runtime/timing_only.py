"""A problem without numbers, for simulations that ask about time and staleness alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psrt.codec import Matrix
from psrt.core.arrays import Vector
from psrt.core.partition import Span


@dataclass(frozen=True, slots=True)
class _Batches:
    """Sizes of one worker's batches of an epoch."""

    full: int
    steps: int
    #: Samples of the last step.
    last: int

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.steps - 1):
            yield self.full
        yield self.last


class TimingOnlyProblem:
    """A stand-in for a model and its data: batches of the same sizes, and no gradient.

    It is used with a transport whose vectors are empty, so neither memory nor time grows with the
    number of parameters. A batch is the number of its samples.
    """

    def __init__(
        self,
        n: int,
        *,
        batch_size: int,
        steps: int | None = None,
        samples: int | None = None,
        labels: np.ndarray[Any, Any] | None = None,
        spans: Sequence[Span] = (),
        matrices: Sequence[Matrix] = (),
    ) -> None:
        """Set the length of an epoch, by ``steps`` or by ``samples``.

        Args:
            n: elements that the parameters would have.
            batch_size: samples of one worker's step.
            steps: of an epoch, for each worker; every batch is full.
            samples: of the data set, split into batches as by ``BatchPlan``, or assigned.
            labels: (N,) integers, of those samples; None where nobody will ask.
            spans: the gradient's spans in the order in which they would become ready, see
                ``Problem``; without any, the whole at once.
            matrices: among the parameters that there would be.
        """
        assert (steps is None) != (samples is None), "an epoch has one length"
        #: Elements that the parameters would have.
        self.n = n
        self._batch_size = batch_size
        self._steps = steps
        self._samples = samples
        self._labels = labels
        self._spans = tuple(spans) or (Span(0, n),)
        self._matrices = tuple(matrices)

    def initial(self) -> Vector:
        """Return no parameters."""
        return np.zeros(0, np.float32)

    def batch_plan(self, workers: int) -> tuple[int, int]:
        """Return the samples of an epoch and of a full batch, which a ``BatchPlan`` would cut."""
        if self._samples is None:
            assert self._steps is not None
            return self._steps * self._batch_size * workers, self._batch_size
        return self._samples, self._batch_size

    def labels(self) -> np.ndarray[Any, Any]:
        """Return the labels of the samples."""
        assert self._labels is not None, "made for samples that are assigned"
        return self._labels

    def batches(
        self,
        worker: int,
        workers: int,
        epoch: int,
        samples: Sequence[np.ndarray[Any, Any]] | None = None,
    ) -> _Batches | list[int]:
        """Return the sizes of one worker's batches; the same in every epoch."""
        if samples is not None:
            return [len(it) for it in samples]
        size = self._batch_size
        if self._samples is None:
            assert self._steps is not None
            return _Batches(size, self._steps, size)
        whole = size * workers
        steps = -(-self._samples // whole)
        left = self._samples - (steps - 1) * whole
        share, more = divmod(left, workers)  # as ``even_spans`` cuts
        return _Batches(size, steps, share + (worker < more))

    def samples(self, batch: int) -> int:
        """Return the batch: it is its own size."""
        return batch

    def gradient_spans(self) -> tuple[Span, ...]:
        """Return the parts in which the gradient would be done."""
        return self._spans

    def matrices(self) -> tuple[Matrix, ...]:
        """Return the places of the matrices that there would be."""
        return self._matrices

    def loss_and_grad(
        self, theta: Vector, batch: Any, out: Vector, ready: Callable[[int], None] | None = None
    ) -> float:
        """Compute nothing; the parts are done in their order."""
        if ready is not None:
            for i in range(len(self._spans)):
                ready(i)
        return 0.0

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Return no figures."""
        return {}
