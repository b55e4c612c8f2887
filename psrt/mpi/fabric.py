"""What the ranks of one communicator talk through: made once, whatever is built upon it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from psrt.core.arrays import Vector
from psrt.mpi.hosts import split_hosts
from psrt.mpi.links.pieces import unannounced_bytes
from psrt.mpi.links.segments import Segments
from psrt.mpi.links.shared_memory import NodeMemory
from psrt.mpi.links.wakeup import Wakeup
from psrt.transport.backoff import Backoff


class Fabric:
    """A duplicate of a communicator, its hosts, and what the ranks of this host share.

    Collective to make and to close. All that is built upon it sends its messages on the duplicate,
    told apart by ``psrt.mpi.tags``, and makes its collectives there in one order on all ranks.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        host: int | None = None,
        *,
        floats: int = 0,
        boxes: int = 1,
        names: Sequence[int] = (),
    ) -> None:
        """Set up.

        Args:
            comm: the ranks; duplicated.
            host: see ``split_hosts``.
            floats: float32 numbers that this rank wants to have in ``memory``.
            boxes: mailboxes to each rank there; the same on all ranks.
            names: what ranks are called in messages, where these are some of the ranks of a job;
                empty for their own numbers.
        """
        assert isinstance(comm, MPI.Intracomm), (
            "collectives are among the ranks of one intracommunicator"
        )
        #: All ranks, for psrt's own messages.
        self.comm = comm.Dup()
        #: By rank, its number in messages.
        self.names = tuple(names) or tuple(range(comm.size))
        #: The ranks of this host, and who is on which.
        self.node, self.layout = split_hosts(self.comm, host)
        #: Rank → rank on this host.
        self.local = {rank: local for local, rank in enumerate(self.layout.local_ranks)}
        #: By rank: see ``psrt.mpi.links.pieces``.
        self.unannounced_bytes = unannounced_bytes(self.comm, self.layout.machine)
        #: Mailboxes, flags and numbers of the ranks of this host.
        self.memory = NodeMemory(self.node, floats, boxes)
        #: Lets this rank sleep until one of them has something for it.
        self.wakeup = Wakeup(self.node, self.memory)
        #: Windows that are made later.
        self.segments = Segments(self.node)

    def numbers_of(self, rank: int) -> Vector:
        """Return the numbers in ``memory`` of a rank of this host."""
        return self.memory.numbers(self.local[rank])

    def backoff(self, **how: Any) -> Backoff:
        """Return how this rank waits for the others; see ``Backoff`` for the arguments."""
        found = Backoff(
            oversubscribed=self.layout.oversubscribed,
            wakeup=self.wakeup if self.wakeup.works else None,
            **how,
        )
        # What comes by MPI, from other hosts, wakes no sleeper.
        found.must_poll |= len(self.local) < self.comm.size
        return found

    def close(self, *, alone: bool = False) -> None:
        """Free what was made; collective.

        Args:
            alone: whether something has failed, so that the others may not come: then only what
                is this rank's own is freed.
        """
        self.wakeup.close()
        if alone:
            return
        self.segments.free()
        self.memory.close()
        self.node.Free()
        self.comm.Free()
