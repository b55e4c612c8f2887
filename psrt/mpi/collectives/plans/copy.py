"""Plans that copy: out of the windows of a host, around another plan, and after one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psrt.collective.spec import CollectiveSpec
from psrt.core.arrays import AnyVector
from psrt.mpi.collectives.plans.plan import Around, CollectiveContext, OnHost, Run


@dataclass(eq=False)
class BetweenBarriers(OnHost):
    """Copies from the buffers of the other ranks of the host, while none of them writes there."""

    #: Copies from the second to the first of each pair; the first is this rank's own.
    copies: list[tuple[AnyVector, AnyVector]]

    def run(self) -> Run:
        """Run it."""
        barrier = self.context.barrier
        # Release and acquire: after this barrier all that the owners wrote to their buffers is
        # seen.
        if not barrier.arrive():
            yield barrier.is_complete
        # No copy overwrites what another rank reads meanwhile: peers read only the owner's own
        # numbers, and a rank writes only the places of others' numbers in its own buffer.
        for into, given in self.copies:
            np.copyto(into, given)
        # An owner returns, and its caller may write, only after every peer has copied. The release
        # in ``arrive`` orders the loads of the copies before the count that lets the owner return.
        if not barrier.arrive():
            yield barrier.is_complete

    def free(self) -> None:
        """Drop views of the peers' memory."""
        self.copies.clear()


class Copy(BetweenBarriers):
    """Copies what this rank should end with from the buffers of the other ranks of the host.

    For all-gather, broadcast, scatter and gather: collectives that end with numbers of single ranks
    in their own places.
    """

    def __init__(
        self, context: CollectiveContext, buffers: Sequence[AnyVector], spec: CollectiveSpec
    ) -> None:
        """Compile.

        Args:
            context: of the collective.
            buffers: (n,) each, of all ranks of this host, in shared memory.
            spec: what each rank ends with, and from which rank's buffer.
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
    """A plan on staging memory, for a vector that peers cannot see: copy in, run, copy out."""

    #: (n,), this rank's vector.
    vector: AnyVector
    #: (n,), this rank's staging memory, which the plan reduces.
    scratch: AnyVector

    def run(self) -> Run:
        """Run it."""
        # Peers touch the scratch only between the first and the last barrier of a run. The last
        # barrier of the run before is past, and this run's first one publishes the copy.
        np.copyto(self.scratch, self.vector)
        yield from self.plan.run()
        # After the plan's last barrier: no peer writes here before this rank's next run begins.
        np.copyto(self.vector, self.scratch)


@dataclass(eq=False)
class Fetched(Around):
    """A plan, followed by copies of its results to their places."""

    #: Copies from the second to the first of each pair, all of them this rank's own.
    copies: list[tuple[AnyVector, AnyVector]]

    def run(self) -> Run:
        """Run it."""
        yield from self.plan.run()
        # A schedule ends only when all that it sends has left, or has been read from the window, so
        # the copies may overwrite it.
        for into, given in self.copies:
            np.copyto(into, given)
