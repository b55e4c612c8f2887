"""The protocol between a role and whatever carries its messages.

A role is a coroutine and talks to its ``Port`` only. The MPI port completes every await on the
spot; the virtual port suspends the coroutine until virtual time has come. A role cannot tell.

**Payload regions.** Messages are small; numbers travel by region. Every pair of a worker and a
server shares two: the worker's gradient span, and the server's span of parameters in one of
``VERSIONS`` buffers. ``send(to, message, region)`` makes the region's contents reach the peer:
a worker that receives ``Params`` finds them in its ``theta``; a server that receives ``Push``
finds the gradient in ``payload(worker)``. Where both ranks are on one host these are the same
memory, and only the message, a doorbell, is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from psrt.collective import Step
from psrt.messages import Message, Report
from psrt.partition import Span

T = TypeVar("T")
Vector = np.ndarray[tuple[int], np.dtype[np.float32]]

#: The region of a message that has none.
NO_PAYLOAD = -1
#: The worker's one region: its gradient.
GRADIENT = 0
#: Buffers for versions of a server's span: the newest, one in flight, one to write next.
VERSIONS = 3
#: Elements behind a worker's gradient for what is summed along with it: ``WEIGHT``, ``PRESENT``
#: and ``PROGRESS`` elements behind the n-th.
EXTRA = 3
WEIGHT, PRESENT, PROGRESS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Wiring:
    """Which rank owns which span and which ranks compute gradients.

    Servers and workers are listed in the order of shard and worker number.
    """

    #: Parameters of the model.
    n: int
    #: Rank of each worker; worker i is ``workers[i]``.
    workers: tuple[int, ...]
    #: Rank of each server; shard i is at ``servers[i]``. Empty in modes without servers.
    servers: tuple[int, ...] = ()
    #: The span of each shard.
    spans: tuple[Span, ...] = ()

    @property
    def size(self) -> int:
        """Ranks in all."""
        return len(self.workers) + len(self.servers)

    def worker_of(self, rank: int) -> int | None:
        """Return the worker number of ``rank``, None for a server."""
        return self.workers.index(rank) if rank in self.workers else None

    def shard_of(self, rank: int) -> int | None:
        """Return the shard number of ``rank``, None for a worker."""
        return self.servers.index(rank) if rank in self.servers else None


class Port(Protocol):
    """One rank's end of the transport."""

    #: This rank, in ``[0, wiring.size)``.
    rank: int
    #: Who is who.
    wiring: Wiring
    #: Worker: (n + EXTRA,) float32, gradient and extras; lies where peers can read it.
    gradient: Vector
    #: Worker: (n,) float32, the parameters it computes with; ``Params`` land here.
    theta: Vector
    #: Server: ``VERSIONS`` × (span,) float32, the regions of ``Params``.
    versions: list[Vector]
    #: Says whom this rank waits for in ``receive``; set by the role, asked at the deadline.
    whom: Callable[[], str]

    @property
    def bytes_sent(self) -> int:
        """Bytes of messages, payloads and spans handed to this port, counted at the call."""
        ...

    @property
    def bytes_received(self) -> int:
        """Bytes of messages, payloads and spans received."""
        ...

    def now(self) -> float:
        """Return the time in seconds; only differences mean anything."""
        ...

    def payload(self, worker: int) -> Vector:
        """Server: return where the gradient span of ``worker`` (its number) is found.

        The contents are valid from the receipt of its push until it is answered.
        """
        ...

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``; a virtual port charges its cost."""
        ...

    async def pause(self, seconds: float) -> None:
        """Do nothing for so long."""
        ...

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Send ``message``, and the contents of ``region`` with it, to rank ``to``.

        Nothing to await: roles answer before they are written to again, so there is always room.
        The region must not be written while ``in_flight(to)``.
        """
        ...

    def announce(self, to: int, message: Message, region: int) -> Callable[[int], None] | None:
        """Send ``message`` before its region is written, so that it is read while it is written.

        Args:
            to: the rank that waits for it.
            message: as in ``send``.
            region: about to be written, from its first element on.

        Returns:
            what is to be called with the number of elements that are ready, in order, until all
            are; None where there is no such way to ``to``: then nothing was sent.
        """
        ...

    def in_flight(self, to: int) -> bool:
        """Tell whether the last payload sent to rank ``to`` may still be being read."""
        ...

    async def receive(self) -> Message:
        """Return the next message in order of arrival, its payload in place.

        Raises:
            TransportError: if none comes within the deadline.
        """
        ...

    async def until(self, done: Callable[[], bool], whom: Callable[[], str]) -> None:
        """Wait until ``done()``, while messages and payloads move on.

        Args:
            done: asked again and again; has no side effect that matters.
            whom: says who is waited for.

        Raises:
            TransportError: if that takes longer than the deadline.
        """
        ...

    async def exchange(self, step: Step, scratch: Vector) -> None:
        """Carry out one step of a collective on ``gradient``.

        Args:
            step: what to send, what to receive, and whether to add or to copy it.
            scratch: at least as long as the received span; overwritten.

        Raises:
            TransportError: if the peer does not answer within the deadline.
        """
        ...

    async def library_allreduce(self) -> None:
        """Sum ``gradient`` over the workers by the MPI library's own all-reduce."""
        ...

    def report(self, report: Report) -> None:
        """Send ``report`` to rank 0, apart from the traffic of the training; never waits."""
        ...
