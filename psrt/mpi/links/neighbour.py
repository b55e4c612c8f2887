"""Links between neighbours in gossip: either sends at any time, and neither has to answer.

So a link has two of everything, one for each of the ``AHEAD`` messages that a worker may be ahead
of its neighbour. The worker can send again while the neighbour still computes and has not read the
last message; and the payload that the neighbour works on stays unchanged while the next arrives.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import Bytes, Vector
from psrt.core.messages import Message
from psrt.mpi.links.outgoing import Outgoing
from psrt.mpi.links.remote import RemoteLink
from psrt.mpi.links.shared_memory import LocalLink, NodeMemory, Waker
from psrt.mpi.tags import DATA, FRAME
from psrt.transport.port import FRAMED, NO_PAYLOAD

#: The number of messages that a neighbour may not have received yet; one more must wait.
AHEAD = 2


class LocalNeighbour:
    """Both directions between two workers of a host: messages alternate between mailboxes."""

    def __init__(
        self,
        memory: NodeMemory,
        peer: int,
        waker: Waker,
        *,
        regions: list[Vector],
        frames_out: list[Bytes] | None,
        frames_in: list[Bytes] | None,
    ) -> None:
        """Set up the mailboxes; the arguments are those of a ``LocalLink``.

        All regions have the same length; there are ``AHEAD`` buffers for frames.
        """
        #: The peer's payload after a receipt.
        self.payload = np.zeros(regions[0].size, np.float32)
        #: The frame of the last message that had one.
        self.frame: Bytes = np.zeros(0, np.uint8)
        # One landing for both boxes: a payload is copied when its message is received, and by then
        # this rank no longer reads the one before.
        frame_landing = None if frames_in is None else np.zeros(frames_in[0].size, np.uint8)
        boxes = [
            LocalLink(
                memory,
                peer,
                place,
                waker,
                regions=regions,
                landing=self.payload,
                frames_out=None if frames_out is None else frames_out[place],
                frames_in=None if frames_in is None else frames_in[place],
                frame_landing=frame_landing,
            )
            for place in range(AHEAD)
        ]
        #: The box for the next message to the peer, and for the one after it.
        self._out, self._later = boxes
        #: The box of the next message from the peer, and of the one after it.
        self._in, self._next = boxes

    @property
    def bytes_sent(self) -> int:
        """Bytes of messages and payloads sent so far."""
        return self._out.bytes_sent + self._later.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes of messages and payloads received so far."""
        return self._in.bytes_received + self._next.bytes_received

    def unread(self) -> bool:
        """Return whether the peer has ``AHEAD`` unread messages, so that the next must wait."""
        # The box of the next message held the last but one: if that was read, it is free.
        return self._out.unread()

    def in_flight(self) -> bool:
        """Return whether the peer may still copy a payload from this rank's regions."""
        # Either of the two messages may refer to the region that the caller wants to write.
        return self._later.unread() or self._out.unread()

    def send(self, message: Message, region: int) -> None:
        """Write a message and ring; see ``unread``."""
        self._out.send(message, region)
        # Both ends alternate, starting with the same box, so no message has to name its box.
        self._out, self._later = self._later, self._out

    def send_framed(self, message: Message, frame: Bytes) -> None:
        """Copy a frame to where the peer finds it, and send its message; see ``unread``."""
        self._out.send_framed(message, frame)
        self._out, self._later = self._later, self._out

    def poll(self) -> Message | None:
        """Return the next message, with its payload copied; None if there is none."""
        # Only the box whose turn it is: in the other box the second message might be seen first.
        box = self._in
        message = box.poll()
        if message is not None:
            self.frame, self._in, self._next = box.frame, self._next, box
        return message


class RemoteNeighbour(RemoteLink):
    """Both directions between two workers on different hosts.

    Sends are synchronous: a message has left only when the neighbour receives it. Otherwise a
    fast worker would fill MPI's buffers at a slow neighbour.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        peer: int,
        *,
        regions: list[Vector],
        most: int,
        frame_bytes: int = 0,
    ) -> None:
        """Make the requests and post the first receives; see ``RemoteLink`` for the arguments.

        All regions have the same length; ``frame_bytes`` is that of the longest frame in either
        direction, or 0 if regions are sent.
        """
        # Two landings alternate: MPI may fill one while the caller still reads the other. For
        # frames there are two more, for those being sent.
        landings = [np.zeros(regions[0].size, np.float32) for _ in range(AHEAD)]
        frames: list[Bytes] = [np.zeros(frame_bytes, np.uint8) for _ in range(2 * AHEAD)]
        first, self._free_frame, *self._copies = frames
        super().__init__(
            comm,
            peer,
            regions=regions,
            landing=landings[0],
            most=most,
            frames_in=first if frame_bytes else None,
            synchronous=True,
        )
        #: The buffers of the last message sent.
        self._later = Outgoing(comm, peer, (FRAME, DATA), regions, most=most, synchronous=True)
        #: The landing of the next payload, that of the one after it, and the latter's receive.
        self._landing, self._free = landings
        self._free_receive = self._receive_to(self._free)
        self._post_next()

    def unread(self) -> bool:
        """Return whether ``AHEAD`` messages have not left, so that the next must wait."""
        return self._out.is_under_way()

    def in_flight(self) -> bool:
        """Return whether MPI may still read a message or its payload."""
        return self._later.is_under_way() or self._out.is_under_way()

    def _start(self, region: int) -> None:
        # The next request to use is the last but one started, which has left: see ``unread``.
        self._out.start(region)
        self._out, self._later = self._later, self._out

    def _start_framed(self, frame: Bytes) -> None:
        # Copied: the codec may make its next frame at any time.
        copy, later = self._copies
        copy[: frame.size] = frame
        self._out.start_framed(copy[: frame.size])
        self._out, self._later, self._copies = self._later, self._out, [later, copy]

    def complete(self) -> Message | None:
        """Return the message once its payload is in place, else None."""
        assert self._half is not None, "no message has arrived"
        region = self._half[1]
        message = super().complete()
        if message is None:
            return None
        # The payload stays unchanged until the next one has arrived, which goes to the other
        # landing.
        if region == FRAMED:
            self._frames_in, self._free_frame = self._free_frame, self._frames_in
        elif region != NO_PAYLOAD:
            self.payload = self._landing
            self._landing, self._free = self._free, self._landing
            self._receive_data, self._free_receive = self._free_receive, self._receive_data
            self._post_next()
        return message

    def _post_next(self) -> None:
        """Post a receive into the unused landing: an unexpected payload would be copied twice."""
        if self._frames_in is None:  # the length of a frame is known only from its message
            self._post()

    def close(self) -> None:
        """Cancel the posted receives and free every request."""
        super().close()
        self._later.close()
        # The other is never active here: only the receive of the next payload is ever posted.
        self._free_receive.Free()
