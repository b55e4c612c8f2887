"""The steps of collectives over MPI: spans between workers, through memory inside a host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from psrt.collective import Step
from psrt.transport.node import LocalNeighbour
from psrt.transport.patience import Patience
from psrt.transport.port import Vector

_TAG = 3


class Spans:
    """One rank's part in the steps of collectives on its vector."""

    def __init__(
        self,
        comm: MPI.Comm,
        vector: Vector,
        patience: Patience,
        make_neighbour: Callable[[int], LocalNeighbour | None],
    ) -> None:
        """Set up.

        Args:
            comm: the communicator of the job's own traffic.
            vector: what the spans are of.
            patience: waits.
            make_neighbour: makes the way through memory to a rank; None to another host.
        """
        self._comm = comm
        self._vector = vector
        self._patience = patience
        self._make_neighbour = make_neighbour
        self._neighbours: dict[int, LocalNeighbour | None] = {}
        #: Bytes of spans handed over so far.
        self.bytes_sent = 0
        #: Bytes of spans received so far.
        self.bytes_received = 0

    def exchange(self, step: Step, scratch: Vector) -> None:
        """Carry out one step; see ``Port.exchange``."""
        to, source = step.send_to, step.receive_from
        sent = None if to is None else self._offer(to, step)
        if source is not None:
            self._fetch(source, step, scratch, sent)
        elif sent is not None:
            self._patience.wait(sent, lambda: f"rank {to} to take {step.send}")
        if to is not None:
            self.bytes_sent += 4 * step.send.size
        if source is not None:
            self.bytes_received += 4 * step.receive.size

    def close(self) -> None:
        """Let go of the peers' memory."""
        self._neighbours.clear()
        self._vector = self._vector[:0].copy()

    def _neighbour(self, peer: int) -> LocalNeighbour | None:
        if peer not in self._neighbours:
            self._neighbours[peer] = self._make_neighbour(peer)
        return self._neighbours[peer]

    def _offer(self, to: int, step: Step) -> Callable[[], bool]:
        """Begin to send; return what tells whether the span may be overwritten.

        Each half of a step goes its own way, as its peer expects: between two ranks of a host
        through memory, else by MPI.
        """
        neighbour = self._neighbour(to)
        if neighbour is None:
            return self._comm.Isend(step.send.of(self._vector), to, _TAG).Test
        neighbour.offer()
        return neighbour.taken

    def _fetch(
        self, source: int, step: Step, scratch: Vector, sent: Callable[[], bool] | None
    ) -> None:
        """Receive, wait until what was sent may be overwritten, and combine or copy."""
        mine = step.receive.of(self._vector)
        # The peer still reads what this sum will overwrite.
        apart = sent is not None and _overlap(step)
        late: Vector | None = None
        neighbour = self._neighbour(source)
        if neighbour is not None:
            self._patience.wait(neighbour.offered, lambda: f"rank {source} to offer {step.receive}")
            given = step.receive.of(neighbour.numbers)
            if apart:
                late = scratch[: mine.size]
                np.copyto(late, given)
            else:
                _fold(mine, given, step.combine)
            neighbour.take()
        else:
            late = scratch[: mine.size] if apart or step.combine else None
            request = self._comm.Irecv(mine if late is None else late, source, _TAG)
            self._patience.wait(request.Test, lambda: f"rank {source} to send {step.receive}")
        if sent is not None:
            self._patience.wait(sent, lambda: f"rank {step.send_to} to take {step.send}")
        if late is not None:
            _fold(mine, late, step.combine)


def _overlap(step: Step) -> bool:
    return step.send.start < step.receive.stop and step.receive.start < step.send.stop


def _fold(mine: Vector, given: Vector, combine: bool) -> None:
    if combine:
        np.add(mine, given, out=mine)
    else:
        np.copyto(mine, given)
