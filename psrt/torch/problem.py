"""A torch module, its loss and its data as a problem that psrt trains under any mode."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

from psrt.checkpoint import Tree
from psrt.codec.matrices import Matrix
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.data.keyed import Batch, KeyedBatches
from psrt.torch.buffers import LOCAL, Buffers
from psrt.torch.draws import DIGEST, EVALUATION, STEP, drawn_from
from psrt.torch.gradient_parts import GradientParts
from psrt.torch.optimizer import own_optimizer
from psrt.torch.parameters import Parameters
from psrt.torch.rules import check_loss, said
from psrt.torch.samples import Samples, samples_of
from psrt.torch.staging import moved, to_host

#: The fewest samples of a batch of the test set.
_TEST_BATCH = 256
#: The ``ignore_index`` of torch's losses.
_IGNORED = -100


class Problem(KeyedBatches):
    """A module of torch with a loss and data; see ``psrt.Problem`` for its methods.

    On the CPU the module computes in psrt's own parameter vector, and gradients go straight to
    psrt's buffer, so only gradients are copied, each once. On a GPU it computes in a copy of the
    vector, batches are moved there, and gradients are copied to the host as they come. Frozen
    parameters are left alone, and tied ones appear once. A parameter that the loss does not use has
    a zero gradient; a step in which the optimizer would still move it is refused. Random draws of
    torch in a step depend only on the seed, the worker and the step.

    All ranks make the same problem: the same module, including frozen parameters and buffers, and
    the same data. When ``psrt.run`` returns, the module of rank 0 is the trained one. The problem
    may be run again, and then starts from what the module held when the problem was made.

    >>> problem = psrt.torch.Problem(module, loss, (x, y), (u, v), batch_size=32)  # doctest: +SKIP
    >>> run = psrt.run(psrt.TrainConfig(mode="ssp:staleness=2"), problem)         # doctest: +SKIP
    """

    def __init__(
        self,
        module: Any,
        loss: Callable[[Any, Any], Any],
        train: Any,
        test: Any = None,
        *,
        batch_size: int,
        seed: int = 0,
        accuracy: Callable[[Any, Any], Any] | None = None,
        buffers: str = LOCAL,
        collate: Callable[[Any], Any] | None = None,
        labels: Any = None,
        weight: Callable[[Any], Any] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        schedule_every: str | None = None,
    ) -> None:
        """Join a module and data.

        Args:
            module: a ``torch.nn.Module``; trainable parameters are float32, on the CPU or one GPU.
            loss: ``loss(module, batch)`` returns the mean loss over a batch, a scalar.
            train: a tuple of tensors or arrays (N, …), of which a batch is a tuple of rows; or a
                data set with ``__getitem__`` and ``__len__``.
            test: held-out data of the same form; None evaluates nothing.
            batch_size: samples of one worker's step, at least 1.
            seed: of the order of the samples and of random draws.
            accuracy: ``accuracy(module, batch)`` returns the share of right answers, such as
                ``psrt.torch.accuracy``; None does not measure it.
            buffers: which buffers, such as running means, the trained module has: ``local``, those
                of worker 0, or ``mean``, the mean over all. In training each worker has its own.
            collate: makes a batch of a list of samples of a data set; None takes torch's own.
            labels: (N,) whole numbers by which ``--partition`` splits the data; None takes the last
                of the tensors, or ``targets`` or ``labels`` of the data set.
            weight: ``weight(batch)`` returns the batch's weight in means over workers and over the
                test set: the number of terms in its mean loss, such as the tokens that are not
                ignored. A whole number; a batch of weight 0 is left out. None takes the number of
                samples.
            optimizer: a ``torch.optim.Optimizer`` of the module's parameters, which makes the
                updates wherever the mode makes them; it must be element-wise, as Adam is. None
                takes that of the config. It is copied, state included, and not changed.
            scheduler: a scheduler of torch that is bound to it, also copied; None has none.
            schedule_every: when the scheduler steps: after each ``epoch`` of the worker whose
                gradient is applied, the default, or after each ``update`` of the optimizer.

        Raises:
            ConfigError: if an argument is not as described.
        """
        if not callable(loss):
            raise ConfigError(f"the loss is {said(loss)}, expected a function of module and batch")
        self._parameters = Parameters(module)
        #: The module; at rank 0 the trained one after a run.
        self.module = module
        self._loss, self._accuracy = loss, accuracy
        self._train = samples_of(train, "train", collate)
        super().__init__(len(self._train), batch_size=batch_size, seed=seed, weight=weight)
        self._test = None if test is None else samples_of(test, "test", collate)
        self._labels = labels
        self._initial = self._parameters.values()
        #: What makes the updates; None if the config's optimizer does.
        self.own_optimizer = own_optimizer(self._parameters, optimizer, scheduler, schedule_every)
        self._initial_buffers = Buffers(module, buffers)
        self._buffers = self._initial_buffers.copy()
        self._parts = GradientParts(self._parameters)
        #: Names of the parameters that the loss of the last batch did not use.
        self.without_gradient: Sequence[str] = ()
        #: Empty until it is asked for.
        self._fingerprint = ""
        #: Whether this is one worker's replica, whose vector outlives every call.
        self._is_of_worker = False
        self._is_checked = False

    def of_worker(self, number: int) -> Problem:
        """Return one worker's replica: the same problem, with buffers of its own."""
        found = copy.copy(self)
        found._buffers = self._initial_buffers.copy()
        found._is_of_worker, found._is_checked = True, False
        return found

    def conclude(self, states: Mapping[int, Tree]) -> None:
        """Drop psrt's memory; with the states of all workers, combine their buffers."""
        self._parameters.release()
        self._parts.forget()
        if states:
            self._buffers = self._initial_buffers.copy()
            self._buffers.conclude(states)

    def initial(self) -> Vector:
        """Return the (n,) parameters that the module held when the problem was made."""
        return self._initial.copy()

    def fingerprint(self) -> str:
        """Return the SHA-256 of torch's version, the data, frozen parameters and first buffers."""
        if not self._fingerprint:
            found = hashlib.sha256(f"torch {torch.__version__}\n".encode())
            with self._drawn(DIGEST):
                found.update(self._train.digest().encode())
            for name, array in (*self._parameters.frozen(), *self._initial_buffers.arrays()):
                found.update(f"{name} {array.dtype} {array.shape}".encode())
                found.update(array.tobytes())
            self._fingerprint = found.hexdigest()
        return self._fingerprint

    def labels(self) -> AnyArray:
        """Return the label of each training sample, (N,) whole numbers.

        Raises:
            ConfigError: if they are not known.
        """
        found = self._train.labels() if self._labels is None else self._labels
        if found is None:
            raise ConfigError(
                "the problem has no label of each sample: give Problem(…, labels=), whole numbers"
            )
        labels = np.asarray(to_host(found) if isinstance(found, torch.Tensor) else found)
        if labels.shape[:1] != (len(self._train),):
            raise ConfigError(f"{labels.shape[0]} labels of {len(self._train)} samples")
        return labels

    def gradient_spans(self) -> tuple[Span, ...]:
        """Return the parameters' spans, the last parameter first."""
        return self._parts.spans

    def matrices(self) -> list[Matrix]:
        """Return the places of weights with two dimensions or more."""
        return self._parameters.matrices()

    def tensors(self, theta: Vector) -> dict[str, AnyArray]:
        """Return what the module's ``state_dict`` has, with these parameters."""
        return self._parameters.named(theta)

    def state(self) -> Tree:
        """Return the buffers."""
        return self._buffers.state()

    def load_state(self, tree: Tree) -> None:
        """Take back what ``state`` returned."""
        self._buffers.load_state(tree)

    def loss_and_grad(
        self,
        theta: Vector,
        batch: Batch,
        out: Vector,
        ready: Callable[[int], None] | None = None,
    ) -> float:
        """Write the gradient of the batch's mean loss into ``out`` and return that loss."""
        was_checked = self._is_checked
        self._set_up(theta)
        with self._drawn(STEP, *batch.key), torch.enable_grad():
            rows = self.rows_once(batch)
            self._parameters.begin_reading(theta)
            loss = self._loss(self.module, rows)
            self._parameters.check_read("the loss", theta)
            check_loss(loss)
            if not was_checked:  # the first forward pass may have made buffers
                self._buffers.check()
            self.without_gradient = self._parts.run(loss, out, ready)
            self._parameters.check_read("the backward pass")
            self._parameters.finish_reading()
        return float(loss.detach())

    def rows(self, batch: Batch) -> Any:
        """Return the rows of a batch, within the seeded draws of its step."""
        with self._drawn(STEP, *batch.key):
            return self._taken(self._train, batch.indices)

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Return the loss and, if wanted, the accuracy on the test set; nothing without one.

        Raises:
            ConfigError: if all of it has weight 0.
        """
        self._is_checked = False
        self._set_up(theta)
        if self._is_of_worker:
            self._parameters.begin_reading(theta, whole=True)
        else:  # the caller may free this vector at any time
            self._parameters.release()
        if self._test is None:
            return {}
        sums, weights = np.zeros(2), 0
        size = max(self._batch_size, _TEST_BATCH)
        with self._drawn(EVALUATION), torch.no_grad(), modes_kept(self.module):
            self.module.eval()
            for start in range(0, len(self._test), size):
                indices = np.arange(start, min(start + size, len(self._test)))
                batch = self._taken(self._test, indices)
                if not (weight := self.weight_of(batch, len(indices))):
                    continue
                right = 0.0 if self._accuracy is None else self._accuracy(self.module, batch)
                loss = self._loss(self.module, batch)
                sums += weight * np.array([float(loss), float(right)])
                weights += weight
        if self._is_of_worker:
            self._parameters.check_read("the evaluation", theta)
            self._parameters.finish_reading()
        if not weights:
            raise ConfigError("weight() is 0 for all of the test set, expected a positive weight")
        loss, right = (sums / weights).tolist()
        return {"loss": loss} if self._accuracy is None else {"loss": loss, "accuracy": right}

    def _drawn(self, *key: int) -> AbstractContextManager[None]:
        return drawn_from(self._seed, *key, generators=self._parameters.device.generators)

    def _taken(self, samples: Samples, indices: AnyArray) -> Any:
        """Return a batch, where the module is."""
        batch, device = samples.take(indices), self._parameters.device
        return moved(batch, device.device) if device.is_remote else batch

    def _set_up(self, theta: Vector) -> None:
        """Put this worker's parameters and buffers into the module."""
        if not self._is_checked:
            self._parameters.check()
            self._is_checked = True
        self._parameters.bind(theta)
        self._buffers.hold()


def accuracy(module: Any, batch: Any) -> float:
    """Return the share of a batch (x, y) whose class y has the largest of the module's outputs.

    As in ``cross_entropy``, samples whose y is −100 are ignored.

    Args:
        module: returns (B, C) outputs for x, or (B, C, …) with several classifications a sample, as
            ``torch.nn.functional.cross_entropy`` takes them.
        batch: x, and y of shape (B,) or (B, …), whole numbers.
    """
    x, y = batch
    right = (module(x).argmax(1) == y)[y != _IGNORED]
    return float(right.double().mean()) if right.numel() else 0.0


@contextmanager
def modes_kept(module: Any) -> Iterator[None]:
    """Restore the training or evaluation mode of each submodule at the end of the block."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
