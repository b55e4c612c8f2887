"""The protocol of a problem, and psrt's own problem."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index
from typing import Any, Protocol, SupportsIndex

import numpy as np

from psrt.codec.matrices import Matrix, between
from psrt.core.arrays import FloatArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.data import BatchPlan, Dataset
from psrt.model import MLP
from psrt.model.chain import ChainLayer, SliceGroup
from psrt.model.tensor import TensorSlice
from psrt.optim.optimizer import OwnOptimizer
from psrt.runtime.named_arrays import named_arrays
from psrt.runtime.problem_rules import check_takes_samples, no_labels, not_labels, not_matrices


class Problem(Protocol):
    """What psrt needs from a model and its data. Any object with these methods is a problem.

    All parameters are one flat float32 vector ``theta`` of shape (n,).

    **Gradients in parts.** A problem may have one more method, ``gradient_spans() ->
    Sequence[Span]``: spans that tile [0, n) from its end to its beginning, in the order in which
    a backward pass finishes them. Then ``loss_and_grad`` gets a fourth argument, ``ready``, which
    is None or must be called with i as soon as the gradient of the i-th span is final and its
    parameters are not read any more in this step, in order. Finished parts are sent to the other
    workers while the rest is computed, and ``theta`` may change there. Without the method the
    gradient is complete when ``loss_and_grad`` returns.

    **Labels.** With a method ``labels() -> (N,)`` of whole numbers, the label of each training
    sample, ``--partition`` can assign the samples to workers. ``batches`` then gets a fourth
    argument ``samples``: for each step of the epoch, an array of positions in ``labels()``, which
    may be empty. It returns the batch of each. In ``iid`` it gets three arguments, as without
    ``labels``.

    **Names.** With a method or attribute ``names_and_shapes``, a pair of name and shape for each
    array in ``theta``, in its order, ``model.safetensors``, reports and errors name the arrays.

    **Matrices.** With a method ``matrices() -> Sequence[tuple[int, int, int]]``, of the start, the
    number of rows and that of columns of each in ``theta``, ascending, a low-rank codec finds them;
    without it those of ``names_and_shapes`` with two or more axes.

    **Workers' own state.** With a method ``of_worker(number) -> Problem``, each worker trains on
    the result, for workers in one process that share a model but not, say, running means; its
    ``state()`` is that worker's. A method ``conclude(states)`` is called in every process when
    training is over; ``theta`` must not be used afterwards. In the first process, which evaluates
    and writes files, ``states`` has the result of each worker's ``state()``, by its number;
    elsewhere it is empty.

    **Optimizer.** An attribute ``own_optimizer``, a ``psrt.optim.optimizer.OwnOptimizer``, makes
    the updates instead of an optimizer of psrt, on every rank that has parameters to update.

    **Layers.** With the methods of a ``psrt.model.chain.Chain``, ``layers`` and ``loss``, the model
    can be split into stages that different ranks compute.
    """

    def initial(self) -> Vector:
        """Return the (n,) parameters to start from; asked at rank 0 only."""
        ...

    def batches(self, worker: int, workers: int, epoch: int) -> Iterable[Any]:
        """Return one worker's batches of an epoch, counted from 0.

        Worker i should get the i-th slice of the samples of a step. The numbers of batches may
        differ among workers. If the result has a length, learning-rate schedules advance within
        the epoch, too, and a run may end within one.

        Args:
            worker: its number, in ``[0, workers)``.
            workers: their number, W.
            epoch: counted from 0; asked for in ascending order.

        Returns:
            Batches of any type, passed to ``loss_and_grad`` as they are.
        """
        ...

    def loss_and_grad(self, theta: Vector, batch: Any, out: Vector) -> float:
        """Write the gradient of the batch's mean loss into ``out`` (n,) and return that loss.

        With ``gradient_spans`` there is a fourth argument, see above. ``theta`` must not be
        written: without ``gradient_spans`` the first call is checked for it. Not called for a batch
        without samples.

        Args:
            theta: (n,) float32, the parameters; only read.
            batch: one of ``batches``.
            out: (n,) float32, to be written in full; its former contents have no meaning.

        Returns:
            The mean loss over the samples; one that is nan or infinite ends the run.
        """
        ...

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Return figures on held-out data: ``loss``, ``accuracy`` (in [0, 1]) and any others."""
        ...


