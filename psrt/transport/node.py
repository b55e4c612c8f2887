"""Shared memory between the ranks of one host: where buffers lie, and doorbells.

Every rank owns one piece of an ``MPI.Win.Allocate_shared`` window: a mailbox for each rank of the
host that it may write to, then its numbers. A mailbox has one writer and one reader:

===========  ==================  ==========================================================
word         written by          meaning
===========  ==================  ==========================================================
0            writer, last        messages written so far: the doorbell
1            writer              region of the payload
2 … 9        writer              the frame
16           reader              messages read so far: the payload may be overwritten
24           writer              spans offered so far in collectives
32           reader              offered spans taken so far
===========  ==================  ==========================================================

Words of 8 bytes, aligned, are read and written whole. What each side writes for itself is on a
cache line of its own. On x86 stores become visible in order; elsewhere ``fence`` sees to it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from psrt.messages import Message
from psrt.transport.frames import decode, encode
from psrt.transport.port import NO_PAYLOAD, Vector

WORD = 8
#: Words of a mailbox: five cache lines of 64 bytes.
MAILBOX_WORDS = 40
_RUNG, _REGION, _FRAME, _READ, _OFFERED, _TAKEN = 0, 1, 2, 16, 24, 32
_FRAME_OFFSET = _FRAME * WORD
_TOTAL_STORE_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")


class NodeMemory:
    """The window of one host: each rank's mailboxes and float32 numbers.

    Collective over ``comm``; ``close`` is, too.
    """

    def __init__(self, comm: MPI.Comm, floats: int) -> None:
        """Allocate this rank's piece.

        Args:
            comm: the ranks of this host.
            floats: numbers that this rank wants to have in shared memory.
        """
        self._comm = comm
        self._mail_bytes = -(-comm.size * MAILBOX_WORDS * WORD // 4096) * 4096
        self._window = MPI.Win.Allocate_shared(self._mail_bytes + 4 * floats, 1, comm=comm)
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self._memory = [memoryview(self._window.Shared_query(r)[0]) for r in range(comm.size)]
        self._memory[comm.rank][: self._mail_bytes] = bytes(self._mail_bytes)
        self.fence()
        comm.Barrier()

    def numbers(self, local_rank: int) -> Vector:
        """Return the float32 numbers of a rank of this host."""
        return np.frombuffer(self._memory[local_rank], np.float32, offset=self._mail_bytes)

    def outbox(self, to: int) -> Outbox:
        """Return the writer's end of the mailbox from this rank to local rank ``to``."""
        return Outbox(self._mailbox(self._comm.rank, to), self.barrier_or_none())

    def inbox(self, source: int) -> Inbox:
        """Return the reader's end of the mailbox from local rank ``source`` to this one."""
        return Inbox(self._mailbox(source, self._comm.rank), self.barrier_or_none())

    def fence(self) -> None:
        """Order this rank's stores and loads around this point."""
        self._window.Sync()

    def barrier_or_none(self) -> Callable[[], None] | None:
        """Return ``fence`` where the processor needs it."""
        return None if _TOTAL_STORE_ORDER else self.fence

    def close(self) -> None:
        """Free the window; views of it must not be used afterwards."""
        self._memory.clear()
        self._window.Unlock_all()
        self._window.Free()

    def _mailbox(self, writer: int, reader: int) -> memoryview:
        nbytes = MAILBOX_WORDS * WORD
        return self._memory[writer][reader * nbytes : (reader + 1) * nbytes]


class Outbox:
    """The writer's end of a mailbox."""

    __slots__ = ("_bytes", "_fence", "_offered", "_rung", "_words")

    def __init__(self, mailbox: memoryview, fence: Callable[[], None] | None) -> None:
        self._bytes = mailbox
        self._words = mailbox.cast("q")
        self._fence = fence
        self._rung = 0
        self._offered = 0

    def free(self) -> bool:
        """Tell whether the last message, and its payload, have been read."""
        return self._words[_READ] == self._rung

    def write(self, message: Message, region: int) -> None:
        """Write a message and ring; the last one must have been read."""
        words = self._words
        encode(message, self._bytes, _FRAME_OFFSET)
        words[_REGION] = region
        if self._fence is not None:
            self._fence()
        self._rung += 1
        words[_RUNG] = self._rung

    def offer(self) -> None:
        """Say that the next span of a collective may be read from this rank's numbers."""
        if self._fence is not None:
            self._fence()
        self._offered += 1
        self._words[_OFFERED] = self._offered

    def taken(self) -> bool:
        """Tell whether all offered spans have been read."""
        return self._words[_TAKEN] == self._offered


class Inbox:
    """The reader's end of a mailbox."""

    __slots__ = ("_bytes", "_fence", "_read", "_taken", "_words")

    def __init__(self, mailbox: memoryview, fence: Callable[[], None] | None) -> None:
        self._bytes = mailbox
        self._words = mailbox.cast("q")
        self._fence = fence
        self._read = 0
        self._taken = 0

    def rung(self) -> bool:
        """Tell whether there is a message to read."""
        return self._words[_RUNG] != self._read

    def message(self) -> tuple[Message, int]:
        """Return the message and the region of its payload."""
        if self._fence is not None:
            self._fence()
        return decode(self._bytes, _FRAME_OFFSET), self._words[_REGION]

    def done(self) -> None:
        """Say that message and payload have been read."""
        if self._fence is not None:
            self._fence()
        self._read += 1
        self._words[_READ] = self._read

    def offered(self) -> bool:
        """Tell whether the writer's next span may be read."""
        if self._words[_OFFERED] == self._taken:
            return False
        if self._fence is not None:
            self._fence()
        return True

    def take(self) -> None:
        """Say that the span has been read."""
        if self._fence is not None:
            self._fence()
        self._taken += 1
        self._words[_TAKEN] = self._taken


class LocalLink:
    """Both directions between this rank and one peer on its host.

    A payload is not sent: the reader copies it from the writer's memory into its ``landing``, or
    uses it where it lies if it has none.
    """

    def __init__(
        self, outbox: Outbox, inbox: Inbox, *, regions: list[Vector], landing: Vector | None
    ) -> None:
        """Join the two mailboxes.

        Args:
            outbox: to the peer.
            inbox: from the peer.
            regions: the peer's regions, as seen from here.
            landing: where a payload is copied to; None leaves it with the peer.
        """
        self._outbox = outbox
        self._inbox = inbox
        self._regions = regions
        self._landing = landing
        #: Where the peer's payload is found after a receipt.
        self.payload = regions[0] if landing is None else landing

    def ready(self) -> bool:
        """Tell whether the last message has been read, so that the next may be written."""
        return self._outbox.free()

    def in_flight(self) -> bool:
        """Tell whether the last payload may still be being read."""
        return not self._outbox.free()

    def send(self, message: Message, region: int) -> None:
        """Write a message; ``ready`` must hold."""
        self._outbox.write(message, region)

    def poll(self) -> tuple[Message, int] | None:
        """Return the next message and its region, payload in place; None if there is none."""
        inbox = self._inbox
        if not inbox.rung():
            return None
        message, region = inbox.message()
        if region != NO_PAYLOAD and self._landing is not None:
            np.copyto(self._landing, self._regions[region])
        inbox.done()
        return message, region
