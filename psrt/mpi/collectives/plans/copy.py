"""Plans that copy: out of the windows of a host, and into staging memory and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.mpi.collectives.plans.plan import Array, Plan, Run, Ticket
from psrt.partition import Span


class Fetch(Plan):
    """Copies spans from where each rank of the host has them: an all-gather, or a broadcast."""

    polls = False

    def __init__(self, ticket: Ticket, buffers: Sequence[Array], spans: Sequence[Span]) -> None:
        """Compile.

        Args:
            ticket: of the collective.
            buffers: (n,) each, of all ranks of this host, in shared memory.
            spans: by local rank, what is copied from that rank's buffer to the same place here.
        """
        self._ticket = ticket
        local = ticket.slot.local
        own = buffers[local]
        self._copies = [
            (span.of(own), span.of(buffer))
            for r, (buffer, span) in enumerate(zip(buffers, spans, strict=True))
            if r != local and span.size
        ]
        itemsize = own.itemsize
        self.bytes_received = itemsize * sum(into.size for into, _ in self._copies)
        self.bytes_sent = itemsize * spans[local].size * (len(buffers) - 1)

    def run(self) -> Run:
        """Carry it out."""
        meeting = self._ticket.meeting
        meeting.come()
        if not meeting.all_here():
            yield meeting.all_here
        for into, given in self._copies:
            np.copyto(into, given)
        meeting.come()
        if not meeting.all_here():
            yield meeting.all_here

    def whom(self) -> str:
        """Name the ranks that have not come."""
        return self._ticket.absent()

    def free(self) -> None:
        """Let go of the peers' memory."""
        self._copies.clear()


class Copied(Plan):
    """A plan on staging memory for a vector that peers cannot see: in, run, out."""

    def __init__(self, plan: Plan, vector: Array, room: Array) -> None:
        self._plan = plan
        self._vector = vector
        self._room = room[: vector.size]
        self.bytes_sent, self.bytes_received = plan.bytes_sent, plan.bytes_received
        self.polls = plan.polls

    def run(self) -> Run:
        """Carry it out."""
        np.copyto(self._room, self._vector)
        yield from self._plan.run()
        np.copyto(self._vector, self._room)

    def whom(self) -> str:
        """Name who is waited for."""
        return self._plan.whom()

    def free(self) -> None:
        """Free the plan."""
        self._plan.free()
