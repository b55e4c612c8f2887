"""The strategies of gossip by host: ranks of a host average, and hosts mix on the graph."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from psrt.core.arrays import Vector
from psrt.history.events import HOST
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.gossip import Gossip
from psrt.runtime.strategies.neighbours import Arrived
from psrt.topology.host_part import HostPart

#: Region of a member: its vector; the leader has read it before it answers.
MEMBER_OFFERS = 1
#: Regions of a leader: the means of its host, for two rounds in turn, and the last result.
LEADER_OFFERS = 3
_MEANS, _RESULT = 2, 2


class Member(Gossip):
    """Sends θ_i to the leader of its host, and takes the result.

    If the leader has died, it continues alone: only the leader was connected to the other hosts.
    """

    owns_theta = False  # a mean that includes earlier values may arrive there
    #: As of a leader, which it may become if the run resumes on other hosts.
    _untold = 0.0
    saved = ("_untold",)

    async def leave(self, clock: int) -> None:
        """Tell the leader; no more messages follow."""
        if self._events is not None:
            self._events.left(self._port.now(), clock)
        self._neighbours.say_left(self.updates, self._neighbours.part.peers)
        self._note_left()

    def _mix_in(self, arrived: Arrived) -> None:
        """Take the host's result."""
        np.copyto(self._theta, arrived.vector)


