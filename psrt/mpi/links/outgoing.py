"""The sending half of a link to another host: an MPI message, then one for its payload.

Requests are persistent: made once, started for each message, freed at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import Bytes, Vector
from psrt.mpi.links.pieces import Persistent, persistent_send, pieces
from psrt.mpi.lost import Living
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import NO_PAYLOAD


@dataclass(eq=False)
class Outgoing:
    """Sends one message at a time: the next waits until it and its payload have left."""

    #: The communicator of the job's own traffic.
    comm: MPI.Comm
    #: Rank of the receiver in ``comm``.
    peer: int
    #: The tags of messages and of payloads.
    tags: InitVar[tuple[int, int]]
    #: The regions that may be sent.
    regions: Sequence[Vector]
    _: KW_ONLY
    #: The most bytes of one MPI message; the same at both ends.
    most: int
    #: Whether a message has left only once the peer receives it.
    synchronous: InitVar[bool] = False
    #: By region, made on first use: a worker with many neighbours sends few regions to each.
    _send_data: dict[int, Persistent] = field(default_factory=dict, init=False)
    _sending: list[Persistent | MPI.Request] = field(default_factory=list, init=False)

    def __post_init__(self, tags: tuple[int, int], synchronous: bool) -> None:
        """Make the request of the message; that of a region is made when it is first sent."""
        tag, self._data = tags
        #: The message; it must not be written while it is in flight.
        self.frame = bytearray(FRAME_BYTES)
        self._send_frame = persistent_send(
            self.comm, np.frombuffer(self.frame, np.uint8), self.peer, tag, synchronous=synchronous
        )
        self._receiver = Living()

    def is_under_way(self) -> bool:
        """Return whether MPI may still read the message or its payload."""
        if not self._sending:
            return False
        # Dropped at once, so that later polls need no call of MPI.
        if self._receiver.finds(self._has_left):
            self._sending = []
        return bool(self._sending)

    def _has_left(self) -> bool:
        return all(request.Test() for request in self._sending)

    def start(self, region: int) -> None:
        """Send the message, and with it a region if there is one; nothing may be in flight."""
        # If MPI knows that the receiver has died, this fails, and the message never completes.
        # Another link replaces this one once rank 0 has reported the death.
        self._receiver.finds(partial(self._start, region))

    def _start(self, region: int) -> bool:
        # An active request must not be started again: the caller has checked that nothing is in
        # flight. The message goes first: it says what follows, so that the peer can post a receive.
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
        """Send the message and the frame of a codec; nothing may be in flight."""
        self._receiver.finds(partial(self._start_framed, frame))

    def _start_framed(self, frame: Bytes) -> bool:
        self._send_frame.Start()
        self._sending = [self._send_frame]
        # Frames differ in length, so no persistent request fits all of them.
        for piece in pieces(frame, self.most):
            self._sending.append(self.comm.Isend([piece, MPI.BYTE], self.peer, self._data))
        return True

    def _request(self, region: int) -> Persistent:
        data = self.regions[region].view(np.uint8)
        return persistent_send(self.comm, data, self.peer, self._data, most=self.most)

    def close(self) -> None:
        """Wait until everything has left, and free every request."""
        # Wait first: a request that is freed while active continues to read memory, which the
        # caller frees next.
        for sending in self._sending:
            sending.Wait()
        for request in (self._send_frame, *self._send_data.values()):
            request.Free()
