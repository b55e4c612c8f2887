"""Shared memory between the ranks of one host: where buffers lie, and doorbells.

Every rank owns one piece of an ``MPI.Win.Allocate_shared`` window: mailboxes for each rank of the
host that it may write to, one for each shard of a server, then its numbers. A mailbox has one
writer and one reader:

===========  ==================  ==========================================================
word         written by          meaning
===========  ==================  ==========================================================
0            writer, last        messages written so far: the doorbell
1            writer              region of the payload
10           writer              bytes of the payload that may be read by now
2 … 9        writer              the frame
16           reader              messages read so far: the payload may be overwritten
===========  ==================  ==========================================================

Words of 8 bytes, aligned, are read and written whole. What each side writes for itself is on a
cache line of its own. On x86 stores become visible in order; elsewhere ``fence`` sees to it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from mpi4py import MPI

from psrt.arrays import Vector
from psrt.messages import Message
from psrt.mpi.links.memory import SharedMemory
from psrt.transport.frames import FRAME_BYTES, decode, encode
from psrt.transport.port import NO_PAYLOAD

#: A peer's flag, up while it sleeps, and what wakes it then.
Waker: TypeAlias = tuple[memoryview, Callable[[], None]]

WORD = 8
#: Words of a mailbox: three cache lines of 64 bytes.
MAILBOX_WORDS = 24
_RUNG, _REGION, _FRAME, _READY, _READ = 0, 1, 2, 10, 16
_FRAME_OFFSET = _FRAME * WORD
#: The region of a payload that its writer has put where the reader wants it.
_PUT = -2
_TOTAL_STORE_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")


class NodeMemory:
    """The window of one host: each rank's mailboxes and float32 numbers.

    Collective over ``comm``; ``close`` is, too.
    """

    def __init__(self, comm: MPI.Comm, floats: int, boxes: int = 1) -> None:
        """Allocate this rank's piece.

        Args:
            comm: the ranks of this host.
            floats: numbers that this rank wants to have in shared memory.
            boxes: mailboxes to each rank; the same on all of them.
        """
        assert isinstance(comm, MPI.Intracomm), "shared memory is among the ranks of one host"
        self._comm = comm
        self._boxes = boxes
        # Mailboxes for each rank, this rank's flag on a cache line of its own, then numbers.
        self._flag_at = comm.size * boxes * MAILBOX_WORDS * WORD
        self._mail_bytes = -(-(self._flag_at + 64) // 4096) * 4096
        self._shared = SharedMemory(comm, self._mail_bytes + 4 * floats)
        self._memory = self._shared.parts
        # A new window may hold anything. Each rank clears its own counts and flag; the fence puts
        # the zeros before the barrier, so nobody takes what was there for a doorbell.
        self._memory[comm.rank][: self._mail_bytes] = bytes(self._mail_bytes)
        self.fence()
        comm.Barrier()

    def numbers(self, local_rank: int) -> Vector:
        """Return the float32 numbers of a rank of this host."""
        return np.frombuffer(self._memory[local_rank], np.float32, offset=self._mail_bytes)

    def flag(self, local_rank: int) -> memoryview:
        """Return the flag of a rank of this host: one word, 0 at first."""
        return self._memory[local_rank][self._flag_at : self._flag_at + WORD].cast("q")

    def mailboxes(self, peer: int, box: int = 0) -> tuple[memoryview, memoryview]:
        """Return the mailbox of this number to local rank ``peer`` and the one from it."""
        return self._mailbox(self._comm.rank, peer, box), self._mailbox(peer, self._comm.rank, box)

    def fence(self) -> None:
        """Order this rank's stores and loads around this point."""
        self._shared.fence()

    def fence_if_needed(self) -> Callable[[], None] | None:
        """Return ``fence`` where the processor needs it, None where stores are seen in order."""
        return None if _TOTAL_STORE_ORDER else self.fence

    def close(self) -> None:
        """Free the window; views of it must not be used afterwards."""
        self._shared.free()

    def _mailbox(self, writer: int, reader: int, box: int) -> memoryview:
        nbytes, at = MAILBOX_WORDS * WORD, reader * self._boxes + box
        return self._memory[writer][at * nbytes : (at + 1) * nbytes]


