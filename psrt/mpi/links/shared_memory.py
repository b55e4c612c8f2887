"""Shared memory between the ranks of one host: the layout of buffers, and doorbells.

Every rank owns one part of an ``MPI.Win.Allocate_shared`` window: for each rank of the host the
mailboxes in which it writes to that rank (one for each shard of a server), then its numbers. A
mailbox has one writer and one reader:

===========  ==================  ==========================================================
word         written by          meaning
===========  ==================  ==========================================================
0            writer, last        number of messages written so far: the doorbell
1            writer              region of the payload
2 … 9        writer              the message
10           writer              length in bytes of the codec's frame, if there is one
16           reader              number of messages read so far: payloads may be overwritten
===========  ==================  ==========================================================

Aligned words of 8 bytes are read and written whole. Words of different writers are on different
cache lines, so the two do not invalidate each other's line with every store. On x86 stores become
visible in program order; elsewhere ``fence`` ensures it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import Bytes, Vector
from psrt.core.errors import CodecError
from psrt.core.messages import Message
from psrt.mpi.links.memory import SharedMemory
from psrt.transport.frames import FRAME_BYTES, decode, encode
from psrt.transport.port import FRAMED, NO_PAYLOAD

#: A peer's flag, not 0 while it sleeps, and the function that wakes it.
Waker: TypeAlias = tuple[memoryview, Callable[[], None]]

WORD = 8
#: Words of a mailbox: three cache lines of 64 bytes.
MAILBOX_WORDS = 24
_RUNG, _REGION, _FRAME, _LENGTH, _READ = 0, 1, 2, 10, 16
_FRAME_OFFSET = _FRAME * WORD
_TOTAL_STORE_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")


class NodeMemory:
    """The window of one host: each rank's mailboxes and float32 numbers.

    Collective over ``comm``; ``close`` is, too.
    """

    def __init__(self, comm: MPI.Comm, floats: int, boxes: int = 1) -> None:
        """Allocate this rank's piece.

        Args:
            comm: the ranks of this host.
            floats: float32 numbers of this rank in shared memory.
            boxes: mailboxes to each rank; the same on all of them.
        """
        assert isinstance(comm, MPI.Intracomm), "shared memory is among the ranks of one host"
        self._comm = comm
        self._boxes = boxes
        # Mailboxes for each rank, this rank's flag on its own cache line, then the numbers from the
        # next page on.
        self._flag_at = comm.size * boxes * MAILBOX_WORDS * WORD
        self._mail_bytes = -(-(self._flag_at + 64) // 4096) * 4096
        self._shared = SharedMemory(comm, self._mail_bytes + 4 * floats)
        self._memory = self._shared.parts
        # A new window may hold anything. Each rank clears its own counts and flag; the fence orders
        # the zeros before the barrier, so no peer takes old contents for a doorbell.
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
        """Return mailbox number ``box`` to local rank ``peer``, and the one from it."""
        return self._mailbox(self._comm.rank, peer, box), self._mailbox(peer, self._comm.rank, box)

    def fence(self) -> None:
        """Order this rank's stores and loads around this point."""
        self._shared.fence()

    def fence_if_needed(self) -> Callable[[], None] | None:
        """Return ``fence`` if the processor needs it, None if it shows stores in order."""
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
    uses it in place. The frame of a codec is copied into shared memory, where the reader decodes
    it.
    """

    def __init__(
        self,
        memory: NodeMemory,
        peer: int,
        place: int,
        waker: Waker,
        *,
        regions: list[Vector],
        landing: Vector,
        in_place: int = NO_PAYLOAD,
        frames_out: Bytes | None = None,
        frames_in: Bytes | None = None,
        frame_landing: Bytes | None = None,
    ) -> None:
        """Set up the two mailboxes.

        Args:
            memory: of this host.
            peer: its rank on this host.
            place: the shard's index among those of its server.
            waker: its flag, and the function that wakes it.
            regions: the peer's regions, as seen from here.
            landing: receives copies of payloads.
            in_place: the region that is the landing itself, and needs no copy; ``NO_PAYLOAD`` if
                there is none.
            frames_out: this rank's memory for the longest frame that it sends; None if it sends
                none.
            frames_in: the same memory of the peer.
            frame_landing: receives copies of the peer's frames; None uses them in place, until
                this rank has answered.
        """
        out, into = memory.mailboxes(peer, place)
        self._out_bytes, self._out = out, out.cast("q")
        self._in_bytes, self._in = into, into.cast("q")
        self._fence = memory.fence_if_needed()
        self._asleep, self._wake = waker
        self._rung = 0
        self._read = 0
        self._nbytes = FRAME_BYTES + landing.nbytes
        # Bytes are copied as by memcpy; a numpy copy has a larger fixed cost.
        self._regions = [region.data.cast("B") for region in regions]
        self._landing = landing.data.cast("B")
        self._in_place = in_place
        self._frames_out, self._frames_in = frames_out, frames_in
        self._frame_landing = frame_landing
        #: The frame of the last message that had one.
        self.frame: Bytes = np.zeros(0, np.uint8)
        #: The peer's payload after a receipt.
        self.payload = landing
        #: Bytes of messages and payloads sent so far.
        self.bytes_sent = 0
        #: Bytes of messages and payloads received so far.
        self.bytes_received = 0

    def unread(self) -> bool:
        """Return whether the last message has not been read, so that the next must wait."""
        # The reader counts after its last read of message and payload, so equal counts mean that
        # both may be overwritten. Each count has one writer, so neither needs a lock. Nor is an
        # acquire needed: the stores of the next message depend on this load by a branch, and no
        # processor makes a store visible before the branches that lead to it are decided.
        return self._out[_READ] != self._rung

    #: Whether the peer may still copy the last payload from this rank's region.
    in_flight = unread

    def send(self, message: Message, region: int) -> None:
        """Write a message and ring; the last one must have been read."""
        words = self._out
        encode(message, self._out_bytes, _FRAME_OFFSET)
        words[_REGION] = region
        # Release. The reader waits for one store, the doorbell below. The fence orders all earlier
        # stores before it: message, region, frame and payload are complete when the doorbell is
        # seen. It orders earlier loads, too: a worker has finished reading its old parameters
        # before the server can see its push and write new ones in their place. x86 needs no fence
        # for either.
        if self._fence is not None:
            self._fence()
        self._rung += 1
        words[_RUNG] = self._rung
        # As in ``slots.Barrier.arrive``: without a full fence this load may come before the store
        # above, and miss a peer that is just going to sleep. That peer sleeps for at most a
        # millisecond.
        if self._asleep[0]:
            self._wake()
        self.bytes_sent += FRAME_BYTES if region == NO_PAYLOAD else self._nbytes

    def send_framed(self, message: Message, frame: Bytes) -> None:
        """Copy a frame into shared memory, and send its message; see ``send``."""
        assert self._frames_out is not None, "the port was made without memory for frames"
        self._frames_out[: frame.size] = frame
        self._out[_LENGTH] = frame.size
        self.send(message, FRAMED)
        # ``send`` has counted a region, in whose place the frame goes.
        self.bytes_sent += frame.size - len(self._landing)

    def _take_frame(self) -> None:
        """Take the frame of the message that has arrived.

        Raises:
            CodecError: if it is longer than any frame of this link.
        """
        memory, nbytes = self._frames_in, self._in[_LENGTH]
        if memory is None or not 0 <= nbytes <= memory.size:
            most = "none" if memory is None else f"at most {memory.size}"
            raise CodecError(f"a frame of {nbytes} bytes came, expected {most}")
        self.frame = memory[:nbytes]
        if self._frame_landing is not None:
            self._frame_landing[:nbytes] = self.frame
            self.frame = self._frame_landing[:nbytes]
        self.bytes_received += nbytes - len(self._landing)

    def poll(self) -> Message | None:
        """Return the next message, payload in place; None if there is none."""
        words = self._in
        if words[_RUNG] == self._read:
            return None
        # Acquire: no load of the message, its frame or payload comes before the load of the
        # doorbell above, which saw the writer's last store.
        if self._fence is not None:
            self._fence()
        region = words[_REGION]
        if region == NO_PAYLOAD:
            self.bytes_received += FRAME_BYTES
        else:
            if region != self._in_place:
                if region == FRAMED:
                    self._take_frame()
                else:
                    self._landing[:] = self._regions[region]
            self.bytes_received += self._nbytes
        message = decode(self._in_bytes, _FRAME_OFFSET)
        # Release: the loads that decode the message and copy the payload come before this count,
        # after which the writer may overwrite both. A reader that uses the payload or frame in
        # place reads it after this count. That is safe since the protocol alternates: the writer
        # sends again only after the reader's answer, whose own release orders those loads before
        # it.
        if self._fence is not None:
            self._fence()
        self._read += 1
        words[_READ] = self._read
        return message
