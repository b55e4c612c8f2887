"""The sending half of a link to another host: one message by MPI, then its payload by MPI.

Requests are persistent: made once, started for each message, freed at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from mpi4py import MPI

from psrt.arrays import Bytes, Vector
from psrt.mpi.links.pieces import Persistent, persistent_send, pieces
from psrt.mpi.lost import Living
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import NO_PAYLOAD


class Outgoing:
    """What one message takes on its way: the next waits until it and its payload have left."""

    def __init__(
        self,
        comm: MPI.Comm,
        peer: int,
        tags: tuple[int, int],
        regions: Sequence[Vector],
        *,
        most: int,
        synchronous: bool = False,
    ) -> None:
        """Make the request of the message; that of a region follows when it is first sent.

        Args:
            comm: the communicator of the job's own traffic.
            peer: rank of the receiver in ``comm``.
            tags: of messages and of payloads.
            regions: what may be sent.
            most: bytes of one message at most; the same at both ends.
            synchronous: whether a message has left only once the peer receives it.
        """
        self._comm, self._peer, self._most = comm, peer, most
        tag, self._data = tags
        self._regions = regions
        #: The message; nobody else may write to it while it is under way.
        self.frame = bytearray(FRAME_BYTES)
        self._send_frame = persistent_send(
            comm, np.frombuffer(self.frame, np.uint8), peer, tag, synchronous=synchronous
        )
        #: By region: a worker with many neighbours sends few of its many to each.
        self._send_data: dict[int, Persistent] = {}
        self._sending: list[Persistent | MPI.Request] = []
        self._receiver = Living()

    def is_under_way(self) -> bool:
        """Return whether the message or its payload may still be being read by MPI."""
        if not self._sending:
            return False
        if self._receiver.finds(self._has_left):
            self._sending = []
        return bool(self._sending)

    def _has_left(self) -> bool:
        return all(request.Test() for request in self._sending)

    def start(self, region: int) -> None:
        """Send the message, and the region if one goes with it; nothing may be under way."""
        self._receiver.finds(partial(self._start, region))

    def _start(self, region: int) -> bool:
        self._send_frame.Start()
        self._sending = [self._send_frame]
        if region != NO_PAYLOAD:
            request = self._send_data.get(region)
            if request is None:
                request = self._send_data[region] = self._request(region)
            request.Start()
            self._sending.append(request)
        return True

    def start_framed(self, frame: Bytes) -> None:
        """Send the message and the frame of a codec; nothing may be under way."""
        self._receiver.finds(partial(self._start_framed, frame))

    def _start_framed(self, frame: Bytes) -> bool:
        self._send_frame.Start()
        self._sending = [self._send_frame]
        for piece in pieces(frame, self._most):
            self._sending.append(self._comm.Isend([piece, MPI.BYTE], self._peer, self._data))
        return True

    def _request(self, region: int) -> Persistent:
        data = self._regions[region].view(np.uint8)
        return persistent_send(self._comm, data, self._peer, self._data, most=self._most)

    def close(self) -> None:
        """Wait until all has left, and free every request."""
        for sending in self._sending:
            sending.Wait()
        for request in (self._send_frame, *self._send_data.values()):
            request.Free()
