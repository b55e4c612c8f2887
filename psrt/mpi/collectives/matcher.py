"""Matches the collective calls of the ranks, so that mismatched calls raise an error.

Messages of collectives carry only elements, so two ranks in different calls would wait for each
other or mix up their elements. Each call has a *signature*, one line of text. Its checksum is part
of every doorbell and every MPI tag of the call, so that messages of different calls do not match. A
rank that has waited for a while sends its signature to all others and reads theirs.
Calls that succeed without a long wait send no signatures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from psrt.core.errors import DifferentCallsError, LeftError, ProtocolError
from psrt.mpi.tags import CALL

#: Seconds without progress after which a rank sends its signatures.
TELL_AFTER_S = 0.3
#: Seconds between two checks for the signatures of others.
_LOOK_EVERY_S = 0.05
#: The number of remembered calls: a rank may be that far behind one that has finished its call.
MEMORY = 256
#: The most signatures sent at a time: that many calls may be in progress.
_NEWEST = 16
_LONGEST = 1000
_SIGNATURE, _REFUSAL, _FAREWELL = b"s", b"r", b"l"
#: Seconds that a farewell may take to leave; the first message to a host sets up a connection.
_LEAVES_WITHIN_S = 0.1


class CallMatcher:
    """One rank's signatures, and those received from the others."""

    def __init__(self, comm: MPI.Comm, names: Sequence[int] = ()) -> None:
        """Set up.

        Args:
            comm: all ranks of the communicator; for signatures only.
            names: of the ranks in messages; empty for their numbers.
        """
        self._comm = comm
        self._names = names or range(comm.size)
        #: The number of calls that this rank has made.
        self.number = 0
        #: Signatures of this rank's newest calls: call k is at ``k % MEMORY``.
        self.signatures = [""] * MEMORY
        #: The numbers of the calls that this rank refused.
        self.refused: set[int] = set()
        self._announced = 0
        #: Messages about calls that this rank has not made yet.
        self._early: list[tuple[int, int, bytes, str]] = []
        #: Sends that may not be complete. They are never cancelled: some MPI libraries crash on
        #: that.
        self._requests: list[MPI.Request] = []
        #: Messages sent to each of the others, and received from each rank.
        self._sent = 0
        self._heard = [0] * comm.size
        #: The newest call whose signature each rank has sent.
        self._newest = [0] * comm.size
        #: The ranks that make no more calls: since when this rank knows it, and the reason.
        self.gone: dict[int, tuple[float, str]] = {}
        self._waiting_since = 0.0
        self._next_look = 0.0

    def begin(self, signature: str) -> int:
        """Record that this rank makes its next call; return the call's number."""
        self.number += 1
        self.signatures[self.number % MEMORY] = signature
        self._waiting_since = 0.0
        return self.number

    def latest(self) -> str:
        """Return the number and signature of this rank's newest call, as text."""
        return f"call {self.number}, {self.signatures[self.number % MEMORY]}"

    def silent(self) -> list[int]:
        """Return the ranks that had time to announce this rank's newest call, but have not."""
        if self._announced < self.number:
            return []
        me = self._comm.rank
        return [r for r, newest in enumerate(self._newest) if newest < self.number and r != me]

    def wait_begins(self) -> None:
        """Record that this rank begins to wait."""
        # Here, not when the rank first goes idle: with other ranks on its core that may be much
        # later, and the rank would reach the deadline without having announced anything.
        self._waiting_since = time.monotonic()
        self._next_look = self._waiting_since + _LOOK_EVERY_S

    def while_waiting(self) -> None:
        """Send signatures and check for others', if it is time; called while nothing progresses.

        Raises:
            ProtocolError: if another rank is in another call, or cannot take part in this one.
        """
        now = time.monotonic()
        if not self._waiting_since:
            self._waiting_since = now
            self._next_look = now + _LOOK_EVERY_S
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY_S
        if now - self._waiting_since > TELL_AFTER_S:
            self._announce()
        self.look()

    def refuse(self, signature: str, why: str) -> None:
        """Record a call that this rank cannot take part in, and send the others the reason."""
        self.refused.add(self.begin(signature))
        self._send(self.number, _REFUSAL, why)
        self._announced = self.number

    def leave(self, words: str, *, since: int) -> None:
        """Tell the others that this rank makes no more calls, and why.

        Args:
            words: the reason.
            since: the first call that this rank does not complete.
        """
        self._send(since, _FAREWELL, words)
        deadline = time.monotonic() + _LEAVES_WITHIN_S
        while not MPI.Request.Testall(self._requests) and time.monotonic() < deadline:
            pass

    def look(self) -> None:
        """Read the signatures, refusals and farewells that others have sent.

        Raises:
            ProtocolError: as ``while_waiting``.
        """
        early, self._early = self._early, []
        for source, number, kind, text in early:
            self._compare(source, number, kind, text)
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, CALL, status):
            source = status.Get_source()
            data = self._take(status)
            number = int.from_bytes(data[:8], "little")
            self._newest[source] = max(number, self._newest[source])
            self._compare(source, number, bytes(data[8:9]), data[9:].decode(errors="replace"))

    def _take(self, status: MPI.Status) -> bytearray:
        """Receive the probed message."""
        data = bytearray(status.Get_count(MPI.BYTE))
        source = status.Get_source()
        self._comm.Recv([data, MPI.BYTE], source, CALL)
        self._heard[source] += 1
        return data

    def drain(self) -> None:
        """Receive all unread messages, so that the communicator can be freed; collective."""
        sent = np.empty(self._comm.size, np.int64)
        self._comm.Allgather(np.array([self._sent], np.int64), sent)
        status = MPI.Status()
        for source in range(self._comm.size):
            while source != self._comm.rank and self._heard[source] < sent[source]:
                self._comm.Probe(source, CALL, status)
                self._take(status)
        MPI.Request.Waitall(self._requests)

    def disagree(self, wait: Callable[[Callable[[], bool]], None]) -> None:
        """Find out which rank is in which call, after a checksum mismatch.

        Args:
            wait: waits until a condition is true, and calls ``look`` meanwhile.

        Raises:
            ProtocolError: always.
        """
        self._announce()
        wait(lambda: False)

    def _announce(self) -> None:
        """Send the signatures that this rank has not sent yet."""
        for number in range(max(self._announced, self.number - _NEWEST) + 1, self.number + 1):
            if number not in self.refused:
                self._send(number, _SIGNATURE, self.signatures[number % MEMORY])
        self._announced = self.number

    def _send(self, number: int, kind: bytes, text: str) -> None:
        self._requests = [request for request in self._requests if not request.Test()]
        data = number.to_bytes(8, "little") + kind + _cut(text)
        self._sent += 1
        for rank in range(self._comm.size):
            if rank != self._comm.rank:
                self._requests.append(self._comm.Isend([data, MPI.BYTE], rank, CALL))

    def _compare(self, source: int, number: int, kind: bytes, text: str) -> None:
        who, me = self._names[source], self._names[self._comm.rank]
        if kind == _FAREWELL:
            self.gone.setdefault(source, (time.monotonic(), f"rank {who} left with {text}"))
        if number > self.number:
            self._early.append((source, number, kind, text))
            return
        if kind == _FAREWELL:
            raise LeftError(self.gone[source][1])
        mine = self.signatures[number % MEMORY]
        refused = number in self.refused
        alike = refused if kind == _REFUSAL else text == _cut(mine).decode(errors="replace")
        if number <= self.number - MEMORY or alike:
            return
        self._announce()  # ranks that wait for this one must learn of the mismatch, too
        if not refused:
            self._send(number, _SIGNATURE, mine)  # the call may be too old for _announce
        if kind == _REFUSAL:
            raise ProtocolError(f"rank {who} cannot take part in call {number}: {text}")
        raise DifferentCallsError(
            f"the ranks make different calls: in call {number} rank {who} has {text}, "
            f"rank {me} has {mine}"
        )


def _cut(text: str) -> bytes:
    """Return a text for sending, truncated if it is very long."""
    return text.encode()[:_LONGEST]
