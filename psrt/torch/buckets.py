"""Gradients in buckets, which are summed one after another while backward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from psrt.core.arrays import AnyArray
from psrt.torch.communicator import Communicator, Work
from psrt.torch.staging import Device, Event, Mirror
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
    early waits for those before it. On a device, a bucket is copied to that memory once it is full.
    """

    def __init__(
        self,
        tensors: Sequence[Any],
        communicator: Communicator,
        bucket_bytes: int,
        device: Device | None = None,
        sums: Callable[[Sequence[AnyArray]], Sums] | None = None,
    ) -> None:
        """Lay them out; collective.

        Args:
            tensors: parameters of the types of ``SUMMED_AS``, with at least one element.
            communicator: of the ranks.
            bucket_bytes: the bytes from which on a bucket is full.
            device: that of the tensors; None is the CPU.
            sums: makes the sums of their arrays; None sums numbers as they are.

        Raises:
            ConfigError: if the device has no memory for them.
        """
        self._communicator = communicator
        self._device = device or Device(torch.device("cpu"))
        #: By parameter: where its gradient lies, and the number of its bucket.
        self.places: list[Any] = [None] * len(tensors)
        self.bucket_of = [0] * len(tensors)
        #: By bucket: the parameters whose gradients it holds; its array, the same at every step;
        #: and where it lies in the mirror of its type.
        self.members: list[list[int]] = []
        self._arrays: list[AnyArray] = []
        self._mirrors: list[tuple[Mirror, int, int]] = []
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
            on = flats[kind][1].near
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
    ) -> tuple[AnyArray, Mirror]:
        """Return an array for all gradients of a type, and the mirror of this memory."""
        n = sum(it.numel() for it, own in zip(tensors, kinds, strict=True) if own is kind)
        real = torch.empty(0, dtype=kind).real.dtype
        parts = 2 if kind.is_complex else 1
        array = self._communicator.empty(parts * n, np.dtype(str(real).removeprefix("torch.")))
        return array, self._device.mirror(tensor_on(array).view(kind), "gradients")

    def _close(
        self, flat: tuple[AnyArray, Mirror], start: int, stop: int, members: list[int]
    ) -> None:
        array, mirror = flat
        parts = 2 if mirror.near.dtype.is_complex else 1
        self._arrays.append(array[parts * start : parts * stop])
        self._mirrors.append((mirror, start, stop))
        self.members.append(members)

    def __len__(self) -> int:
        return len(self._arrays)

    def begin(self) -> None:
        """Start a step, without any gradient yet."""
        self._missing = [len(it) for it in self.members]
        self._works: list[Work] = []
        self._waiting = 0
        #: By bucket: when its gradients have come to the array.
        self._fetched: list[Event | None] = [None] * len(self)

    def has_begun(self, bucket: int) -> bool:
        """Return whether the sum of a bucket has started, so that its array must not be written."""
        return bucket < len(self._works)

    def arrive(self, i: int, *, held: bool = False) -> None:
        """Note that the gradient of parameter i is in its place; start the sums that can start.

        Args:
            i: a parameter.
            held: start nothing yet.
        """
        bucket = self.bucket_of[i]
        self._mirrors[bucket][0].wrote()
        self._missing[bucket] -= 1
        if not self._missing[bucket]:
            self._fetch(bucket)
        if not held:
            self.advance()

    def reopen(self, bucket: int) -> None:
        """Let a gradient of a bucket, whose sum has not started, arrive once more."""
        self._missing[bucket] += 1

    def advance(self, *, waits: bool = False) -> None:
        """Start the sums of full buckets that are next in order, and advance those in flight.

        Args:
            waits: for the gradients that are still on their way from a device.
        """
        while (bucket := len(self._works)) < len(self._arrays) and not self._missing[bucket]:
            event = self._fetched[bucket]
            assert event is not None, "a full bucket is fetched"
            # Meanwhile the sums before it make progress, which they do only while they are tested.
            while not (has_come := event.query()) and waits and self._waiting < bucket:
                self._test()
            if not has_come and not waits:
                break
            event.synchronize()
            self._works.append(self.sums.start(bucket))
        self._test()

    def _test(self) -> None:
        # Testing one sum lets MPI make progress on all of them.
        if self._waiting < len(self._works) and self._works[self._waiting].test():
            self._waiting += 1

    def wait(self, bucket: int) -> None:
        """Wait for the sum of a bucket, once every gradient has come."""
        self._works[bucket].wait()

    def repeat(self, bucket: int) -> None:
        """Sum a bucket again that was filled again; collective."""
        self._fetch(bucket).synchronize()
        self.sums.repeat(bucket)

    def give(self, bucket: int) -> None:
        """Bring the sum of a bucket to the places of its gradients."""
        mirror, start, stop = self._mirrors[bucket]
        mirror.give(start, stop)

    def free(self) -> None:
        """Free what a device keeps; the arrays are the communicator's."""
        for mirror in {id(it): it for it, _, _ in self._mirrors}.values():
            mirror.close()

    def _fetch(self, bucket: int) -> Event:
        mirror, start, stop = self._mirrors[bucket]
        event = mirror.fetch(start, stop)
        self._fetched[bucket] = event
        return event
