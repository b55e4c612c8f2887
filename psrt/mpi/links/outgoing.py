"""The sending half of a link to another host: one message by MPI, then its payload by MPI.

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
    """What one message takes on its way: the next waits until it and its payload have left."""

    #: The communicator of the job's own traffic.
    comm: MPI.Comm
    #: Rank of the receiver in ``comm``.
    peer: int
    #: Of messages and of payloads.
    tags: InitVar[tuple[int, int]]
    #: What may be sent.
    regions: Sequence[Vector]
    _: KW_ONLY
    #: Bytes of one message at most; the same at both ends.
    most: int
    #: Whether a message has left only once the peer receives it.
    synchronous: InitVar[bool] = False
    #: By region: a worker with many neighbours sends few of its many to each.
    _send_data: dict[int, Persistent] = field(default_factory=dict, init=False)
    _sending: list[Persistent | MPI.Request] = field(default_factory=list, init=False)

    def __post_init__(self, tags: tuple[int, int], synchronous: bool) -> None:
        """Make the request of the message; that of a region follows when it is first sent."""
        tag, self._data = tags
        #: The message; nobody else may write to it while it is under way.
        self.frame = bytearray(FRAME_BYTES)
        self._send_frame = persistent_send(
            self.comm, np.frombuffer(self.frame, np.uint8), self.peer, tag, synchronous=synchronous
        )
        self._receiver = Living()

    def is_under_way(self) -> bool:
        """Return whether the message or its payload may still be being read by MPI."""
        if not self._sending:
            return False
        # Forgotten at once, so that whoever asks again, at each poll, asks no MPI.
        if self._receiver.finds(self._has_left):
            self._sending = []
        return bool(self._sending)

    def _has_left(self) -> bool:
        return all(request.Test() for request in self._sending)

    def start(self, region: int) -> None:
        """Send the message, and the region if one goes with it; nothing may be under way."""
        # Where MPI knows that the receiver has died, this fails, and nothing of it is ever
        # complete; another link stands here once rank 0 has told of the death.
        self._receiver.finds(partial(self._start, region))

    def _start(self, region: int) -> bool:
        # An active request must not be started: whoever calls has seen that nothing is under way.
        # The message goes first: it says what follows, for which a receive is then posted.
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
        # Frames differ in length, so no request can be made once for all of them.
        for piece in pieces(frame, self.most):
            self._sending.append(self.comm.Isend([piece, MPI.BYTE], self.peer, self._data))
        return True

    def _request(self, region: int) -> Persistent:
        data = self.regions[region].view(np.uint8)
        return persistent_send(self.comm, data, self.peer, self._data, most=self.most)

    def close(self) -> None:
        """Wait until all has left, and free every request."""
        # A request that is freed while it is active goes on reading memory that is let go of next.
        for sending in self._sending:
            sending.Wait()
        for request in (self._send_frame, *self._send_data.values()):
            request.Free()
