"""Plans that copy: out of the windows of a host, around another plan, and behind one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psrt.collective.spec import CollectiveSpec
from psrt.core.arrays import AnyVector
from psrt.mpi.collectives.plans.plan import Around, CollectiveContext, OnHost, Run


@dataclass(eq=False)
class BetweenBarriers(OnHost):
    """Copies out of the buffers of the other ranks of the host, while none of them writes there."""

    #: From the second to the first of each pair; the first is this rank's own.
    copies: list[tuple[AnyVector, AnyVector]]

    def run(self) -> Run:
        """Run it."""
        barrier = self.context.barrier
        # Release and acquire: all that the owners wrote to their buffers is seen behind it.
        if not barrier.arrive():
            yield barrier.is_complete
        # No rank is owed what another one reads from it meanwhile: what is copied from a buffer is
        # its owner's own numbers, which nobody overwrites before the second barrier.
        for into, given in self.copies:
            np.copyto(into, given)
        # An owner returns, and its caller may write, only after every peer has copied: the release
        # orders the copies' loads before the count that lets it go.
        if not barrier.arrive():
            yield barrier.is_complete

    def free(self) -> None:
        """Release the peers' memory."""
        self.copies.clear()


class Copy(BetweenBarriers):
    """Copies what this rank ends with out of the buffers of the other ranks of the host.

    An all-gather, a broadcast, a scatter, a gather: whatever ends with numbers of single ranks in
    their own places.
    """

    def __init__(
        self, context: CollectiveContext, buffers: Sequence[AnyVector], spec: CollectiveSpec
    ) -> None:
        """Compile.

        Args:
            context: of the collective.
            buffers: (n,) each, of all ranks of this host, in shared memory.
            spec: what each rank ends with, and from whose buffer.
        """
        me = context.slot.local_rank
        own = buffers[me]
        copies = [
            (each.span.of(own), each.span.of(buffers[each.source]))
            for each in spec.owed[me]
            if each.source not in (None, me) and each.span.size
        ]
        super().__init__(context, copies)
        itemsize = own.itemsize
        self.bytes_received = itemsize * sum(into.size for into, _ in copies)
        self.bytes_sent = itemsize * sum(
            each.span.size
            for rank, theirs in enumerate(spec.owed)
            for each in theirs
            if rank != me and each.source == me
        )


@dataclass(eq=False)
class Copied(Around):
    """A plan on staging memory for a vector that peers cannot see: in, run, out."""

    #: (n,), this rank's.
    vector: AnyVector
    #: (n,), this rank's staging memory, which the plan reduces.
    scratch: AnyVector

    def run(self) -> Run:
        """Run it."""
        # Peers touch the scratch between the first barrier of a run and its last: the last run's is
        # behind, and this run's first one publishes the copy.
        np.copyto(self.scratch, self.vector)
        yield from self.plan.run()
        # Behind the plan's last barrier: no peer writes here before this rank's next run begins.
        np.copyto(self.vector, self.scratch)


@dataclass(eq=False)
class Fetched(Around):
    """A plan, and copies of what it brought to where it belongs."""

    #: From the second to the first of each pair, all of them this rank's own.
    copies: list[tuple[AnyVector, AnyVector]]

    def run(self) -> Run:
        """Run it."""
        yield from self.plan.run()
        # A schedule ends when all that it sends has left, or has been read out of the window.
        for into, given in self.copies:
            np.copyto(into, given)
