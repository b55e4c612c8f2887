"""Links between workers that mix what they have: either sends when it likes, none has to answer.

So a link has two of everything, one for each of the ``AHEAD`` messages that a worker may be ahead
of its neighbour: it sends what it has now, while the neighbour still computes and has not looked
at what was sent before; and what the neighbour makes of a message stays as it is while the next one
comes.
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

#: Messages to a neighbour that it may not have received yet; one more waits.
AHEAD = 2


class LocalNeighbour:
    """Both directions between two workers of a host: messages in ``AHEAD`` mailboxes, in turn."""

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
        """Take up the mailboxes; the arguments are those of a ``LocalLink``.

        Regions are all of one length, and of memory for frames there is ``AHEAD`` times as much.
        """
        #: Where the peer's payload is found after a receipt.
        self.payload = np.zeros(regions[0].size, np.float32)
        #: The frame that came with the last message that had one.
        self.frame: Bytes = np.zeros(0, np.uint8)
        # One landing for both boxes: a payload is copied when its message is taken, and by then
        # nobody looks at the one before it.
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
        #: For the next message to the peer, and for the one after it.
        self._out, self._later = boxes
        #: Of the next message from the peer, and of the one after it.
        self._in, self._next = boxes

    @property
    def bytes_sent(self) -> int:
        """Bytes of messages and payloads handed over so far."""
        return self._out.bytes_sent + self._later.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes of messages and payloads read so far."""
        return self._in.bytes_received + self._next.bytes_received

    def unread(self) -> bool:
        """Return whether so many messages have not been read that the next must wait."""
        # The box of the next message held the last but one: if that was read, there is room.
        return self._out.unread()

    def in_flight(self) -> bool:
        """Return whether a payload may still be being copied from this rank's regions."""
        # Either message may have taken the region that is to be written.
        return self._later.unread() or self._out.unread()

    def send(self, message: Message, region: int) -> None:
        """Write a message and ring; see ``unread``."""
        self._out.send(message, region)
        # In turn at both ends, from the same box on: so no message has to say which it is.
        self._out, self._later = self._later, self._out

    def send_framed(self, message: Message, frame: Bytes) -> None:
        """Copy a frame to where the peer finds it, and send its message; see ``unread``."""
        self._out.send_framed(message, frame)
        self._out, self._later = self._later, self._out

    def poll(self) -> Message | None:
        """Return the next message, its payload copied; None if there is none."""
        # Only the box whose turn it is: in the other the second message might be found first.
        box = self._in
        message = box.poll()
        if message is not None:
            self.frame, self._in, self._next = box.frame, self._next, box
        return message


class RemoteNeighbour(RemoteLink):
    """Both directions between two workers on different hosts.

    A message has left only when the neighbour receives it, so that whoever is faster fills no
    memory of MPI's over there.
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

        Regions are all of one length; ``frame_bytes`` is that of the longest frame, either way, or
        0 if regions are sent.
        """
        # Two take turns: MPI may fill one while the caller still mixes what lies in the other. Of
        # frames two more are on their way out.
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
        #: What the last message took.
        self._later = Outgoing(comm, peer, (FRAME, DATA), regions, most=most, synchronous=True)
        #: Where the next payload arrives, where the one after it does, and that one's receive.
        self._landing, self._free = landings
        self._free_receive = self._receive_to(self._free)
        self._post_next()

    def unread(self) -> bool:
        """Return whether so many messages have not left that the next must wait."""
        return self._out.is_under_way()

    def in_flight(self) -> bool:
        """Return whether a message or its payload may still be being read by MPI."""
        return self._later.is_under_way() or self._out.is_under_way()

    def _start(self, region: int) -> None:
        # The request that was started last but one is the next, and has left: see ``unread``.
        self._out.start(region)
        self._out, self._later = self._later, self._out

    def _start_framed(self, frame: Bytes) -> None:
        # The codec makes its next frame as soon as it likes.
        copy, later = self._copies
        copy[: frame.size] = frame
        self._out.start_framed(copy[: frame.size])
        self._out, self._later, self._copies = self._later, self._out, [later, copy]

    def complete(self) -> Message | None:
        """Return the message once its payload is in place, else None."""
        assert self._half is not None, "no frame has come"
        region = self._half[1]
        message = super().complete()
        if message is None:
            return None
        # What has come stays where it is until the next one has, which goes to the other place.
        if region == FRAMED:
            self._frames_in, self._free_frame = self._free_frame, self._frames_in
        elif region != NO_PAYLOAD:
            self.payload = self._landing
            self._landing, self._free = self._free, self._landing
            self._receive_data, self._free_receive = self._free_receive, self._receive_data
            self._post_next()
        return message

    def _post_next(self) -> None:
        """Post a receive where nobody looks any more: what comes unexpected is copied twice."""
        if self._frames_in is None:  # the length of a frame is known when its message has come
            self._post()

    def close(self) -> None:
        """Take back the receives that are posted and free every request."""
        super().close()
        self._later.close()
        # Not active: of the two only that of the next payload is ever posted.
        self._free_receive.Free()
