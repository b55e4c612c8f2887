"""A JAX loss, a tree of parameters and data as a problem that psrt trains under any mode."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from psrt.codec.matrices import Matrix
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.data.keyed import Batch, KeyedBatches
from psrt.runtime.array_tree import ArrayTree, LastViews

#: The fewest samples of a batch of the test set.
_TEST_BATCH = 256
#: The purpose of random draws: the first number of a key.
_STEP, _EVALUATION = range(2)


class Problem(KeyedBatches):
    """A loss over any tree of parameters; see ``psrt.Problem`` for its methods.

    The leaves of the tree are views of psrt's own vector; gradients are copied once, into psrt's
    buffer. Random draws of the loss come from a key that depends only on the seed, the worker and
    the step.

    >>> problem = psrt.jax.Problem(loss, params, (x, y), (u, v), batch_size=32)  # doctest: +SKIP
    >>> run = psrt.run(psrt.TrainConfig(mode="ssp:staleness=2"), problem)       # doctest: +SKIP
    >>> trained = problem.params(run.theta)                                      # doctest: +SKIP
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        params: Any,
        train: Sequence[Any],
        test: Sequence[Any] | None = None,
        *,
        batch_size: int,
        seed: int = 0,
        accuracy: Callable[[Any, Any], Any] | None = None,
        labels: Any = None,
        weight: Callable[[Any], Any] | None = None,
    ) -> None:
        """Join a loss, parameters and data.

        Args:
            loss: ``loss(params, batch)``, or ``loss(params, batch, key)`` with a key for random
                draws, returns the mean loss over a batch: a float32 scalar. It is compiled once for
                each batch size.
            params: the tree of float32 arrays to start from.
            train: a tuple of arrays (N, …), of which a batch is a tuple of rows.
            test: held-out data of the same form; None evaluates nothing.
            batch_size: samples of one worker's step, at least 1.
            seed: of the order of the samples and of the keys.
            accuracy: ``accuracy(params, batch)`` returns the share of right answers; None does not
                measure it.
            labels: (N,) whole numbers by which ``--partition`` splits the data; None takes the last
                array of ``train`` if it has a whole number for each sample.
            weight: ``weight(batch)`` returns the batch's weight in means over workers and over the
                test set: the number of terms in its mean loss, such as the tokens that are not
                ignored. A whole number; a batch of weight 0 is left out. None takes the number of
                samples.

        Raises:
            ConfigError: if an argument is not as described.
        """
        if not callable(loss):
            raise ConfigError(f"the loss is {type(loss).__name__}, expected a function")
        self._tree = ArrayTree(params, called="params")
        self._parameters, self._gradients = LastViews(self._tree), LastViews(self._tree)
        self._initial = self._tree.flat(params)
        self._train = _arrays(train, "train")
        super().__init__(len(self._train[0]), batch_size=batch_size, seed=seed, weight=weight)
        self._test = None if test is None else _arrays(test, "test")
        self._labels = labels
        self._takes_key = _takes_key(loss)
        self._loss = jax.jit(loss)
        self._loss_and_grad = jax.jit(jax.value_and_grad(_scalar(loss)))
        self._accuracy = None if accuracy is None else jax.jit(accuracy)

    def initial(self) -> Vector:
        """Return the (n,) parameters to start from."""
        return self._initial.copy()

    def params(self, theta: Vector) -> Any:
        """Return the tree with the values of a vector (n,), as JAX arrays.

        Raises:
            ConfigError: if the vector has another length.
        """
        given = np.array(theta, np.float32)
        if given.shape != (self._tree.n,):
            raise ConfigError(f"theta is of shape {given.shape}, expected ({self._tree.n},)")
        return jax.tree_util.tree_map(jax.numpy.array, self._tree.on(given))

    def fingerprint(self) -> str:
        """Return the SHA-256 of JAX's version and the training data."""
        found = hashlib.sha256(f"jax {jax.__version__}\n".encode())
        for it in self._train:
            found.update(f"{it.dtype.str} {it.shape}".encode())
            found.update(np.ascontiguousarray(it).data)
        return found.hexdigest()

    def labels(self) -> AnyArray:
        """Return the label of each training sample, (N,) whole numbers.

        Raises:
            ConfigError: if they are not known.
        """
        found = np.asarray(self._train[-1] if self._labels is None else self._labels)
        if found.shape != (len(self._train[0]),) or found.dtype.kind not in "biu":
            raise ConfigError(
                "the problem has no label of each sample: give Problem(…, labels=), whole numbers"
            )
        return found

    def matrices(self) -> list[Matrix]:
        """Return the places of weights with two axes or more."""
        return self._tree.matrices()

    def tensors(self, theta: Vector) -> dict[str, AnyArray]:
        """Return the leaves by their paths, as views of a vector (n,)."""
        return self._tree.named_or(theta, "parameters")

    def loss_and_grad(self, theta: Vector, batch: Batch, out: Vector) -> float:
        """Write the gradient of the batch's mean loss into ``out`` and return that loss."""
        rows = self.rows_once(batch)
        key = self._key(_STEP, *batch.key)
        params = self._tree.made(self._parameters.of(theta))
        loss, gradients = self._loss_and_grad(params, rows, *key)
        # This waits for JAX to finish every read of θ.
        for it, view in zip(
            jax.tree_util.tree_leaves(gradients), self._gradients.of(out), strict=True
        ):
            np.copyto(view, np.asarray(it))
        return float(loss)

    def rows(self, batch: Batch) -> Any:
        """Return the rows of a batch."""
        return tuple(it[batch.indices] for it in self._train)

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Return the loss and, if wanted, the accuracy on the test set; nothing without one.

        Raises:
            ConfigError: if all of it has weight 0.
        """
        if self._test is None:
            return {}
        params, key = self._tree.on(theta), self._key(_EVALUATION)
        sums, weights = np.zeros(2), 0
        size, samples = max(self._batch_size, _TEST_BATCH), len(self._test[0])
        for start in range(0, samples, size):
            rows = tuple(it[start : start + size] for it in self._test)
            if not (weight := self.weight_of(rows, len(rows[0]))):
                continue
            right = 0.0 if self._accuracy is None else float(self._accuracy(params, rows))
            sums += weight * np.array([float(self._loss(params, rows, *key)), right])
            weights += weight
        if not weights:
            raise ConfigError("weight() is 0 for all of the test set, expected a positive weight")
        loss, right = (sums / weights).tolist()
        return {"loss": loss} if self._accuracy is None else {"loss": loss, "accuracy": right}

    def _key(self, *number: int) -> tuple[Any, ...]:
        """Return the key of draws for a loss that takes one; depends on the numbers alone."""
        if not self._takes_key:
            return ()
        [word] = np.random.SeedSequence(self._seed, spawn_key=number).generate_state(1)
        return (jax.random.key(int(word)),)


def _takes_key(loss: Callable[..., Any]) -> bool:
    """Return whether a loss takes a key beside the parameters and the batch.

    Raises:
        ConfigError: if it takes neither two arguments nor three.
    """
    try:
        signature = inspect.signature(loss)
    except ValueError:  # without a signature, such as functions written in C
        return False
    for arguments in range(2, 4):
        try:
            signature.bind(*range(arguments))
        except TypeError:
            continue
        return arguments == 3
    raise ConfigError(
        f"the loss takes {signature}, expected loss(params, batch), or loss(params, batch, key)"
    )


def _scalar(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the loss, wrapped to raise an error where its result is no scalar.

    Raises:
        ConfigError: as it is compiled, if it returns anything but a scalar of float32.
    """

    def checked(*arguments: Any) -> Any:
        found = loss(*arguments)
        shape, kind = getattr(found, "shape", None), getattr(found, "dtype", None)
        if shape != () or kind != np.float32:
            said = type(found).__name__ if kind is None else f"{kind} of shape {shape}"
            raise ConfigError(f"the loss returned {said}, expected a scalar of float32")
        return found

    return checked


def _arrays(data: Any, name: str) -> tuple[AnyArray, ...]:
    """Return arrays with equal numbers of samples.

    Raises:
        ConfigError: if they are not such arrays.
    """
    if not isinstance(data, list | tuple):
        raise ConfigError(
            f"{name} is {type(data).__name__}, expected a tuple of arrays such as (x, y)"
        )
    found = tuple(np.asarray(it) for it in data)
    if not found or not all(it.ndim and it.dtype.kind in "fiub" for it in found):
        raise ConfigError(f"{name} must be arrays with a row for each sample, such as (x, y)")
    if len(lengths := {len(it) for it in found}) > 1:
        raise ConfigError(f"{name} has arrays of {sorted(lengths)} samples, expected equal numbers")
    if not len(found[0]):
        raise ConfigError(f"{name} has no samples")
    return found