def gradient_spans(problem: Problem, n: int) -> tuple[Span, ...]:
    """Return the parts in which a problem's gradient of n elements comes; one if it does not say.

    Raises:
        ConfigError: if they do not tile [0, n) from its end to its beginning.
    """
    asked = getattr(problem, "gradient_spans", None)
    spans = tuple(Span(*_whole(span)) for span in asked()) if callable(asked) else (Span(0, n),)
    stops = [n, *(span.start for span in spans)]
    if stops.pop() != 0 or stops != [span.stop for span in spans] or stops != sorted(stops)[::-1]:
        raise ConfigError(
            f"gradient_spans() must tile [0, {n}) from its end to its beginning, got "
            + ", ".join(f"[{start}, {stop})" for start, stop in spans)
        )
    return spans


def own_optimizer(problem: Problem | None) -> OwnOptimizer | None:
    """Return what makes a problem's updates; None if that is up to the config."""
    found: OwnOptimizer | None = getattr(problem, "own_optimizer", None)
    return found


def problem_of_worker(problem: Problem, number: int) -> Problem:
    """Return what a worker trains on: the problem, unless it has something for each worker."""
    asked = getattr(problem, "of_worker", None)
    found: Problem = asked(number) if callable(asked) else problem
    return found


def matrices_of(problem: Problem, n: int) -> tuple[Matrix, ...]:
    """Return the matrices that a problem has among its n parameters.

    They are those of ``matrices``, or else of ``names_and_shapes``; none if it has neither.

    Raises:
        ConfigError: if they are not three whole numbers each, or do not lie in [0, n) one after
            another.
    """
    asked = getattr(problem, "matrices", None)
    if not callable(asked):
        named = named_arrays(problem, n)
        return () if named is None else tuple(named.matrices())
    given = asked()
    try:
        found = tuple(Matrix(*_whole(it)) for it in given)
    except TypeError:
        raise not_matrices(given) from None
    between(found, n)
    return found


def labels_of(problem: Problem) -> np.ndarray:
    """Return the label of each training sample, (N,) integers, where samples are assigned.

    Raises:
        ConfigError: if it does not say them, or its batches cannot be of given samples.
    """
    asked = getattr(problem, "labels", None)
    if not callable(asked):
        raise no_labels(problem)
    found = np.asarray(given := asked())
    if found.ndim != 1 or found.dtype.kind not in "biu" or not found.size:
        raise not_labels(given)
    check_takes_samples(problem)
    return found


def _whole(numbers: Iterable[SupportsIndex]) -> Iterator[int]:
    """Yield whole numbers, such as numpy's, as Python's own: they are sent and stored as text."""
    for number in numbers:
        yield int(index(number))


class _Epoch:
    """One worker's batches of an epoch: (x, y), gathered into buffers that are used again."""

    def __init__(
        self,
        owner: Supervised,
        steps: int,
        indices: Callable[[int], np.ndarray[Any, Any]],
    ) -> None:
        """Set up; ``indices`` returns the samples of a step."""
        self._owner = owner
        self._steps = steps
        self._indices = indices

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        return map(self._owner.gather, map(self._indices, range(self._steps)))


