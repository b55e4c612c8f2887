"""What is left of the link to a worker that the others go on without."""

from __future__ import annotations

from dataclasses import dataclass

from psrt.core.arrays import Bytes, Vector
from psrt.core.messages import Leave, Message


@dataclass(eq=False, slots=True)
class DepartedLink:
    """Delivers that the worker left; takes and reads nothing, whatever it still sends."""

    #: The message to deliver; None if the worker had left before.
    leave: Leave | None
    #: Where its gradient was found.
    payload: Vector
    #: The last frame that came, whose memory MPI may still write to.
    frame: Bytes
    #: Bytes of messages and payloads sent, and received, before that.
    bytes_sent: int
    bytes_received: int

    def poll(self) -> Message | None:
        """Return the last message, once."""
        # Once: it is polled for the rest of the job.
        leave, self.leave = self.leave, None
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
