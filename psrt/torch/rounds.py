"""A round: from the first gradient of a backward pass until all are means over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError, DifferentCallsError
from psrt.torch.agreement import Item, are_equal, difference, digest_of_all
from psrt.torch.buckets import SUMMED_AS, Buckets
from psrt.torch.communicator import Communicator
from psrt.torch.passes import pass_number, when_backward_ends
from psrt.torch.replica import Replica
from psrt.torch.staging import Device
from psrt.torch.sums import Sums
from psrt.torch.weights import Turn, Weights, dense

#: The words that the ranks sum in a round, before one word for each bucket and each parameter.
_STEPS, _DIGEST, _ORDER, _CLOSING, _SAMPLES, _TURNS, _ODD, _HEAD = 0, 2, 4, 6, 7, 8, 9, 10
#: What a sparse gradient adds to its parameter's word; every gradient adds 1.
_SPARSE = 1 << 32


class Rounds:
    """Sums the gradients of one optimizer's parameters, and compares the ranks on the way.

    Every rank makes the same rounds. In each it sums all buckets in their order, then a few words
    that say which gradients are present, and whether the ranks are at the same place.
    """

    def __init__(
        self,
        replica: Replica,
        communicator: Communicator,
        turn: Turn,
        device: Device,
        *,
        bucket_bytes: int,
        check_every: int,
        sums: Callable[[Sequence[AnyArray]], Sums] | None = None,
    ) -> None:
        """Lay out buckets; collective.

        Args:
            replica: what this rank trains.
            communicator: of the ranks.
            turn: the current turn of ``join``.
            device: that of the parameters.
            bucket_bytes: see ``Gradients``.
            check_every: see ``Gradients``.
            sums: see ``Buckets``.
        """
        self._replica, self._communicator, self._turn = replica, communicator, turn
        self._tensors, self._check_every = replica.tensors, check_every
        self._buckets = Buckets(self._tensors, communicator, bucket_bytes, device, sums)
        self._sums = self._buckets.sums
        self._scale, self._divisor = self._sums.scale, self._sums.divisor
        # By a plain number a GPU would multiply by its reciprocal, which has other bits.
        self._by = torch.tensor(self._divisor, device=device.device) if device.is_remote else None
        self._words = communicator.empty(_HEAD + len(self._buckets) + len(self._tensors), np.int64)
        self.weights = Weights(self._tensors, turn, communicator.size)
        #: Optimizer steps, and rounds since the last one.
        self._steps = self._since = 0
        #: What the next round compares, once known; and whether anything was compared.
        self._items: list[Item] | None = None
        self._has_compared = not check_every
        #: Parameters in the order of their first gradients, until the first round: without names,
        #: this shows whether the ranks have them in the same order.
        self._order: list[int] | None = None if replica.has_names else []
        self._open()

    def _open(self) -> None:
        """Start a new round, without any gradient yet."""
        self._has_come = [False] * len(self._tensors)
        #: Buckets to sum again, since a gradient changed while their sum was in flight.
        self._again: set[int] = set()
        #: The backward passes of the last and of the first gradient that came.
        self._pass = -1
        self._opened: int | None = None
        #: Whether ``grad`` holds gradients that no round has summed.
        self._is_behind = False
        self._buckets.begin()

    def is_due(self) -> bool:
        """Return whether this rank has no means for the next step, and no sum is in flight."""
        has_mean = self._since and any(it.grad is not None for it in self._tensors)
        return not has_mean or self._is_behind or self._opened is not None

    def arrive(self, i: int, *, adds_up: bool) -> None:
        """Take a gradient that backward has accumulated into ``grad``.

        Args:
            i: the parameter.
            adds_up: whether a later pass will sum it.
        """
        self._check_open()
        if self._turn.number:
            self.weights.note(i)
        if self._order is not None and i not in self._order:
            self._order.append(i)
        self._look_once()
        if adds_up:
            self._is_behind = True
            return
        if (now := pass_number()) != self._pass:
            self._pass = now
            when_backward_ends(self._end_of_backward)
            if self._opened is None:
                self._opened = now
                self._turn.eager = self._turn.eager or self
        if self._has_come[i]:  # e.g. tied layers in reentrant checkpoints
            self._refill(i)
            return
        self._fill(i)
        self._buckets.arrive(i, held=self._turn.eager is not self)

    def step(self) -> None:
        """Count a step of the optimizer."""
        self._steps += 1
        self._since = 0
        self.weights.clear()
        if self._check_every and (self._steps == 1 or self._steps % self._check_every == 0):
            self._items = self._replica.now()

    def close(self) -> None:
        """Compare the ranks a last time; collective."""
        self._items = self._replica.now() if self._check_every else None
        self.bring_together(closing=True)

    def free(self) -> None:
        """Free what a device and the sums keep; no round follows."""
        self._buckets.free()
        self._sums.free()

    def leave(self) -> None:
        """Leave the current backward pass, without the other ranks."""
        if self._turn.eager is self:
            self._turn.eager = None

    def _check_open(self) -> None:
        """Check that the memory in which gradients are summed still exists.

        Raises:
            ConfigError: if not.
        """
        if self._communicator.closed:
            raise ConfigError(
                "the communicator of these Gradients is closed; expected close() of Gradients "
                "before that, as at the end of with psrt.torch.Gradients(…)"
            )

    def _look_once(self) -> None:
        """Record what this rank holds, before the first gradient."""
        if not self._has_compared and self._items is None:
            self._items = self._replica.now()

    def _fill(self, i: int) -> None:
        """Copy a gradient to its place in a bucket.

        Raises:
            ConfigError: if the parameter has changed its shape, type or device, so that the
                gradient no longer fits: torch would resize it into the places of others, or
                truncate numbers.
        """
        self._has_come[i] = True
        tensor, place = self._tensors[i], self._buckets.places[i]
        gradient = tensor.grad
        if (
            tensor.shape != place.shape
            or SUMMED_AS.get(tensor.dtype) is not place.dtype
            or tensor.device != place.device
        ):
            raise ConfigError(
                f"{self._replica.names[i]} is now of shape {tuple(tensor.shape)}, of "
                f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}, which differs "
                "from when Gradients was made; expected close(), then a new Gradients"
            )
        if gradient is None:
            place.zero_()
        elif gradient.dtype == place.dtype:
            torch.mul(dense(gradient.detach()), self._scale, out=place)
        else:
            place.copy_(dense(gradient.detach())).mul_(self._scale)

    def _refill(self, i: int) -> None:
        """Copy a gradient that has changed; if its sum is in flight, it will be summed again."""
        bucket = self._buckets.bucket_of[i]
        if self._buckets.has_begun(bucket):
            self._again.add(bucket)
        else:
            self._buckets.reopen(bucket)
            self._fill(i)
            self._buckets.arrive(i, held=True)

    def _end_of_backward(self) -> None:
        if self._opened is not None:  # else the end of a nested pass has done it
            self.bring_together()

    def bring_together(self, *, closing: bool = False) -> None:
        """Make each gradient the mean over all ranks; collective.

        Raises:
            ConfigError: on every rank, if they differ; or if the communicator is closed.
            ProtocolError, TransportError: as the communicator.
        """
        self._check_open()
        try:
            with torch.no_grad():
                self._round(closing)
        except DifferentCallsError as error:
            raise self._turn.explained(error) from error
        finally:
            self.leave()
            self._since += 1
            self._open()

    def _round(self, closing: bool) -> None:
        # Passes are numbered in the order in which they begin, so a number below that of the pass
        # that ends is of a pass that failed; its gradients may have been reset since.
        is_stale = self._opened is not None and not 0 <= pass_number() <= self._opened
        for i in reversed(range(len(self._tensors))):
            if self._has_come[i]:
                if is_stale:
                    self._refill(i)
                continue
            self._fill(i)
            self._buckets.arrive(i, held=True)
        self._buckets.advance(waits=True)  # before other sums, on every rank
        sums = self._exchange(closing)
        buckets = range(len(self._buckets))
        wrong = self._what_is_wrong(sums, closing)
        if wrong or closing:
            for bucket in buckets:
                self._buckets.wait(bucket)
            self._sums.drop()
            if wrong:
                raise wrong
            return
        again = self._sums.settle(odd=sums[_ODD] > 0)
        used = self._sums.used
        factor = self._sums.factor * self.weights.factor(sums[_SAMPLES], sums[_TURNS])
        for bucket in buckets:
            self._buckets.wait(bucket)
            if again or sums[_HEAD + bucket]:
                for i in self._buckets.members[bucket]:
                    self._fill(i)
                self._buckets.repeat(bucket)
            self._buckets.give(bucket)
            for i in self._buckets.members[bucket]:
                sparse, count = divmod(sums[_HEAD + len(buckets) + i], _SPARSE)
                if count:
                    used[i] = sparse == count
                # Without a gradient on any rank ``grad`` stays None, unless a codec has kept back
                # something of earlier ones.
                kept = self._sums.keeps_back and i in used and not count
                if count or (kept and self._buckets.places[i].any()):
                    self._take(i, factor, is_sparse=used[i])
        self.weights.note_mean()

    def _exchange(self, closing: bool) -> list[int]:
        """Return sums over all ranks of their positions and their gradients; see ``_STEPS``."""
        self._look_once()
        digest = 0 if self._items is None else digest_of_all(self._items)
        order = 0 if self._order is None else digest_of_all([Item("", i) for i in self._order])
        weights, buckets = self.weights, range(len(self._buckets))
        self._words[:] = [
            self._steps, self._steps**2, digest, digest**2, order, order**2,
            closing, weights.samples, weights.turns, self._sums.is_odd,
            *(bucket in self._again for bucket in buckets),
            *(0 if closing else _presence(it.grad) for it in self._tensors),
        ]  # fmt: skip
        self._communicator.all_reduce(self._words)
        found: list[int] = self._words.tolist()
        return found

    def _what_is_wrong(self, sums: list[int], closing: bool) -> ConfigError | None:
        """Return what to raise on every rank, or None; collective if there is something."""
        ranks = self._communicator
        wrong = None
        if not are_equal(ranks.size, *sums[_STEPS:_DIGEST]) or sums[_CLOSING] % ranks.size:
            wrong = self._other_call(closing)
        elif not are_equal(ranks.size, *sums[_DIGEST:_ORDER]):
            assert self._items is not None, "all ranks compare in the same round"
            when = f"equal bits on every rank, after {self._steps} steps of the optimizer"
            wrong = difference(ranks, self._items, when)
        elif not are_equal(ranks.size, *sums[_ORDER:_CLOSING]):
            assert self._order is not None, "all ranks compare in the same round"
            counts = {it % _SPARSE for it in sums[_HEAD + len(self._buckets) :]}
            if counts <= {0, ranks.size}:  # else only some ranks took a branch of the model
                names = self._replica.names
                items = [Item(f"the order of gradients, at {names[i]}", i) for i in self._order]
                when = "the same order of parameters on every rank; if it is, give module="
                wrong = difference(ranks, items, when)
        self._items, self._order, self._has_compared = None, None, True
        return wrong

    def _other_call(self, closing: bool) -> ConfigError:
        """Return what to raise where the ranks are not at the same place; collective."""
        ranks = self._communicator
        where = np.zeros((ranks.size, 2), np.int64)
        where[ranks.rank] = self._steps, closing
        ranks.all_reduce(where)
        said = [f"{'at the end' if end else 'in backward'} after {n} steps" for n, end in where]
        other = next(rank for rank in range(ranks.size) if said[rank] != said[0])
        return ConfigError(
            f"rank {other} is {said[other]} of the optimizer, and rank 0 is {said[0]}; expected "
            "equal numbers of passes and steps on every rank, as with gradients.join(batches)"
        )

    def _take(self, i: int, factor: float, *, is_sparse: bool) -> None:
        """Write the mean of a summed gradient into ``grad``, in its own memory.

        Args:
            i: the parameter.
            factor: multiplies the mean.
            is_sparse: whether every rank that has a gradient has a sparse one.
        """
        tensor, place = self._tensors[i], self._buckets.places[i]
        gradient = tensor.grad
        has_dense = gradient is not None and not gradient.is_sparse
        if not (has_dense or tensor.requires_grad):
            return
        # An expanded tensor cannot be written in place.
        has_own = has_dense and 0 not in gradient.stride()
        mean = gradient if has_own else torch.empty_like(tensor)
        if factor != 1:
            torch.mul(place, factor / self._divisor, out=mean)
        elif self._divisor != 1:
            torch.div(place, self._divisor if self._by is None else self._by, out=mean)
        else:
            mean.copy_(place)
        if not has_own:
            tensor.grad = mean.to_sparse(1) if is_sparse else mean


def _presence(gradient: Any) -> int:
    """Return the word that a rank adds for a gradient."""
    return 0 if gradient is None else 1 + _SPARSE * gradient.is_sparse
