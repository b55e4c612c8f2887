"""Replaces the link to a worker that the others continue without."""

from __future__ import annotations

from dataclasses import dataclass

from psrt.core.arrays import Bytes, Vector
from psrt.core.messages import Leave, Message


@dataclass(eq=False, slots=True)
class DepartedLink:
    """Delivers that the worker left; sends and receives nothing else."""

    #: The message to deliver; None if the worker had left before.
    leave: Leave | None
    #: Where its gradient was.
    payload: Vector
    #: The last frame received. Kept alive, since a posted MPI receive may still write to it.
    frame: Bytes
    #: Bytes of messages and payloads sent and received before it left.
    bytes_sent: int
    bytes_received: int

    def poll(self) -> Message | None:
        """Return the leave, once."""
        # Once only: the link is polled for the rest of the job.
        leave, self.leave = self.leave, None
        return leave

    #: The same, for links to other hosts, which are asked by this name.
    complete = poll

    def take_payload(self) -> None:
        """Receive nothing."""

    def unread(self) -> bool:
        """Return False: nothing is sent, so nothing is unread."""
        return False

    def in_flight(self) -> bool:
        """Return False: no peer reads a region."""
        return False

    def send(self, message: Message, region: int) -> None:
        """Send nothing."""

    def send_framed(self, message: Message, frame: Bytes) -> None:
        """Send nothing."""