class Leader(Gossip):
    """Averages the vectors of its host's ranks, mixes with other hosts, and returns the result.

    **Overlap.** With combine-then-adapt the means of hosts travel while gradients are computed. For
    that the leader waits at the end of a step for its members' vectors; each of them is about to
    begin its next step, too, or to leave. The means are sent at the beginning of the next step.
    Only in the first round there is no step before, and they are sent after the gradient. With
    adapt-then-combine nothing overlaps.

    **Leaving.** If it is done before its members, it continues with their rounds, without its own
    parameters.

    **No deadlock.** Members wait for their leader, in their current round. Leaders wait for each
    other as neighbours do, and for members that are in the same round, or in an earlier one, in
    which they have been answered.
    """

    owns_theta = False
    saved = ("_untold",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Set up; see ``Gossip``."""
        super().__init__(*args, **kwargs)
        part = self._neighbours.part
        assert isinstance(part, HostPart), "a part of the rounds of hosts"
        self._part = part
        #: The first round whose mean has not been made.
        self._next_mean = 0
        #: The ranks that are in the last one.
        self._ranks = 0
        #: When it last got ready for a round at the end of a step.
        self._ready_at = -math.inf
        #: Seconds of waiting in this step, and seconds that no event has recorded yet.
        self._waited = self._untold = 0.0

    async def set_out(self) -> None:
        """Wait for what members come with from a checkpoint, as at the end of the step before."""
        if self.updates and not self._adapts_first:
            await self._hold(self.updates)
            self._ready_at = self._port.now()

    def begin(self, step: Step) -> None:
        """Send the mean of the host on its way, if it is known and combined before the step."""
        if not self._adapts_first:
            # That it waited belongs to the step before, after which it may have reported.
            self._note_own(self._ready_at if self.updates else self._port.now())
            self._pool(self.updates, self._theta)
        self._since = self._port.now() - step.computed

    async def step(self, step: Step) -> int:
        """Combine and adapt."""
        self._note_step(step, self._port.now())
        if self._adapts_first:
            self._adapt(step)
            self._note_own(self._port.now())
        if self._next_mean <= self.updates:
            await self._hold(self.updates)
            self._pool(self.updates, self._theta)
        await self._mix(self.updates)
        np.copyto(self._theta, self._offers[_RESULT])
        self._note_result()
        self.updates += 1
        if not self._adapts_first:
            self._adapt(step)
            await self._hold(self.updates)
            self._ready_at = self._port.now()
        self._wait(self._take_waited())
        return step.clock + 1

    async def leave(self, clock: int) -> None:
        """Continue the rounds of its members; then notify other hosts, and wait for them."""
        at = self.updates
        await self._hold(at)
        while self._pool(at):
            await self._mix(at)
            at += 1
            await self._hold(at)
        began = self._port.now()
        await self._neighbours.leave(at)
        self._count(began)
        if self._events is not None:
            self._events.left(self._port.now(), clock, self._tell())
        self._wait(self._take_waited())
        self._note_left()

    async def _hold(self, at: int) -> None:
        """Wait for what its members have in a round."""
        began = self._port.now()
        await self._neighbours.hold(at, self._part.members)
        self._count(began)

    def _pool(self, at: int, *own: Vector) -> bool:
        """Send the mean of its host to others, if what its members have in a round is all there.

        Args:
            at: the round.
            own: what it has itself, if it takes part.

        Returns:
            Whether there was anything to average.
        """
        came = self._neighbours.held(at, self._part.members(at))
        vectors = [*own, *(it.vector for it in came or ())]
        if came is None or not vectors:
            return False
        self._ranks, self._next_mean = len(vectors), at + 1
        region, factor = at % _MEANS, np.float32(1 / len(vectors))
        mean, first = self._offers[region], vectors[0]
        np.copyto(mean, first)
        for vector in vectors[1:]:
            self._move(mean, first, vector, factor)
        now = self._port.now()
        to = self._neighbours.send(at, region, self._ranks)
        if (events := self._events) is not None:
            for it in came:
                note = now, at, it.worker, events.digest(it.vector), float(factor)
                events.note((events.took, *note))
            note_mean = now, at, events.content(mean), to, float(self._ranks), self._tell(), HOST
            events.note((events.offered, *note_mean))
        return True

    async def _mix(self, at: int) -> None:
        """Mix the mean of its host with those of other hosts, and send the result to members."""
        began, neighbours, result = self._port.now(), self._neighbours, self._offers[_RESULT]
        await neighbours.free(_RESULT)
        np.copyto(result, self._offers[at % _MEANS])
        await neighbours.collect(at, partial(self._mix_mean, at))
        await neighbours.free((at + 1) % _MEANS)
        self._count(began)
        now = self._port.now()
        neighbours.send_to(self._part.members(at), at, _RESULT)
        if (events := self._events) is not None:
            ranks, waited = float(self._ranks), self._tell()
            note = now, at, events.content(result), waited, math.nan, ranks, 0.0, HOST
            events.note((events.mixed, *note))

    def _mix_mean(self, at: int, arrived: Arrived) -> None:
        """Move by what the mean of another host differs from that of this one."""
        share = self._part.share(arrived.worker, at, self._ranks, arrived.weight)
        factor = np.float32(share)
        mean, result = self._offers[at % _MEANS], self._offers[_RESULT]
        self._move(result, mean, arrived.vector, factor)
        if (events := self._events) is not None:
            came = events.digest(arrived.vector)
            note = self._port.now(), at, arrived.worker, came, float(factor), HOST
            events.note((events.took, *note))

    def _note_own(self, now: float) -> None:
        """Record what this worker has itself, which is sent to nobody."""
        if (events := self._events) is not None:
            note = now, self.updates, events.content(self._theta), 0, 1.0, self._tell()
            events.note((events.offered, *note))

    def _note_result(self) -> None:
        """Record what this worker continues with, for which it has waited already."""
        if (events := self._events) is not None:
            note = self._port.now(), self.updates, events.content(self._theta), 0.0, math.nan
            events.note((events.mixed, *note))

    def _count(self, began: float) -> None:
        """Count what was waited since then."""
        seconds = self._port.now() - began
        self._waited += seconds
        self._untold += seconds

    def _tell(self) -> float:
        """Return the seconds of waiting that no event has recorded; the next one records them."""
        seconds, self._untold = self._untold, 0.0
        return seconds

    def _take_waited(self) -> float:
        """Return the seconds of waiting in this step, and begin the next one."""
        seconds, self._waited = self._waited, 0.0
        return seconds
