"""Averaged gradients under any optimizer of torch, in a training loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch

from psrt.core.errors import ConfigError, DifferentCallsError
from psrt.data.keyed import whole_weight
from psrt.torch.communicator import Communicator
from psrt.torch.passes import pass_number
from psrt.torch.replica import Replica, trained_by
from psrt.torch.rounds import Rounds
from psrt.torch.rules import check_communicator, check_module, said
from psrt.torch.weights import turn_of

_BUCKET_BYTES = 1 << 20
#: Optimizer steps between two comparisons of the ranks. One takes 1 ms with 0.2 million parameters
#: under Adam, so 0.25 % of steps of 2 ms; what they add up in each pass takes 10 µs, 0.5 %.
_CHECK_EVERY = 200


class Gradients:
    """Makes each ``grad`` the mean over all ranks by the time that ``backward()`` returns.

    So whatever a loop does to gradients afterwards, it does to the mean, and nothing else changes
    in the loop. Sums are under way while backward runs. All ranks begin with the parameters of
    rank 0, and end each step with the same bits.

    >>> with psrt.Communicator() as ranks:                                    # doctest: +SKIP
    ...     with psrt.torch.Gradients(optimizer, ranks, module=module) as gradients:
    ...         for x, y in gradients.join(batches):
    ...             optimizer.zero_grad()
    ...             loss(module(x), y).backward()
    ...             optimizer.step()

    Every rank makes the same backward passes, but for those in ``no_sync``. A parameter that no
    rank's loss uses has no gradient, and one that only some use the mean with the others' zeros. A
    rank without a loss in a step takes part by ``wait()``, or by ``optimizer.step()``.
    """

    def __init__(
        self,
        optimizer: Any,
        communicator: Communicator,
        *,
        module: Any = None,
        bucket_bytes: int = _BUCKET_BYTES,
        check_every: int = _CHECK_EVERY,
    ) -> None:
        """Hook on to the optimizer and its parameters, and give all ranks rank 0's; collective.

        Args:
            optimizer: of torch, on the CPU, with the same parameters in the same order on every
                rank; of float32, float64, bfloat16, float16 or complex numbers.
            communicator: stays open for as long as this does. Several optimizers may have a
                Gradients each on one communicator.
            module: whose parameters these are. Its buffers and frozen parameters become rank 0's,
                too, and errors name its tensors.
            bucket_bytes: gradients are summed as soon as that many bytes of them are there.
            check_every: optimizer steps between two comparisons of what the ranks hold: parameters,
                optimizer states and options. They are compared at the start, after the first step
                and at the end, too; 0 for never after the start.

        Raises:
            ConfigError: if it is no such optimizer; on every rank, if the ranks differ in more than
                what parameters and buffers hold.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(f"the optimizer is {said(optimizer)}, expected one of torch.optim")
        if bucket_bytes < 1:
            raise ConfigError(f"bucket_bytes must be at least 1, got {bucket_bytes}")
        if check_every < 0:
            raise ConfigError(f"check_every must be at least 0, got {check_every}")
        if module is not None:
            check_module(module)
        check_communicator(communicator)
        self._communicator, self._turn = communicator, turn_of(communicator)
        self._replica = Replica(optimizer, module)
        self._replica.check(taken={id(it) for one in self._turn.members for it in one.tensors})
        self._replica.begin_alike(communicator, (bucket_bytes, check_every))
        self._rounds = Rounds(
            self._replica,
            communicator,
            self._turn,
            bucket_bytes=bucket_bytes,
            check_every=check_every,
        )
        #: Whether a backward pass only adds up, on this rank.
        self._adds_up = False
        #: Whether this rank goes through a batch once more, since others have more of them.
        self.ran_out = False
        self._hooks = [
            it.register_post_accumulate_grad_hook(partial(self._arrive, i))
            for i, it in enumerate(self._replica.tensors)
        ]
        self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
        self._hooks.append(optimizer.register_step_post_hook(lambda *_: self._rounds.step()))
        self._turn.add(self._rounds.weights)

    def wait(self) -> None:
        """Take part in a step for which this rank has made no backward pass; collective.

        It brings together what ``no_sync`` left, too. Where ``backward()`` has done so already, it
        does nothing, so a call before clipping does no harm.

        Raises:
            PsrtError: as ``backward()``.
        """
        if not self._adds_up and self._rounds.is_due():
            self._rounds.bring_together()

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
        ranks, and over those of several turns if it adds up over them. A rank that has run out gets
        its last batch once more, whose gradient counts nothing: there ``ran_out`` is true. It takes
        the same steps with the same bits as all others. All Gradients of the communicator heed the
        weights.

        Args:
            batches: what a step takes each; their number may differ among ranks.
            samples: returns the number of samples of a batch, or of tokens, whose mean the loss is;
                None takes its length, or that of its first part where it is a tuple.

        Raises:
            ConfigError: on every rank, if one has no batch at all, or if another ``join`` began
                within this one and has not ended; or if samples cannot be counted.
        """
        count = _samples_in if samples is None else samples
        own, batch, has_any = iter(batches), None, False
        sums, turn = np.zeros(3, np.int64), self._turn
        before = turn.number, turn.samples  # of a join around this one
        try:
            while True:
                try:
                    batch, has_any, self.ran_out = next(own), True, False
                except StopIteration:
                    self.ran_out = True
                mine = 0 if self.ran_out else whole_weight(count(batch), "join(samples=)")
                # Of this turn: samples, ranks with a batch, ranks without any so far.
                sums[:] = mine, not self.ran_out, not has_any
                try:
                    self._communicator.all_reduce(sums)
                except DifferentCallsError as error:
                    raise turn.explained(error) from error
                total, remaining, without = sums.tolist()
                if not remaining:
                    return
                if without:
                    raise ConfigError(
                        f"join() got no batch at all on {without} of {self._communicator.size} "
                        "ranks; expected at least one on each"
                    )
                number = turn.begin(mine, total)
                yield batch
                if turn.number != number:
                    raise ConfigError(
                        "another join() has begun since this one's last batch, and has not ended; "
                        "expected join(zip(batches, others), samples=) to go through both at once"
                    )
        finally:
            self.ran_out = False
            turn.end(*before)

    def close(self) -> None:
        """Compare the ranks once more, and take the hooks away; collective.

        The communicator must still be open.

        Raises:
            ConfigError: on every rank, if they differ, such as in the number of backward passes.
        """
        if not self._hooks:
            return
        self._remove_hooks()
        self._rounds.close()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._turn.remove(self._rounds.weights)
        self._rounds.leave()

    def __enter__(self) -> Gradients:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:  # the others learn of it from the communicator
            self._remove_hooks()

    def _arrive(self, i: int, tensor: Any) -> None:
        """Take a gradient: called by backward when ``grad`` has it."""
        self._rounds.arrive(i, adds_up=self._adds_up)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if pass_number() >= 0:
            raise ConfigError(
                "optimizer.step() came within backward(), before the gradients are means; expected "
                "it after backward()"
            )
        known = set(map(id, self._replica.tensors))
        for tensor in trained_by(optimizer):
            if id(tensor) not in known:
                raise ConfigError(
                    f"the optimizer has a parameter of shape {tuple(tensor.shape)} that was frozen "
                    "or not there when Gradients was made; expected close(), and another Gradients"
                )
        _, *given = args  # the optimizer comes first
        if all(it is None for it in (*given, *kwargs.values())):  # else backward is in the closure
            self.wait()


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
