"""All-to-all among the windows of a host: every rank has a block for each of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.core.arrays import AnyVector
from psrt.core.partition import block_spans, even_spans
from psrt.mpi.collectives.plans.copy import BetweenBarriers
from psrt.mpi.collectives.plans.plan import CollectiveContext, OnHost, Run

#: Bytes swapped at a time: what is moved aside stays in a core's second-level cache.
_ASIDE_BYTES = 64 * 1024


class Exchange(BetweenBarriers):
    """Copies this rank's block out of every buffer of the host, to an array of its own."""

    def __init__(
        self, context: CollectiveContext, buffers: Sequence[AnyVector], out: AnyVector
    ) -> None:
        """Compile.

        Args:
            context: of the collective.
            buffers: (n,) each, of all ranks of this host, in shared memory; n is a multiple of
                their number, and block j of each is for rank j.
            out: (n,), this rank's, anywhere; block i is to be that of rank i.
        """
        me, size = context.slot.local_rank, len(buffers)
        blocks = even_spans(out.size, size)
        # Each rank begins with itself and then goes round, so no two read one buffer at a time.
        order = [(me + away) % size for away in range(size)]
        copies = [(blocks[r].of(out), blocks[me].of(buffers[r])) for r in order]
        super().__init__(context, copies)
        self.bytes_sent = self.bytes_received = out.nbytes // size * (size - 1)


class Swap(OnHost):
    """The same in place: any two ranks swap two blocks, and each of them does half of it.

    So nothing is read or written twice but a few kilobytes in the cache, and no second array is
    needed.
    """

    def __init__(self, context: CollectiveContext, buffers: Sequence[AnyVector]) -> None:
        """Compile.

        Args:
            context: of the collective.
            buffers: as in ``Exchange``; block i of each is to be that of rank i.
        """
        super().__init__(context)
        me, size = context.slot.local_rank, len(buffers)
        own = buffers[me]
        blocks = even_spans(own.size, size)
        step = _ASIDE_BYTES // own.itemsize
        aside = np.empty(step, own.dtype)
        #: What is swapped, a piece at a time, and where one of both is put meanwhile.
        self._swaps: list[tuple[AnyVector, AnyVector, AnyVector]] = []
        for other in ((me + away) % size for away in range(1, size)):
            mine, theirs = blocks[other].of(own), blocks[me].of(buffers[other])
            # The halves are cut alike by both: the lower rank takes the first.
            half = even_spans(mine.size, 2)[me > other]
            for start, stop in block_spans(half.size, step):
                a, b = half.start + start, half.start + stop
                self._swaps.append((mine[a:b], theirs[a:b], aside[: b - a]))
        self.bytes_sent = self.bytes_received = own.nbytes // size * (size - 1)

    def run(self) -> Run:
        """Run it."""
        barrier = self.context.barrier
        if not barrier.arrive():
            yield barrier.is_complete
        # Each element of each buffer is in one half of one pair, so one rank alone touches it
        # between the two barriers.
        for mine, theirs, aside in self._swaps:
            np.copyto(aside, mine)
            np.copyto(mine, theirs)
            np.copyto(theirs, aside)
        if not barrier.arrive():
            yield barrier.is_complete

    def free(self) -> None:
        """Release the peers' memory."""
        self._swaps.clear()
