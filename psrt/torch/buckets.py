"""Gradients in buckets that are summed one after the other while backward goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psrt.arrays import AnyArray
from psrt.torch.communicator import Communicator, Work
from psrt.torch.views import tensor_on


class Buckets:
    """One flat array, in memory that the ranks of a host share, cut into buckets.

    Gradients lie in it from the last parameter to the first, as backward makes them. Every rank
    begins the sums of its buckets in the same order, so one that is full early waits for those
    before it.
    """

    def __init__(
        self, tensors: Sequence[Any], communicator: Communicator, bucket_bytes: int
    ) -> None:
        """Lay them out; collective.

        Args:
            tensors: parameters of one type, at least one.
            communicator: of the ranks.
            bucket_bytes: a bucket is full with that many, at least.
        """
        kind = np.dtype(str(tensors[0].dtype).removeprefix("torch."))
        flat = communicator.empty(sum(it.numel() for it in tensors), kind)
        self._communicator = communicator
        #: By parameter: the place of its gradient, and the number of its bucket.
        self.places: list[Any] = [None] * len(tensors)
        self._bucket_of = [0] * len(tensors)
        #: Arrays, the same objects at every step, and the gradients that each takes.
        self._arrays: list[AnyArray] = []
        self._sizes: list[int] = []
        self._lay_out(tensors, flat, tensor_on(flat), max(1, bucket_bytes // kind.itemsize))
        self.begin()

    def _lay_out(self, tensors: Sequence[Any], flat: AnyArray, on: Any, least: int) -> None:
        start = stop = count = 0
        for i in reversed(range(len(tensors))):
            size = tensors[i].numel()
            self.places[i] = on[stop : stop + size].view(tensors[i].shape)
            self._bucket_of[i] = len(self._arrays)
            stop, count = stop + size, count + 1
            if stop - start >= least or (i == 0 and stop > start):
                self._arrays.append(flat[start:stop])
                self._sizes.append(count)
                start, count = stop, 0
        if count:  # first parameters without elements
            self._sizes[-1] += count
            self._bucket_of = [min(it, len(self._arrays) - 1) for it in self._bucket_of]

    def __len__(self) -> int:
        return len(self._arrays)

    def begin(self) -> None:
        """Begin a step: no gradient has come."""
        self._missing = list(self._sizes)
        self._works: list[Work] = []
        self._waiting = 0

    def arrive(self, i: int) -> None:
        """Take note that the gradient of parameter i is in its place; begin what can be summed."""
        self._missing[self._bucket_of[i]] -= 1
        while len(self._works) < len(self._arrays) and not self._missing[len(self._works)]:
            array = self._arrays[len(self._works)]
            self._works.append(self._communicator.all_reduce_async(array, op="mean"))
        # A test of one sum moves all of them on.
        if self._waiting < len(self._works) and self._works[self._waiting].test():
            self._waiting += 1

    def wait(self) -> None:
        """Wait for all sums, once every gradient has come."""
        assert len(self._works) == len(self._arrays), "every gradient has come"
        for work in self._works:
            work.wait()
