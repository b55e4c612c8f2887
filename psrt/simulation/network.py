"""The links of virtual time: when a message that is sent now arrives; ``costs`` has the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from psrt.simulation.costs import Costs
from psrt.simulation.event_queue import Action, Agenda, refuse


class Lane:
    """The way from one rank to another."""

    __slots__ = ("newest", "source", "to", "unread")

    def __init__(self, source: int, to: int) -> None:
        self.source = source
        self.to = to
        #: When the newest message comes to the way in at ``to``: none may come before it.
        self.newest = 0.0
        #: Messages that have not been read.
        self.unread = 0


class Links:
    """One link for each rank, in and out, and the order that the messages of a lane keep."""

    def __init__(
        self, agenda: Agenda, costs: Costs, rng: np.random.Generator, *, ranks: int
    ) -> None:
        """Set up links at which nothing waits.

        Args:
            agenda: takes the arrivals.
            costs: of links.
            rng: draws latencies.
            ranks: how many there are.
        """
        self._agenda, self._rng = agenda, rng
        self._latency, self._per_byte = costs.latency, costs.per_byte
        #: Whether bytes queue at all.
        self._queues = costs.bandwidth < math.inf
        self._seconds_per_byte = 1.0 / costs.bandwidth
        #: By rank, until when its way out and its way in are taken.
        self._out = [0.0] * ranks
        self._in = [0.0] * ranks

    def carry(self, lane: Lane, nbytes: int, arrive: Action, argument: Any) -> None:
        """Let a message set out now; ``arrive(argument)`` is called at its end.

        Args:
            lane: that it takes.
            nbytes: its length.
            arrive: takes it in.
            argument: the message.
        """
        delay = self._latency(self._rng) + nbytes * self._per_byte
        if not 0.0 <= delay < math.inf:
            refuse(delay)
        agenda = self._agenda
        if not self._queues:
            when = agenda.time + delay
            lane.newest = agenda.at(when, arrive, argument, not_before=lane.newest)
            return
        leaves = max(agenda.time, self._out[lane.source])
        self._out[lane.source] = leaves + nbytes * self._seconds_per_byte
        message = lane.to, nbytes, arrive, argument
        lane.newest = agenda.at(leaves + delay, self._enter, message, not_before=lane.newest)

    def tell(self, lane: Lane, arrive: Action, argument: Any) -> None:
        """Let something arrive now, but behind all that has taken the lane."""
        agenda = self._agenda
        if self._queues:
            arrive, argument = self._enter, (lane.to, 0, arrive, argument)
        lane.newest = agenda.at(agenda.time, arrive, argument, not_before=lane.newest)

    def _enter(self, message: tuple[int, int, Action, Any]) -> None:
        """Let a message take the way in as soon as those before it are through."""
        to, nbytes, arrive, argument = message
        agenda, taken = self._agenda, self._in[to]
        when = max(agenda.time, taken) + nbytes * self._seconds_per_byte
        self._in[to] = agenda.at(when, arrive, argument, not_before=taken)
