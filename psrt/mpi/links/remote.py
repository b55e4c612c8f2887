"""A shard's link between ranks of different hosts: an MPI message, then one for its payload.

**Both directions at once.** The links of several shards keep both directions of a connection busy,
so payloads go in eager pieces (see ``pieces``). An unexpected payload would be copied twice, so its
receive is posted as soon as a message is sent to the peer, which answers with its next one.

**Frames of codecs** differ in length, which the message announces. Their receives are posted when
the message has arrived; bytes that arrived earlier are copied once more. Frames are short.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import Bytes, Vector
from psrt.core.errors import CodecError
from psrt.core.messages import Message
from psrt.mpi.links.outgoing import Outgoing
from psrt.mpi.links.pieces import MOST_BYTES, Persistent, persistent_receive, pieces
from psrt.mpi.lost import Living
from psrt.mpi.tags import DATA, FRAME, SHARD_TAGS
from psrt.transport.frames import FRAME_BYTES, decode, encode
from psrt.transport.port import FRAMED, NO_PAYLOAD
from psrt.transport.window import Window

# The wire format of a message is that of ``transport.frames``, with two fields in its free bytes.
# The last byte says what follows: 0 for nothing (region NO_PAYLOAD, −1), k + 1 for region k, 255
# for a codec's frame. Bytes 1 to 7, little-endian, have the length of that frame.
_REGION_AT = FRAME_BYTES - 1
_FRAMED_BYTE = 255
_LENGTH = slice(1, 8)


class RemoteLink:
    """Both directions between this rank and one peer on another host, for one shard."""

    def __init__(
        self,
        comm: MPI.Comm,
        peer: int,
        place: int = 0,
        *,
        regions: list[Vector],
        landing: Vector,
        most: int = MOST_BYTES,
        window: Window | None = None,
        frames_in: Bytes | None = None,
        synchronous: bool = False,
    ) -> None:
        """Make the requests and post the first receive.

        Args:
            comm: the communicator of the job's own traffic.
            peer: rank of the other end in ``comm``.
            place: the shard's index among those of its server.
            regions: the arrays that this rank sends; each is as long as ``landing``.
            landing: receives the peer's payloads. MPI may write to it from each ``send`` on until
                the message that answers it.
            most: the most bytes of one MPI message; the same at both ends.
            window: bounds the unanswered pushes to the peer; None for no bound.
            frames_in: memory for the peer's longest frame, if it sends only frames; None if it
                sends regions.
            synchronous: whether a message has left only once the peer receives it.
        """
        #: Rank of the other end.
        self.peer = peer
        #: The peer's payload after a receipt.
        self.payload = landing
        self._window = window
        # Each shard has its own tags: receives are posted for each shard, and must match only
        # messages of that shard.
        tags = FRAME + SHARD_TAGS * place, DATA + SHARD_TAGS * place
        self._comm, self._data, self._most = comm, tags[1], most
        self._frames_in = frames_in
        #: The frame of the last message that had one.
        self.frame: Bytes = np.zeros(0, np.uint8)
        #: The receives of the frame in flight.
        self._receiving: list[MPI.Request] = []
        #: The payload's bytes in the window.
        self._counted = 0
        #: Whether this link's last message counts in the window, and whether the window withholds
        #: it.
        self._counts = self._is_withheld = False
        self._out = Outgoing(comm, peer, tags, regions, most=most, synchronous=synchronous)
        self._frame_in = bytearray(FRAME_BYTES)
        #: Completes when the next message has arrived.
        self.frame_request = comm.Recv_init([self._frame_in, MPI.BYTE], peer, tags[0])
        self._receive_data = self._receive_to(landing)
        #: Whether the receive of the next payload is posted.
        self._posted = False
        self._sender = Living()
        #: The message that has arrived while its payload has not, and its region.
        self._half: tuple[Message, int] | None = None
        self._nbytes = FRAME_BYTES + landing.nbytes
        #: Bytes of messages and payloads sent so far.
        self.bytes_sent = 0
        #: Bytes of messages and payloads received so far.
        self.bytes_received = 0
        self.frame_request.Start()

    def _receive_to(self, landing: Vector) -> Persistent:
        data = landing.view(np.uint8)
        return persistent_receive(self._comm, data, self.peer, self._data, most=self._most)

    def unread(self) -> bool:
        """Return whether the last message has not left, so that the next must wait."""
        return self.in_flight()

    def in_flight(self) -> bool:
        """Return whether MPI may still read the last message or its payload."""
        return self._is_withheld or self._out.is_under_way()

    def send(self, message: Message, region: int) -> None:
        """Start sending, unless the window withholds it; nothing may be in flight."""
        # Written even if the window withholds it: the buffer belongs to this message until it has
        # left, and ``in_flight`` is true until then.
        self._announce(message, region)
        if region == NO_PAYLOAD:
            self.bytes_sent += FRAME_BYTES
        else:
            self.bytes_sent += self._nbytes
            if self._window is not None and not self._admits(
                self.payload.nbytes, partial(self._start, region)
            ):
                return
        self._start(region)

    def send_framed(self, message: Message, frame: Bytes) -> None:
        """Send a frame and its message; see ``send``. It must not change before it has left."""
        self._announce(message, FRAMED, frame.size)
        self.bytes_sent += FRAME_BYTES + frame.size
        start = partial(self._start_framed, frame)
        if self._window is None or self._admits(frame.size, start):
            start()

    def _announce(self, message: Message, region: int, nbytes: int = 0) -> None:
        """Write the message and the fields that say what follows: a region, or a frame's length."""
        frame = self._out.frame
        encode(message, frame)
        if region == FRAMED:
            frame[_LENGTH] = nbytes.to_bytes(7, "little")
        frame[_REGION_AT] = _FRAMED_BYTE if region == FRAMED else region + 1

    def _admits(self, nbytes: int, start: Callable[[], None]) -> bool:
        """Return whether the window admits a payload now; if not, it is started later."""
        assert self._window is not None, "only a window withholds"
        self._counts, self._counted = True, nbytes
        self._is_withheld = not self._window.admits(nbytes, start)
        return not self._is_withheld

    def _start_framed(self, frame: Bytes) -> None:
        self._is_withheld = False
        self._out.start_framed(frame)
        self._post_answer()

    def _start(self, region: int) -> None:
        self._is_withheld = False
        self._out.start(region)
        # After the sends, since the answer cannot arrive before the peer has received them.
        self._post_answer()

    def _post_answer(self) -> None:
        # Not for frames: their length is known only when the message has arrived.
        if self._frames_in is None:
            self._post()

    def _post(self) -> None:
        # At most once: an active request must not be started again, and the landing has room for
        # only one payload.
        if not self._posted:
            self._receive_data.Start()
            self._posted = True

    def has_message(self) -> bool:
        """Return whether a new message has arrived."""
        # Not while a payload is still in flight: the request is then inactive, and an inactive
        # request tests as complete.
        return self._half is None and self._sender.finds(self.frame_request.Test)

    def arrived(self) -> None:
        """Decode the message: ``frame_request`` has completed."""
        region = self._frame_in[_REGION_AT]
        self._half = decode(self._frame_in), FRAMED if region == _FRAMED_BYTE else region - 1
        # A server sends a worker only answers, one for each message. So this message frees the last
        # one's room in the window, whether or not its payload has arrived.
        if self._counts:
            assert self._window is not None, "only a window counts"
            self._counts = False
            self._window.answered(self._counted)

    def take_payload(self) -> None:
        """Start to receive the payload that follows the message, if there is one."""
        assert self._half is not None, "no message has arrived"
        region = self._half[1]
        if region == FRAMED:
            self._receive_frame(int.from_bytes(self._frame_in[_LENGTH], "little"))
        elif region != NO_PAYLOAD:
            self._post()  # posted already for an answer, but not for a first message

    def _receive_frame(self, nbytes: int) -> None:
        """Start to receive a frame of that length.

        Raises:
            CodecError: if it is longer than any frame of this link.
        """
        memory = self._frames_in
        if memory is None or nbytes > memory.size:
            most = "none" if memory is None else f"at most {memory.size}"
            raise CodecError(f"a frame of {nbytes} bytes came, expected {most}")
        # Both ends split alike, and messages of one tag match in the order in which they were sent.
        self.frame = memory[:nbytes]
        self._receiving = [
            self._comm.Irecv([piece, MPI.BYTE], self.peer, self._data)
            for piece in pieces(self.frame, self._most)
        ]

    def complete(self) -> Message | None:
        """Return the message once its payload is in place, else None."""
        assert self._half is not None, "no message has arrived"
        message, region = self._half
        nbytes = FRAME_BYTES
        if region == FRAMED:
            if not self._sender.finds(self._has_frame):
                return None
            self._receiving = []
            nbytes += self.frame.size
        elif region != NO_PAYLOAD:
            if not self._sender.finds(self._receive_data.Test):
                return None
            self._posted = False
            nbytes = self._nbytes
        self._half = None
        # Only now: the next message overwrites the buffer from which this one's frame length was
        # read.
        self.frame_request.Start()
        self.bytes_received += nbytes
        return message

    def _has_frame(self) -> bool:
        return all(request.Test() for request in self._receiving)

    def close(self) -> None:
        """Cancel the posted receives and free every request."""
        # Cancel only marks a receive. The wait completes it, cancelled or filled; only then may the
        # memory be freed. Sends are never cancelled: some MPI libraries crash on that.
        self.frame_request.Cancel()
        self.frame_request.Wait()
        if self._posted:
            self._receive_data.Cancel()
            self._receive_data.Wait()
        for receiving in self._receiving:
            receiving.Cancel()
            receiving.Wait()
        self._out.close()
        self.frame_request.Free()
        self._receive_data.Free()
