"""A link of a shard between ranks of different hosts: a frame by MPI, then the payload by MPI.

Requests are persistent: made once, started for each message, freed at the end.

**Both directions at once.** The links of several shards keep both directions of a connection busy,
so payloads go in pieces that no answer is waited for (see ``pieces``). What comes unexpected would
be copied twice: a receive is posted from the moment that a message is sent to the peer, which
answers with its next one.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from mpi4py import MPI

from psrt.arrays import Vector
from psrt.messages import Message
from psrt.mpi.links.pieces import MOST_BYTES, Persistent, persistent_receive, persistent_send
from psrt.mpi.tags import DATA, FRAME, SHARD_TAGS
from psrt.transport.frames import FRAME_BYTES, decode, encode
from psrt.transport.port import NO_PAYLOAD
from psrt.transport.window import Window

_REGION_AT = FRAME_BYTES - 1  # the last byte of a frame is free in every kind of message


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
    ) -> None:
        """Make the requests and post the first receive.

        Args:
            comm: the communicator of the job's own traffic.
            peer: rank of the other end in ``comm``.
            place: of the shard among those of its server.
            regions: what this rank sends from; each is as long as ``landing``.
            landing: where the peer's payloads arrive. Free from each ``send`` on until the message
                that answers it.
            most: bytes of one message at most; the same at both ends.
            window: bounds what is on its way to the peer; None does not.
        """
        #: Rank of the other end.
        self.peer = peer
        #: Where the peer's payload is found after a receipt.
        self.payload = landing
        self._window = window
        #: Whether the window counts this link's last message, and whether it withholds it.
        self._counts = self._is_withheld = False
        self._frame_out = bytearray(FRAME_BYTES)
        self._frame_in = bytearray(FRAME_BYTES)
        # Tags of its own: a receive is posted for each shard, and takes what is of that shard.
        frame, data = FRAME + SHARD_TAGS * place, DATA + SHARD_TAGS * place
        self._send_frame = comm.Send_init([self._frame_out, MPI.BYTE], peer, frame)
        #: Completes when the next message's frame has come.
        self.frame_request = comm.Recv_init([self._frame_in, MPI.BYTE], peer, frame)
        self._send_data = [
            persistent_send(comm, region.view(np.uint8), peer, data, most=most)
            for region in regions
        ]
        self._receive_data = persistent_receive(comm, landing.view(np.uint8), peer, data, most=most)
        #: Whether the receive of the next payload is posted.
        self._posted = False
        self._sending: list[Persistent] = []
        #: The frame that has come while its payload has not.
        self._half: tuple[Message, int] | None = None
        self._nbytes = FRAME_BYTES + landing.nbytes
        #: Bytes of messages and payloads handed over so far.
        self.bytes_sent = 0
        #: Bytes of messages and payloads that have come so far.
        self.bytes_received = 0
        self.frame_request.Start()

    def unread(self) -> bool:
        """Return whether the last message has not left, so that the next must wait."""
        return self.in_flight()

    def in_flight(self) -> bool:
        """Return whether the last message or its payload may still be being read by MPI."""
        if self._is_withheld:
            return True
        if self._sending and all(request.Test() for request in self._sending):
            self._sending = []
        return bool(self._sending)

    def send(self, message: Message, region: int) -> None:
        """Start sending, unless the window withholds it; nothing may be in flight."""
        encode(message, self._frame_out)
        self._frame_out[_REGION_AT] = region + 1
        if region == NO_PAYLOAD:
            self.bytes_sent += FRAME_BYTES
        else:
            self.bytes_sent += self._nbytes
            if self._window is not None:
                self._counts = True
                if not self._window.admits(self.payload.nbytes, partial(self._start, region)):
                    self._is_withheld = True
                    return
        self._start(region)

    def _start(self, region: int) -> None:
        self._is_withheld = False
        self._send_frame.Start()
        self._sending = [self._send_frame]
        if region != NO_PAYLOAD:
            self._send_data[region].Start()
            self._sending.append(self._send_data[region])
        # After the sends: the answer takes longer.
        self._post()

    def _post(self) -> None:
        if not self._posted:
            self._receive_data.Start()
            self._posted = True

    def arrived(self) -> None:
        """Take up the frame: ``frame_request`` has completed."""
        self._half = decode(self._frame_in), self._frame_in[_REGION_AT] - 1
        if self._counts:
            assert self._window is not None, "only a window counts"
            self._counts = False
            self._window.answered(self.payload.nbytes)

    def take_payload(self) -> None:
        """Begin to receive the payload that follows the frame, if there is one."""
        assert self._half is not None, "no frame has come"
        if self._half[1] != NO_PAYLOAD:
            self._post()  # the first one, which answers nothing

    def complete(self) -> Message | None:
        """Return the message once its payload is in place, else None."""
        assert self._half is not None, "no frame has come"
        message, region = self._half
        if region != NO_PAYLOAD:
            if not self._receive_data.Test():
                return None
            self._posted = False
        self._half = None
        self.frame_request.Start()
        self.bytes_received += FRAME_BYTES if region == NO_PAYLOAD else self._nbytes
        return message

    def close(self) -> None:
        """Take back the receives that are posted and free every request."""
        self.frame_request.Cancel()
        self.frame_request.Wait()
        if self._posted:
            self._receive_data.Cancel()
            self._receive_data.Wait()
        for sending in self._sending:
            sending.Wait()
        for request in (self._send_frame, *self._send_data, self.frame_request, self._receive_data):
            request.Free()
