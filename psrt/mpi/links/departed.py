"""What is left of the link to a worker that the others go on without."""

from __future__ import annotations

from psrt.arrays import Bytes, Vector
from psrt.messages import Leave, Message


class DepartedLink:
    """Delivers that the worker left; takes and reads nothing, whatever it still sends."""

    def __init__(
        self, leave: Leave | None, payload: Vector, frame: Bytes, sent: int, received: int
    ) -> None:
        """Take the place of the link.

        Args:
            leave: the message to deliver; None if the worker had left before.
            payload: where its gradient was found.
            frame: the last one that came, whose memory MPI may still write to.
            sent: bytes so far.
            received: bytes so far.
        """
        self._leave = leave
        self.payload, self.frame = payload, frame
        self.bytes_sent, self.bytes_received = sent, received

    def poll(self) -> Message | None:
        """Return the last message, once."""
        leave, self._leave = self._leave, None
        return leave

    #: Of a link to another host.
    complete = poll

    def take_payload(self) -> None:
        """Receive nothing."""

    def unread(self) -> bool:
        """Return that nobody has to be waited for."""
        return False

    def in_flight(self) -> bool:
        """Return that nobody reads."""
        return False

    def send(self, message: Message, region: int) -> None:
        """Send nothing."""

    def send_framed(self, message: Message, frame: Bytes) -> None:
        """Send nothing."""
