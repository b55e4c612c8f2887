"""The simulated network: computes when a message arrives; ``costs`` describes the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from psrt.simulation.costs import SimulationCosts
from psrt.simulation.event_queue import Action, EventQueue, refuse


class Channel:
    """One direction between two ranks; its messages arrive in the order in which they were sent.

    Each of a server's shards has channels of its own.
    """

    __slots__ = ("into", "newest", "out", "source", "to", "unread")

    def __init__(self, source: int, to: int, ranks: Sequence[int] | None = None) -> None:
        """Set up between two ranks.

        Args:
            source: the sender.
            to: the receiver.
            ranks: by rank of a part of a job, the rank in the job; None where the part is the job.
        """
        self.source = source
        self.to = to
        #: The ranks of the job whose links it leaves by, and arrives by.
        self.out, self.into = (source, to) if ranks is None else (ranks[source], ranks[to])
        #: When the newest message reaches the link of ``to``; later ones must not arrive earlier.
        self.newest = 0.0
        #: Messages sent and not yet read.
        self.unread = 0


class Carrier(Protocol):
    """What carries messages."""

    def send(self, channel: Channel, nbytes: int, arrive: Action, argument: Any) -> None:
        """Send a message now."""

    def follow(self, channel: Channel, arrive: Action, argument: Any) -> None:
        """Deliver a message of no length after everything already in flight on a channel."""


class Network:
    """One link for each rank, which sends and receives one message after another."""

    def __init__(
        self, queue: EventQueue, costs: SimulationCosts, rng: np.random.Generator, *, ranks: int
    ) -> None:
        """Set up idle links.

        Args:
            queue: takes the arrivals.
            costs: of links.
            rng: draws latencies.
            ranks: the number of links.
        """
        self._queue, self._rng = queue, rng
        self._latency, self._per_byte = costs.latency, costs.per_byte
        #: Whether bytes wait for each other at all.
        self._is_finite = costs.bandwidth < math.inf
        self._seconds_per_byte = 1.0 / costs.bandwidth
        #: By rank: when its link is free again to send, and to receive.
        self._free_to_send = [0.0] * ranks
        self._free_to_receive = [0.0] * ranks

    def send(self, channel: Channel, nbytes: int, arrive: Action, argument: Any) -> None:
        """Send a message now; ``arrive(argument)`` is called when all of it has arrived.

        Args:
            channel: from the sender to the receiver.
            nbytes: its length.
            arrive: called on arrival.
            argument: the message.
        """
        delay = self._latency(self._rng) + nbytes * self._per_byte
        if not 0.0 <= delay < math.inf:
            refuse(delay)
        queue = self._queue
        if not self._is_finite:
            when = queue.time + delay
            channel.newest = queue.at(when, arrive, argument, not_before=channel.newest)
            return
        # Cut-through: the first byte leaves as soon as the sender's link is free. The receiver's
        # link is busy from that byte's arrival on, while the rest is still being sent. So the
        # m/B seconds of a message pass once, in `_enter`, not once at each end. The sender's link
        # is only reserved meanwhile.
        leaves = max(queue.time, self._free_to_send[channel.out])
        self._free_to_send[channel.out] = leaves + nbytes * self._seconds_per_byte
        message = channel.into, nbytes, arrive, argument
        channel.newest = queue.at(leaves + delay, self._enter, message, not_before=channel.newest)

    def follow(self, channel: Channel, arrive: Action, argument: Any) -> None:
        """Deliver a message of no length after everything already in flight on a channel.

        Args:
            channel: from one rank to another.
            arrive: called on arrival.
            argument: what it is called with.
        """
        queue = self._queue
        if self._is_finite:
            arrive, argument = self._enter, (channel.into, 0, arrive, argument)
        channel.newest = queue.at(queue.time, arrive, argument, not_before=channel.newest)

    def _enter(self, message: tuple[int, int, Action, Any]) -> None:
        """Receive a message whose first byte has arrived, after all messages before it."""
        to, nbytes, arrive, argument = message
        queue, free = self._queue, self._free_to_receive[to]
        when = max(queue.time, free) + nbytes * self._seconds_per_byte
        # Arrivals at one link are ordered, too: of two that end at the same time, such as an empty
        # message behind another, the one that entered first is delivered first.
        self._free_to_receive[to] = queue.at(when, arrive, argument, not_before=free)
