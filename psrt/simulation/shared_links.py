"""The network between hosts: links that several connections share.

The links of ``Network`` take one message after another. TCP shares a link instead:

- *To send*, each connection gets the same part: the replies of one server end together.
- *To receive*, the connection that began first gets more, since its bytes are queued before the
  link. Of two gradients on links of 100 Mbit/s, the one that left first got 0.51 to 0.75 of the
  server's link, 0.62 on average. So workers that push at the same time soon stop doing so, unless
  they wait for each other: while one pushes, another receives its reply.

Each change costs time in proportion to the active connections. So this suits the number of ranks of
a recorded run, not thousands.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Any

import numpy as np

from psrt.simulation.costs import SimulationCosts
from psrt.simulation.event_queue import Action, EventQueue
from psrt.simulation.network import Channel

#: Bytes of a message that rounding may leave at its end.
_ROUNDING = 0.5
#: Rounds of sharing: a connection takes its part of the free bandwidth, then of the rest, and so
#: on. After this number of rounds next to nothing is left.
_ROUNDS = 4
#: How many times the others' part the first connection gets to receive.
_FIRST = 2
#: One direction of a host's link: the host, and whether it receives.
_End = tuple[int, bool]


class _Connection:
    """A connection from one rank to another: sends one message after another."""

    __slots__ = ("ends", "left", "messages", "rate")

    def __init__(self, source: int, to: int) -> None:
        #: The two directions of links that it uses, given the hosts.
        self.ends: tuple[_End, _End] = (source, False), (to, True)
        #: Its messages, the one in flight first: channel, length, and the action on arrival.
        self.messages: deque[tuple[Channel, int, Action, Any]] = deque()
        #: Bytes left of the first message, and the connection's bytes per second.
        self.left = self.rate = 0.0


class SharedLinks:
    """One link per host; the connections with messages share each direction of it.

    A connection is as fast as the smaller of its parts of two links. What it leaves of the other
    link is shared again. Between ranks of one host a message takes no time.
    """

    def __init__(
        self, queue: EventQueue, costs: SimulationCosts, rng: np.random.Generator, *, ranks: int
    ) -> None:
        """Set up idle links.

        Args:
            queue: takes the arrivals.
            costs: of links, with ``hosts``.
            rng: draws latencies.
            ranks: the number of ranks.
        """
        assert costs.hosts is not None, "links are those of hosts"
        assert len(costs.hosts) == ranks, "every rank has a host"
        self._queue, self._rng, self._costs, self._hosts = queue, rng, costs, costs.hosts
        self._connections: dict[tuple[int, int], _Connection] = {}
        #: Connections with messages, in the order in which these left.
        self._busy: list[_Connection] = []
        #: By direction of a link, the number of busy connections that use it.
        self._crowd: Counter[_End] = Counter()
        #: When the connections' remaining bytes were last updated.
        self._at = 0.0
        #: The number of the current plan: events of an older plan are ignored.
        self._plan = 0

    def send(self, channel: Channel, nbytes: int, arrive: Action, argument: Any) -> None:
        """Send a message now; ``arrive(argument)`` is called when all of it has arrived."""
        source, to = self._hosts[channel.out], self._hosts[channel.into]
        if source == to:
            self.follow(channel, arrive, argument)
            return
        pair = channel.out, channel.into
        connection = self._connections.setdefault(pair, _Connection(source, to))
        connection.messages.append((channel, nbytes, arrive, argument))
        if len(connection.messages) == 1:
            self._advance()
            connection.left = float(nbytes)
            self._busy.append(connection)
            self._crowd.update(connection.ends)
            self._share()

    def follow(self, channel: Channel, arrive: Action, argument: Any) -> None:
        """Deliver a message of no length after everything already in flight on a channel."""
        queue, pair = self._queue, (channel.out, channel.into)
        connection = self._connections.get(pair)
        if connection is not None and connection.messages:
            connection.messages.append((channel, 0, arrive, argument))
        else:
            channel.newest = queue.at(queue.time, arrive, argument, not_before=channel.newest)

    def _advance(self) -> None:
        """Subtract the bytes sent since the last change."""
        passed, self._at = self._queue.time - self._at, self._queue.time
        for connection in self._busy:
            connection.left -= connection.rate * passed

    def _share(self) -> None:
        """Divide the links among busy connections; schedule the end of the next message."""
        self._plan += 1
        busy, crowd = self._busy, self._crowd
        if not busy:
            return
        first: dict[_End, _Connection] = {}
        parts = []
        for connection in busy:
            out, into = connection.ends
            connection.rate, is_first = 0.0, first.setdefault(into, connection) is connection
            all_parts = crowd[into] - 1 + _FIRST
            parts.append((1 / crowd[out], (_FIRST if is_first else 1) / all_parts))
        free = dict.fromkeys(crowd, self._costs.bandwidth)
        for _ in range(_ROUNDS):
            gains = [
                min(free[end] * part for end, part in zip(connection.ends, its, strict=True))
                for connection, its in zip(busy, parts, strict=True)
            ]
            for connection, gain in zip(busy, gains, strict=True):
                connection.rate += gain
                for end in connection.ends:
                    free[end] -= gain
        soonest = min(max(0.0, connection.left) / connection.rate for connection in busy)
        self._queue.after(soonest, self._end, self._plan)

    def _end(self, plan: int) -> None:
        """Deliver the messages that are complete, unless links were divided again meanwhile."""
        if plan != self._plan:
            return
        self._advance()
        # What is sent between this moment and the next one that time can tell from it.
        instant = 2 * math.ulp(self._queue.time)
        same: list[_Connection] = []
        next_ones: list[_Connection] = []
        for connection in self._busy:
            messages = connection.messages
            count = len(messages)
            while messages and connection.left <= max(_ROUNDING, instant * connection.rate):
                self._deliver(*messages.popleft())
                connection.left += messages[0][1] if messages else 0.0
            if messages:
                (same if len(messages) == count else next_ones).append(connection)
            else:
                self._crowd.subtract(connection.ends)
        self._busy = same + next_ones
        self._share()

    def _deliver(self, channel: Channel, nbytes: int, arrive: Action, argument: Any) -> None:
        queue, costs = self._queue, self._costs
        late = costs.latency(self._rng) + nbytes * costs.per_byte
        newest = queue.at(queue.time + late, arrive, argument, not_before=channel.newest)
        channel.newest = newest
