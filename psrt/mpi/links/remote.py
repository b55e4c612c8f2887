"""A link of a shard between ranks of different hosts: a frame by MPI, then the payload by MPI.

Requests are persistent: made once, started for each message, freed at the end.
"""

from __future__ import annotations

from mpi4py import MPI

from psrt.arrays import Vector
from psrt.messages import Message
from psrt.mpi.links.pieces import pieces
from psrt.mpi.tags import DATA, FRAME, SHARD_TAGS
from psrt.transport.frames import FRAME_BYTES, decode, encode
from psrt.transport.port import NO_PAYLOAD

_REGION_AT = FRAME_BYTES - 1  # the last byte of a frame is free in every kind of message


class RemoteLink:
    """Both directions between this rank and one peer on another host, for one shard."""

    def __init__(
        self, comm: MPI.Comm, peer: int, place: int = 0, *, regions: list[Vector], landing: Vector
    ) -> None:
        """Make the requests and post the first receive.

        Args:
            comm: the communicator of the job's own traffic.
            peer: rank of the other end in ``comm``.
            place: of the shard among those of its server.
            regions: what this rank sends from.
            landing: where the peer's payloads arrive.
        """
        #: Rank of the other end.
        self.peer = peer
        self._frame_out = bytearray(FRAME_BYTES)
        self._frame_in = bytearray(FRAME_BYTES)
        # Tags of its own: a receive is posted for each shard, and takes what is of that shard.
        frame, data = FRAME + SHARD_TAGS * place, DATA + SHARD_TAGS * place
        self._send_frame = comm.Send_init([self._frame_out, MPI.BYTE], peer, frame)
        #: Completes when the next message's frame has come.
        self.frame_request = comm.Recv_init([self._frame_in, MPI.BYTE], peer, frame)
        self._send_data = [
            [comm.Send_init(piece, peer, data) for piece in pieces(region)] for region in regions
        ]
        self._receive_data = [comm.Recv_init(part, peer, data) for part in pieces(landing)]
        self._sending: list[MPI.Prequest] = []
        #: The frame that has come while its payload has not.
        self._half: tuple[Message, int] | None = None
        self._nbytes = FRAME_BYTES + landing.nbytes
        #: Bytes of messages and payloads handed over so far.
        self.bytes_sent = 0
        #: Bytes of messages and payloads that have come so far.
        self.bytes_received = 0
        #: Where the peer's payload is found after a receipt.
        self.payload = landing
        self.frame_request.Start()

    def unread(self) -> bool:
        """Return whether the last message has not left, so that the next must wait."""
        return self.in_flight()

    def in_flight(self) -> bool:
        """Return whether the last message or its payload may still be being read by MPI."""
        if self._sending and MPI.Request.Testall(self._sending):
            self._sending = []
        return bool(self._sending)

    def send(self, message: Message, region: int) -> None:
        """Start sending; nothing may be in flight."""
        encode(message, self._frame_out)
        self._frame_out[_REGION_AT] = region + 1
        self._sending = [self._send_frame]
        if region != NO_PAYLOAD:
            self._sending += self._send_data[region]
        MPI.Prequest.Startall(self._sending)
        self.bytes_sent += FRAME_BYTES if region == NO_PAYLOAD else self._nbytes

    def arrived(self) -> None:
        """Take up the frame: ``frame_request`` has completed."""
        self._half = decode(self._frame_in), self._frame_in[_REGION_AT] - 1

    def take_payload(self) -> None:
        """Begin to receive the payload that follows the frame, if there is one."""
        assert self._half is not None, "no frame has come"
        if self._half[1] != NO_PAYLOAD:
            MPI.Prequest.Startall(self._receive_data)

    def complete(self) -> Message | None:
        """Return the message once its payload is in place, else None."""
        assert self._half is not None, "no frame has come"
        message, region = self._half
        if region != NO_PAYLOAD and not MPI.Request.Testall(self._receive_data):
            return None
        self._half = None
        self.frame_request.Start()
        self.bytes_received += FRAME_BYTES if region == NO_PAYLOAD else self._nbytes
        return message

    def close(self) -> None:
        """Take back the receive that is posted and free every request."""
        self.frame_request.Cancel()
        self.frame_request.Wait()
        MPI.Request.Waitall(self._sending)
        sends = [request for requests in self._send_data for request in requests]
        for request in [self._send_frame, self.frame_request, *sends, *self._receive_data]:
            request.Free()
