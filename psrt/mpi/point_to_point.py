"""Messages between two ranks of a communicator, beside its collectives.

They travel on an MPI communicator of their own, so no tag of a user meets one of psrt's. A receive
looks for its message and compares the length before it takes it: MPI would silently write a short
message into a longer array.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import AnyVector
from psrt.core.errors import LeftError, ProtocolError
from psrt.mpi.collectives.matcher import CallMatcher
from psrt.mpi.collectives.plans.plan import Plan, Run
from psrt.mpi.links.pieces import pieces

#: Seconds for which a message may still arrive after the news that its sender has left: the two
#: travel on different communicators, so MPI does not order them.
_ARRIVES_WITHIN_S = 0.2


class PointToPoint:
    """One rank's messages."""

    def __init__(self, comm: MPI.Intracomm, matcher: CallMatcher, names: Sequence[int]) -> None:
        """Set up.

        Args:
            comm: all ranks; nothing else sends or receives on it.
            matcher: knows which ranks have left.
            names: of the ranks in messages.
        """
        self.comm = comm
        self.names = names
        #: The largest tag, which is psrt's own.
        self.most_tag = int(comm.Get_attr(MPI.TAG_UB) or 32767)
        self._matcher = matcher
        #: Receives whose message has not arrived, in the order of their start.
        self._waiting: list[Receive] = []

    def send(self, vector: AnyVector, dest: int, tag: int) -> Send:
        """Return the plan that sends a vector."""
        return Send(self, vector, dest, tag)

    def receive(self, vector: AnyVector, source: int | None, tag: int) -> Receive:
        """Return the plan that fills a vector; of several for the same messages in their order."""
        sources = range(self.comm.size) if source is None else (source,)
        self._waiting.append(Receive(self, vector, sources, tag))
        return self._waiting[-1]

    def match(self) -> None:
        """Take the messages that have arrived, each for the first receive that it is for."""
        # What an earlier receive may get is not for a later one, even if it arrives between the two
        # looks.
        taken: set[tuple[int, int]] = set()
        for receive in self._waiting:
            receive.look(taken)
        self._waiting = [receive for receive in self._waiting if receive.left]

    def check_here(self, peers: Sequence[int]) -> None:
        """Raise a ``LeftError`` if all of these ranks but this one have left."""
        gone = self._matcher.gone
        others = set(peers) - {self.comm.rank}
        if gone and others and others <= gone.keys():
            since, text = max(gone[rank] for rank in others)
            if time.monotonic() - since > _ARRIVES_WITHIN_S:
                raise LeftError(text)

    def fail(self, why: str) -> NoReturn:
        """Raise a ``ProtocolError``, and tell it to the others, which know nothing of messages."""
        self._matcher.leave(f"ProtocolError: {why}", since=0)
        raise ProtocolError(why)


class Send(Plan):
    """Sends a vector, which must not change until it has left."""

    polls, is_call = True, False

    def __init__(self, owner: PointToPoint, vector: AnyVector, dest: int, tag: int) -> None:
        self._owner, self._bytes, self._dest, self._tag = owner, vector.view(np.uint8), dest, tag
        self.bytes_sent = vector.nbytes * (dest != owner.comm.rank)

    def run(self) -> Run:
        """Run it."""
        send = self._owner.comm.Isend
        parts = [[part, MPI.BYTE] for part in pieces(self._bytes)]
        yield partial(self._has_left, [send(part, self._dest, self._tag) for part in parts])

    def _has_left(self, requests: list[MPI.Request]) -> bool:
        if not MPI.Request.Testall(requests):
            self._owner.check_here((self._dest,))
            return False
        return True

    def waiting_for(self) -> str:
        """Name the receiver."""
        who = self._owner.names[self._dest]
        return f"rank {who} to receive {self._bytes.nbytes} bytes with tag {self._tag}"


class Receive(Plan):
    """Fills a vector; its run returns the rank that sent the message."""

    polls, is_call = True, False

    def __init__(
        self, owner: PointToPoint, vector: AnyVector, sources: Sequence[int], tag: int
    ) -> None:
        self._owner, self._tag, self._nbytes = owner, tag, vector.nbytes
        #: The ranks that it may come from: one, once a part of it has arrived.
        self._sources = sources
        #: The parts of the vector whose message has not arrived.
        self.left: list[Any] = pieces(vector.view(np.uint8))
        self._requests: list[MPI.Request] = []

    def run(self) -> Run:
        """Run it."""
        yield self._has_arrived
        yield lambda: MPI.Request.Testall(self._requests)
        (sender,) = self._sources
        self.bytes_received = self._nbytes * (sender != self._owner.comm.rank)
        return sender

    def look(self, taken: set[tuple[int, int]]) -> None:
        """Take what has arrived; add to ``taken`` the ranks and tags that this still waits for."""
        while self.left and self._take_one(taken):
            self.left.pop(0)
        if self.left:
            taken.update((source, self._tag) for source in self._sources)

    def _take_one(self, taken: set[tuple[int, int]]) -> bool:
        status = MPI.Status()
        for source in self._sources:
            if (source, self._tag) in taken:
                continue
            message = self._owner.comm.Improbe(source, self._tag, status)
            if message is not None:
                self._sources = (source,)
                self._check(source, status.Get_count(MPI.BYTE))
                self._requests.append(message.Irecv([self.left[0], MPI.BYTE]))
                return True
        return False

    def _check(self, source: int, nbytes: int) -> None:
        if nbytes != self.left[0].nbytes:
            names = self._owner.names
            self._owner.fail(
                f"rank {names[source]} sent {nbytes} bytes with tag {self._tag}, "
                f"rank {names[self._owner.comm.rank]} expected {self.left[0].nbytes}"
            )

    def _has_arrived(self) -> bool:
        self._owner.match()
        if self.left:
            self._owner.check_here(self._sources)
        return not self.left

    def waiting_for(self) -> str:
        """Name the sender."""
        one = f"rank {self._owner.names[self._sources[0]]}"
        who = one if len(self._sources) == 1 else "any rank"
        return f"{who} to send {self._nbytes} bytes with tag {self._tag}"