def fingerprint_of(data: Dataset) -> str:
    """Return the SHA-256 of the training data, as hexadecimal digits."""
    digest = hashlib.sha256()
    for array in (data.x_train, data.y_train):
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class Supervised:
    """An MLP on a data set of inputs and labels or targets."""

    def __init__(self, model: MLP, data: Dataset, *, batch_size: int, seed: int) -> None:
        """Join model and data.

        Args:
            model: takes the data's features and gives as many outputs as it has classes.
            data: training and test set.
            batch_size: samples of one worker's step.
            seed: of the initial parameters and of the order of the samples.
        """
        self.model = model
        self.data = data
        self._batch_size = batch_size
        self._seed = seed
        self._x = np.empty((batch_size, *data.x_train.shape[1:]), data.x_train.dtype)
        self._y = np.empty((batch_size, *data.y_train.shape[1:]), data.y_train.dtype)
        self._plans: dict[int, BatchPlan] = {}

    def initial(self) -> Vector:
        """Return the (n,) parameters drawn with the seed."""
        return self.model.initial(np.random.default_rng(self._seed))

    def fingerprint(self) -> str:
        """Return the SHA-256 of the training data, as hexadecimal digits."""
        return fingerprint_of(self.data)

    def batch_plan(self, workers: int) -> tuple[int, int]:
        """Return the samples of an epoch and of a full batch, which a ``BatchPlan`` cuts."""
        return len(self.data.x_train), self._batch_size

    def labels(self) -> np.ndarray[Any, Any]:
        """Return the label of each training sample; an error if it has targets instead."""
        return self.data.labels

    def batches(
        self,
        worker: int,
        workers: int,
        epoch: int,
        samples: Sequence[np.ndarray[Any, Any]] | None = None,
    ) -> _Epoch:
        """Return worker ``worker``'s slices of the epoch's global batches, or given samples.

        Args:
            worker: its number, in ``[0, workers)``.
            workers: their number, W.
            epoch: counted from 0.
            samples: (b,) intp for each step; None where samples are not assigned.
        """
        if samples is not None:
            return _Epoch(self, len(samples), samples.__getitem__)
        if workers not in self._plans:
            self._plans[workers] = BatchPlan(
                len(self.data.x_train),
                batch_size=self._batch_size,
                workers=workers,
                seed=self._seed,
            )
        plan = self._plans[workers]
        return _Epoch(self, plan.steps_per_epoch, lambda step: plan.indices(epoch, step, worker))

    def gather(
        self, indices: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Copy samples into the batch buffers; the views are valid until the next call."""
        x, y = self._x[: len(indices)], self._y[: len(indices)]
        # "clip" lets numpy write straight into ``out``; the indices are in range.
        np.take(self.data.x_train, indices, axis=0, out=x, mode="clip")
        np.take(self.data.y_train, indices, axis=0, out=y, mode="clip")
        return x, y

    def gradient_spans(self) -> tuple[Span, ...]:
        """Return the layers' spans, the last layer first."""
        return self.model.gradient_spans()

    def matrices(self) -> tuple[Matrix, ...]:
        """Return the places of the layers' weights."""
        return self.model.matrices()

    def layers(self) -> Sequence[ChainLayer]:
        """Return the model's layers: it is a ``psrt.model.chain.Chain``."""
        return self.model.layers()

    def loss(self, outputs: FloatArray, targets: Any, rows: int) -> float:
        """Return the loss of some rows of a batch of ``rows``."""
        return self.model.loss(outputs, targets, rows)

    def tensor_slice(self, slices: int, index: int, group: SliceGroup | None = None) -> TensorSlice:
        """Return what one of several ranks has of the model's layers."""
        return TensorSlice(self.model, slices, index, group)

    def loss_and_grad(
        self,
        theta: Vector,
        batch: Any,
        out: Vector,
        ready: Callable[[int], None] | None = None,
    ) -> float:
        """Write the mean gradient of a batch (x, y) into ``out`` and return the mean loss."""
        x, y = batch
        return self.model.loss_and_grad(theta, x, y, out, ready)

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Return loss and, for labels, accuracy on the test set."""
        loss, accuracy = self.model.evaluate(theta, self.data.x_test, self.data.y_test)
        return {"loss": loss} if accuracy is None else {"loss": loss, "accuracy": accuracy}

    def tensors(self, theta: Vector) -> dict[str, np.ndarray[Any, Any]]:
        """Return named views of the parameters."""
        return self.model.tensors(theta)