class LocalLink:
    """Messages of one shard between this rank and one peer on its host, both ways.

    A payload is not sent: the reader copies it from the writer's memory into its ``landing``, or
    uses it where it lies if it has none, or the writer puts it there itself.
    """

    def __init__(
        self,
        memory: NodeMemory,
        peer: int,
        place: int,
        waker: Waker,
        *,
        regions: list[Vector],
        landing: Vector | None,
        sends: list[Vector],
        peer_landing: Vector | None = None,
    ) -> None:
        """Take up the two mailboxes.

        Args:
            memory: of this host.
            peer: its rank on this host.
            place: of the shard among those of its server.
            waker: its flag, and what wakes it.
            regions: the peer's regions, as seen from here.
            landing: where a payload is copied to; None leaves it with the peer.
            sends: this rank's regions.
            peer_landing: the peer's landing, as seen from here; None if it is not in shared memory.
        """
        out, into = memory.mailboxes(peer, place)
        self._out_bytes, self._out = out, out.cast("q")
        self._in_bytes, self._in = into, into.cast("q")
        self._fence = memory.fence_if_needed()
        self._asleep, self._wake = waker
        self._rung = 0
        self._read = 0
        self._payload_bytes = regions[0].nbytes
        self._nbytes = FRAME_BYTES + self._payload_bytes
        #: Bytes of the incoming payload that have been copied so far.
        self._landed = 0
        # Bytes are copied as by memcpy; numpy's own copy takes longer to get started.
        self._regions = [region.data.cast("B") for region in regions]
        self._landing = None if landing is None else landing.data.cast("B")
        self._sends = [region.data.cast("B") for region in sends]
        self._peer_landing = None if peer_landing is None else peer_landing.data.cast("B")
        #: Whether the peer reads the last payload from this rank's region.
        self._lent = False
        #: Where the peer's payload is found after a receipt.
        self.payload = regions[0] if landing is None else landing
        #: Bytes of messages and payloads handed over so far.
        self.bytes_sent = 0
        #: Bytes of messages and payloads read so far.
        self.bytes_received = 0

    def unread(self) -> bool:
        """Return whether the last message has not been read, so that the next must wait."""
        # The reader counts after its last look at frame and payload, so equal counts mean that
        # both may be overwritten. Each count has one writer; no lock is needed for either.
        return self._out[_READ] != self._rung

    def in_flight(self) -> bool:
        """Return whether the last payload may still be being read from this rank's region."""
        return self._lent and self._out[_READ] != self._rung

    def send(self, message: Message, region: int) -> None:
        """Write a message and ring; the last one must have been read."""
        # Before the doorbell: whoever sees the ring finds the whole payload ready.
        self._out[_READY] = self._payload_bytes
        self._lent = True
        self._ring(message, region)

    def announce(self, message: Message, region: int) -> Callable[[int], None]:
        """Write a message whose payload is about to be written, and ring.

        Returns:
            what is to be called with the number of elements that are ready, until all are.
        """
        # Before the doorbell, or the reader could take the bytes of the last payload for ready.
        self._out[_READY] = 0
        self._lent = True
        self._ring(message, region)
        return self._advance

    def put(self, message: Message, region: int) -> Callable[[int], None]:
        """Prepare to write a payload to where the peer wants it, and to ring at the end.

        Returns:
            what is to be called with the number of elements that are ready, until all are: they
            are copied while they are in this core's cache.
        """
        assert self._peer_landing is not None
        # The peer reads nothing from this rank's region, so ``in_flight`` need not wait for it.
        given, landing = self._sends[region], self._peer_landing
        self._lent = False
        done = 0

        def advance(elements: int) -> None:
            nonlocal done
            # The peer looks at its landing only after the ring, whose fence covers these copies.
            landing[done : elements * 4] = given[done : elements * 4]
            done = elements * 4
            if done == len(landing):
                self._ring(message, _PUT)

        return advance

    def _advance(self, elements: int) -> None:
        # Release: the elements must be seen no later than the count that says they are there.
        if self._fence is not None:
            self._fence()
        self._out[_READY] = elements * 4
        # A reader that raises its flag just now looks at the count once more before it sleeps, and
        # its sleep is bounded should both miss each other: see ``wakeup``.
        if self._asleep[0]:
            self._wake()

    def _ring(self, message: Message, region: int) -> None:
        words = self._out
        encode(message, self._out_bytes, _FRAME_OFFSET)
        words[_REGION] = region
        # Release: frame, region and what is ready of the payload come before the doorbell, which
        # is the one store that the reader waits for. x86 keeps stores in order by itself.
        if self._fence is not None:
            self._fence()
        self._rung += 1
        words[_RUNG] = self._rung
        if self._asleep[0]:
            self._wake()
        self.bytes_sent += FRAME_BYTES if region == NO_PAYLOAD else self._nbytes

    def poll(self) -> Message | None:
        """Return the next message, payload in place; None if there is none."""
        words = self._in
        if words[_RUNG] == self._read:
            return None
        # Acquire: nothing of the message is read before the doorbell was seen.
        if self._fence is not None:
            self._fence()
        region = words[_REGION]
        if region == NO_PAYLOAD:
            self.bytes_received += FRAME_BYTES
        else:
            if region != _PUT and self._landing is not None and not self._land(region):
                return None  # more of it is to come; the doorbell stays unanswered until then
            self.bytes_received += self._nbytes
        message = decode(self._in_bytes, _FRAME_OFFSET)
        # The frame is decoded and the payload copied before the writer may overwrite them. A reader
        # that uses the payload where it lies answers it before the writer sends another: the
        # protocol alternates, so this count need not wait for its last look.
        if self._fence is not None:
            self._fence()
        self._read += 1
        words[_READ] = self._read
        return message

    def _land(self, region: int) -> bool:
        """Copy the part of the payload that is ready; return whether it is complete now."""
        assert self._landing is not None
        # Acquire: the count first, then the bytes that it speaks of. It only grows while this
        # payload is under way, so an old one is merely too small.
        ready, landed = self._in[_READY], self._landed
        if self._fence is not None:
            self._fence()
        if landed == 0 and ready == self._payload_bytes:
            self._landing[:] = self._regions[region]
            return True
        if ready > landed:
            self._landing[landed:ready] = self._regions[region][landed:ready]
        self._landed = ready % self._payload_bytes  # the next payload begins at 0
        return ready == self._payload_bytes
