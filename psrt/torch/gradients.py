"""Averaged gradients under any optimizer of torch, in a training loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch

from psrt.errors import ConfigError
from psrt.torch.buckets import Buckets
from psrt.torch.communicator import Communicator
from psrt.torch.rules import check_on_cpu, said

_BUCKET_BYTES = 1 << 20
_TYPES = (torch.float32, torch.float64)


class Gradients:
    """Makes the gradients that an optimizer finds the means over all ranks.

    Sums are under way while backward goes on; ``optimizer.step()`` waits for them. So nothing else
    changes in the loop. All ranks end each step with the same bits, if they began with the same
    parameters (see ``broadcast``) and the optimizer is the same.

    >>> with psrt.Communicator() as ranks:                                    # doctest: +SKIP
    ...     psrt.torch.broadcast(module, ranks)
    ...     with psrt.torch.Gradients(optimizer, ranks) as gradients:
    ...         for x, y in gradients.join(batches):
    ...             optimizer.zero_grad()
    ...             loss(module(x), y).backward()
    ...             optimizer.step()

    A parameter that the losses of all ranks leave unused has a gradient of zeros, and one that only
    some use the mean with their zeros. In between two steps there is one backward pass, the others
    are in ``no_sync``.
    """

    def __init__(
        self, optimizer: Any, communicator: Communicator, *, bucket_bytes: int = _BUCKET_BYTES
    ) -> None:
        """Hook on to the optimizer and its parameters; collective.

        Args:
            optimizer: of torch, with the same parameters on every rank. Those that require a
                gradient are on the CPU, all float32 or all float64.
            communicator: stays open for as long as this does.
            bucket_bytes: gradients are summed as soon as that many bytes of them are there.

        Raises:
            ConfigError: if it is no such optimizer.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(f"the optimizer is {said(optimizer)}, expected one of torch.optim")
        if bucket_bytes < 1:
            raise ConfigError(f"bucket_bytes must be at least 1, got {bucket_bytes}")
        self._optimizer, self._communicator = optimizer, communicator
        self._tensors = _trained_by(optimizer)
        _check(self._tensors)
        self._known = set(map(id, self._tensors))
        self._buckets = Buckets(self._tensors, communicator, bucket_bytes)
        #: Which gradients of this step have come, and whether their means are there.
        self._has_come = [False] * len(self._tensors)
        self._is_done = False
        #: Whether a backward pass only adds up, on this rank.
        self._adds_up = False
        #: By what a gradient is multiplied before the mean; 0 leaves it out.
        self._weight = 1.0
        #: Over all ranks, of one turn of ``join``: samples, ranks with a batch, ranks without any.
        self._sums = np.zeros(3, np.int64)
        #: Whether this rank goes through a batch once more, since others have more of them.
        self.ran_out = False
        self._hooks = [
            it.register_post_accumulate_grad_hook(partial(self._arrive, i))
            for i, it in enumerate(self._tensors)
        ]
        self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
        self._hooks.append(optimizer.register_step_post_hook(lambda *_: self._begin()))

    def wait(self) -> None:
        """Wait until each ``grad`` is the mean over all ranks, as for clipping; collective.

        ``optimizer.step()`` does so by itself. Waiting twice is waiting once.

        Raises:
            TransportError: if a rank does not come to it within the communicator's deadline.
        """
        if self._is_done:
            return
        for i, has_come in enumerate(self._has_come):
            if not has_come:
                self._deliver(i)
        self._buckets.wait()
        self._is_done = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Have backward passes only add up gradients, for the one after the block to sum.

        As in torch's DistributedDataParallel: a loss of each is to be divided by their number.
        """
        before, self._adds_up = self._adds_up, True
        try:
            yield
        finally:
            self._adds_up = before

    def join(
        self, batches: Iterable[Any], samples: Callable[[Any], int] | None = None
    ) -> Iterator[Any]:
        """Yield this rank's batches until no rank has any left; collective.

        A gradient counts with the samples of its batch, so the mean is that over all samples of all
        ranks. A rank that has run out gets its last batch once more, whose gradient counts nothing:
        there ``ran_out`` is true. It takes the same steps with the same bits as all others.

        Args:
            batches: what a step takes each; their number may differ among ranks.
            samples: returns the number of samples of a batch, at least 1; None takes its length, or
                that of its first part where it is a tuple.

        Raises:
            ConfigError: on every rank, if one has no batch at all; or if samples cannot be counted.
        """
        count = _samples_in if samples is None else samples
        own, batch, has_any = iter(batches), None, False
        try:
            while True:
                try:
                    batch, has_any, self.ran_out = next(own), True, False
                except StopIteration:
                    self.ran_out = True
                mine = 0 if self.ran_out else int(count(batch))
                self._sums[:] = mine, not self.ran_out, not has_any
                self._communicator.all_reduce(self._sums)
                total, going_on, without = self._sums.tolist()
                if not going_on:
                    return
                if without:
                    raise ConfigError(
                        f"join() got no batch at all on {without} of {self._communicator.size} "
                        "ranks; expected at least one on each"
                    )
                self._weight = mine * self._communicator.size / max(1, total)
                yield batch
        finally:
            self._weight, self.ran_out = 1.0, False

    def close(self) -> None:
        """Take the hooks away; gradients get memory of their own. Before the communicator's."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for tensor, place in zip(self._tensors, self._buckets.places, strict=True):
            if tensor.grad is not None and tensor.grad.data_ptr() == place.data_ptr():
                tensor.grad = place.clone()

    def __enter__(self) -> Gradients:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _arrive(self, i: int, tensor: Any) -> None:
        """Take a gradient: called by backward, once for each parameter that a loss uses."""
        if self._adds_up:
            return
        if self._is_done:  # the step was left out, or follows later
            self._begin()
        if self._has_come[i]:
            raise ConfigError(
                "a second backward pass before optimizer.step(): the gradients of the first are "
                "already being averaged; expected all but the last one in gradients.no_sync()"
            )
        self._deliver(i)

    def _deliver(self, i: int) -> None:
        """Bring the gradient of parameter i into its bucket, weighted."""
        tensor, place = self._tensors[i], self._buckets.places[i]
        gradient = tensor.grad
        if gradient is None or not self._weight:
            place.zero_()
        else:
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            if self._weight != 1:
                torch.mul(gradient, self._weight, out=place)
            elif gradient.data_ptr() != place.data_ptr():
                place.copy_(gradient)
        if tensor.requires_grad and gradient is not place:
            tensor.grad = place
        self._has_come[i] = True
        self._buckets.arrive(i)

    def _begin(self) -> None:
        self._has_come = [False] * len(self._tensors)
        self._is_done = False
        self._buckets.begin()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        _, *given = args  # the optimizer comes first
        if any(it is not None for it in (*given, *kwargs.values())):
            raise ConfigError(
                "optimizer.step() was given a closure, in which backward would come after the "
                "mean; expected step() after backward()"
            )
        for tensor in _trained_by(optimizer):
            if id(tensor) not in self._known:
                raise ConfigError(
                    f"the optimizer has a parameter of shape {tuple(tensor.shape)} that it had not "
                    "when Gradients was made; expected a Gradients of the finished optimizer"
                )
        self.wait()


def _trained_by(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer that require a gradient, in its order."""
    return [it for group in optimizer.param_groups for it in group["params"] if it.requires_grad]


def _check(tensors: list[Any]) -> None:
    """Check that gradients can lie in one array.

    Raises:
        ConfigError: if there are none, or of several types, or not on the CPU.
    """
    if not sum(it.numel() for it in tensors):
        raise ConfigError("the optimizer has no parameters that require a gradient")
    for it in tensors:
        check_on_cpu(it, f"a parameter of shape {tuple(it.shape)}")
        if it.dtype not in _TYPES or it.dtype != tensors[0].dtype:
            raise ConfigError(
                f"a parameter of shape {tuple(it.shape)} is {it.dtype}, expected all of them "
                "torch.float32, or all torch.float64"
            )


def _samples_in(batch: Any) -> int:
    """Return the number of samples of a batch, as data loaders make them."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    first = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if not isinstance(first, torch.Tensor | np.ndarray) or not first.ndim:
        raise ConfigError(
            f"join() cannot count the samples of {said(batch)}; expected a tensor, or several in a "
            "tuple, list or dict, or join(batches, samples=) to count them"
        )
    return len(first)
