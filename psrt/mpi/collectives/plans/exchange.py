"""All-to-all among the windows of a host: every rank has a block for each of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.core.arrays import AnyVector
from psrt.core.partition import block_spans, even_spans
from psrt.mpi.collectives.plans.copy import BetweenBarriers
from psrt.mpi.collectives.plans.plan import CollectiveContext, OnHost, Run

#: Bytes swapped at a time: the piece that is moved aside stays in a core's second-level cache.
_ASIDE_BYTES = 64 * 1024


class Exchange(BetweenBarriers):
    """Copies this rank's block out of every buffer of the host into a separate array."""

    def __init__(
        self, context: CollectiveContext, buffers: Sequence[AnyVector], out: AnyVector
    ) -> None:
        """Compile.

        Args:
            context: of the collective.
            buffers: (n,) each, of all ranks of this host, in shared memory; n is a multiple of
                their number, and block j of each is for rank j.
            out: (n,), this rank's, in any memory; block i receives the one of rank i.
        """
        me, size = context.slot.local_rank, len(buffers)
        blocks = even_spans(out.size, size)
        # Each rank starts with its own buffer and continues in turn, so that at any time the ranks
        # read different buffers.
        order = [(me + away) % size for away in range(size)]
        copies = [(blocks[r].of(out), blocks[me].of(buffers[r])) for r in order]
        super().__init__(context, copies)
        self.bytes_sent = self.bytes_received = out.nbytes // size * (size - 1)


class Swap(OnHost):
    """The same in place: each pair of ranks swaps two blocks, and each of the two swaps one half.

    So only a few kilobytes in the cache are read or written twice, and no second array is needed.
    """

    def __init__(self, context: CollectiveContext, buffers: Sequence[AnyVector]) -> None:
        """Compile.

        Args:
            context: of the collective.
            buffers: as in ``Exchange``; block i of each receives the one of rank i.
        """
        super().__init__(context)
        me, size = context.slot.local_rank, len(buffers)
        own = buffers[me]
        blocks = even_spans(own.size, size)
        step = _ASIDE_BYTES // own.itemsize
        aside = np.empty(step, own.dtype)
        #: The pieces to swap, and where one of the two is put meanwhile.
        self._swaps: list[tuple[AnyVector, AnyVector, AnyVector]] = []
        for other in ((me + away) % size for away in range(1, size)):
            mine, theirs = blocks[other].of(own), blocks[me].of(buffers[other])
            # Both ranks split the blocks at the same element; the lower rank swaps the first half.
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
        # Each element of each buffer is in one half of one pair's blocks, so only one rank touches
        # it between the two barriers.
        for mine, theirs, aside in self._swaps:
            np.copyto(aside, mine)
            np.copyto(mine, theirs)
            np.copyto(theirs, aside)
        if not barrier.arrive():
            yield barrier.is_complete

    def free(self) -> None:
        """Drop views of the peers' memory."""
        self._swaps.clear()
