"""What the ranks of one communicator communicate through; made once, and shared by all users."""

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

    Collective to make and to close. Its users send their messages on the duplicate, distinguished
    by ``psrt.mpi.tags``, and make collective calls there in the same order on all ranks.
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
            floats: float32 numbers of this rank in ``memory``.
            boxes: mailboxes to each rank there; the same on all ranks.
            names: the ranks' numbers in messages, if these are only some of the ranks of a job;
                empty for their numbers in ``comm``.
        """
        assert isinstance(comm, MPI.Intracomm), (
            "collectives are among the ranks of one intracommunicator"
        )
        #: The duplicate, for psrt's own messages.
        self.comm = comm.Dup()
        #: Rank → its number in messages.
        self.names = tuple(names) or tuple(range(comm.size))
        #: The ranks of this host, and which ranks are on which host.
        self.node, self.layout = split_hosts(self.comm, host)
        #: Rank → rank on this host.
        self.local = {rank: local for local, rank in enumerate(self.layout.local_ranks)}
        #: By rank: see ``psrt.mpi.links.pieces``.
        self.unannounced_bytes = unannounced_bytes(self.comm, self.layout.machine)
        #: Mailboxes, flags and numbers of the ranks of this host.
        self.memory = NodeMemory(self.node, floats, boxes)
        #: Lets this rank sleep until one of them sends it something.
        self.wakeup = Wakeup(self.node, self.memory)
        #: The windows that are made later.
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
        # Messages by MPI, from other hosts, wake no sleeper.
        found.must_poll |= len(self.local) < self.comm.size
        return found

    def close(self, *, alone: bool = False) -> None:
        """Free all resources; collective.

        Args:
            alone: whether something has failed, so that other ranks may not take part; then only
                this rank's own resources are freed.
        """
        self.wakeup.close()
        if alone:
            return
        self.segments.free()
        self.memory.close()
        self.node.Free()
        self.comm.Free()
