"""Gradients in buckets, which are summed one after another while backward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from psrt.core.arrays import AnyArray
from psrt.torch.communicator import Communicator, Work
from psrt.torch.sums import Sums
from psrt.torch.views import tensor_on

#: Type of a parameter → the type in which its gradients are summed.
SUMMED_AS = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex128,
}


class Buckets:
    """A flat array for each type, in memory shared by the ranks of a host, split into buckets.

    Gradients lie there from the last parameter to the first, in the order in which backward makes
    them. Every rank starts the sums of its buckets in the same order, so a bucket that is full
    early waits for those before it.
    """

    def __init__(
        self,
        tensors: Sequence[Any],
        communicator: Communicator,
        bucket_bytes: int,
        sums: Callable[[Sequence[AnyArray]], Sums] | None = None,
    ) -> None:
        """Lay them out; collective.

        Args:
            tensors: parameters of the types of ``SUMMED_AS``, with at least one element.
            communicator: of the ranks.
            bucket_bytes: the bytes from which on a bucket is full.
            sums: makes the sums of their arrays; None sums numbers as they are.
        """
        self._communicator = communicator
        #: By parameter: where its gradient lies, and the number of its bucket.
        self.places: list[Any] = [None] * len(tensors)
        self.bucket_of = [0] * len(tensors)
        #: By bucket: the parameters whose gradients it holds; its array, the same at every step.
        self.members: list[list[int]] = []
        self._arrays: list[AnyArray] = []
        self._lay_out(tensors, bucket_bytes)
        #: Sums them.
        self.sums = (sums or partial(Sums, communicator))(self._arrays)
        self.begin()

    def _lay_out(self, tensors: Sequence[Any], bucket_bytes: int) -> None:
        kinds = [SUMMED_AS[it.dtype] for it in tensors]
        flats = {kind: self._empty(kind, tensors, kinds) for kind in dict.fromkeys(kinds)}
        # By type: where the open bucket starts and stops, and its members.
        opened: dict[Any, tuple[int, int, list[int]]] = dict.fromkeys(flats, (0, 0, []))
        for i in reversed(range(len(tensors))):
            kind, size = kinds[i], tensors[i].numel()
            start, stop, members = opened[kind]
            on = flats[kind][1]
            self.places[i] = on[stop : stop + size].view(tensors[i].shape)
            stop, members = stop + size, [*members, i]
            is_last = kind not in kinds[:i]
            if stop > start and (is_last or (stop - start) * on.element_size() >= bucket_bytes):
                self._close(flats[kind], start, stop, members)
                start, members = stop, []
            opened[kind] = start, stop, members
        for _, _, members in opened.values():  # left over: first of a type, and without elements
            self.members[-1].extend(members)
        for bucket, members in enumerate(self.members):
            for i in members:
                self.bucket_of[i] = bucket

    def _empty(
        self, kind: Any, tensors: Sequence[Any], kinds: Sequence[Any]
    ) -> tuple[AnyArray, Any]:
        """Return an array for all gradients of a type, and a tensor on the same memory."""
        n = sum(it.numel() for it, own in zip(tensors, kinds, strict=True) if own is kind)
        real = torch.empty(0, dtype=kind).real.dtype
        parts = 2 if kind.is_complex else 1
        array = self._communicator.empty(parts * n, np.dtype(str(real).removeprefix("torch.")))
        return array, tensor_on(array).view(kind)

    def _close(self, flat: tuple[AnyArray, Any], start: int, stop: int, members: list[int]) -> None:
        array, on = flat
        parts = 2 if on.dtype.is_complex else 1
        self._arrays.append(array[parts * start : parts * stop])
        self.members.append(members)

    def __len__(self) -> int:
        return len(self._arrays)

    def begin(self) -> None:
        """Start a step, without any gradient yet."""
        self._missing = [len(it) for it in self.members]
        self._works: list[Work] = []
        self._waiting = 0

    def has_begun(self, bucket: int) -> bool:
        """Return whether the sum of a bucket has started, so that its array must not be written."""
        return bucket < len(self._works)

    def arrive(self, i: int, *, held: bool = False) -> None:
        """Note that the gradient of parameter i is in its place; start the sums that can start.

        Args:
            i: a parameter.
            held: start nothing yet.
        """
        self._missing[self.bucket_of[i]] -= 1
        if not held:
            self.advance()

    def advance(self) -> None:
        """Start the sums of full buckets that are next in order, and advance those in flight."""
        while len(self._works) < len(self._arrays) and not self._missing[len(self._works)]:
            self._works.append(self.sums.start(len(self._works)))
        # Testing one sum lets MPI make progress on all of them.
        if self._waiting < len(self._works) and self._works[self._waiting].test():
            self._waiting += 1

    def wait(self, bucket: int) -> None:
        """Wait for the sum of a bucket, once every gradient has come."""
        self._works[bucket].wait()

    def repeat(self, bucket: int) -> None:
        """Sum a bucket again that was filled again; collective."""
        self.sums.repeat(bucket)
