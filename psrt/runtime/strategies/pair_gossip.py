"""The strategy of gossip without rounds: two workers average whenever one finds the other's θ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from psrt.arrays import Vector
from psrt.errors import ProtocolError
from psrt.history.events import ANSWER
from psrt.messages import Leave, Message, Mix
from psrt.optim import BLOCK
from psrt.partition import block_spans
from psrt.runtime.checksum import digest
from psrt.runtime.conserved import content_of
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import LocalSteps, Step, StepResult, WaitBreakdown
from psrt.runtime.strategies.pairs import Offer, Pairs
from psrt.runtime.updater import Updater
from psrt.transport.port import Port

#: The region of an offer; those of answers are in the order of the neighbours.
_OFFER = 0
_HALF = np.float32(0.5)


class Turns(Protocol):
    """What a worker does when: all that is free in a run, so a replay brings its own."""

    def partner(self, clock: int) -> int | None:
        """Return whom to offer something before step ``clock``; None for nobody."""
        ...

    async def poll(self, clock: int) -> Message | None:
        """Return a message to be taken now, after ``clock`` steps; None if there is none."""
        ...

    async def receive(self) -> Message:
        """Return the next message, once all steps are done."""
        ...


class FreeTurns:
    """Takes each message as soon as it is there."""

    def __init__(self, port: Port, pairs: Pairs) -> None:
        self._port, self._pairs = port, pairs

    def partner(self, clock: int) -> int | None:
        """Return whom chance chooses."""
        return self._pairs.draw()

    async def poll(self, clock: int) -> Message | None:
        """Return the next message if it has come."""
        return await self._port.poll()

    async def receive(self) -> Message:
        """Return the next message."""
        return await self._port.receive()


class PairGossip(LocalSteps):
    """Takes steps alone, and between two of them averages with one neighbour at a time.

    Who asks offers x = θ_i before a step, and goes on. Who answers sends y = θ_j back, and moves
    θ_j ← θ_j + ½ (x − y). Who asked moves θ_i ← θ_i + ½ (y − x), by what it offered and not by
    what it has by then: the two moves are negatives of each other to the bit, so that Σθ stays.

    Nobody waits but at its end, when who asked waits for the last answer, and all for their
    neighbours to leave.
    """

    def __init__(
        self,
        port: Port,
        updater: Updater,
        pairs: Pairs,
        *,
        turns: Turns | None = None,
        clip_norm: float | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of a worker with neighbours, in whose ``theta`` the initial parameters are.
            updater: takes the steps.
            pairs: says whom it averages with.
            turns: says when; None as soon as possible.
            clip_norm: largest l2 norm of a gradient; None for any.
            events: records events for the history; None keeps none.
        """
        super().__init__(port, updater, clip_norm=clip_norm, events=events)
        self._pairs = pairs
        self._turns = FreeTurns(port, pairs) if turns is None else turns
        self._ranks = port.role_map.workers
        n = port.theta.size
        self._blocks = block_spans(n, BLOCK)
        self._scratch = np.empty(min(n, BLOCK), np.float32)
        #: Counted since the last step.
        self._taus: list[int] = []
        self._gap_sum, self._gap_count = 0.0, 0
        self.taus: dict[int, int] = {}
        #: By neighbour, the clock that it sent last.
        self._heard: dict[int, int] = {}
        #: The neighbour that sent something last; −1 if none has.
        self._last = -1
        port.waiting_for = pairs.awaited
        port.leave_of = self._leave_of

    @property
    def held(self) -> tuple[Vector, float]:
        """θ, which all workers bring with the same weight."""
        return self._theta, 1.0

    @property
    def left(self) -> Mapping[int, int]:  # type: ignore[override]
        """By worker, the steps of neighbours who have left, as far as this one knows."""
        return self._pairs.left

    def begin(self, step: Step) -> None:
        """Offer θ_i, if the last answer is there."""
        neighbour = self._turns.partner(step.clock)
        if neighbour is not None:
            self._send(self._pairs.offer(neighbour, step.clock), _OFFER, step.clock)
        self._since = self._port.now()

    async def step(self, step: Step) -> StepResult:
        """Take a step, then what has come."""
        await self._take(step)
        clock = step.clock + 1
        while (message := await self._turns.poll(clock)) is not None:
            await self._handle(message, clock)
        return self._counted(clock)

    async def leave(self, clock: int) -> Sequence[StepResult]:
        """Wait for the last answer, tell the neighbours, and wait until all of them are done."""
        port, pairs, receive = self._port, self._pairs, self._turns.receive
        since, for_average = port.now(), 0.0
        while pairs.open is not None:
            message = await receive()
            waited = port.now() - since
            if await self._handle(message, clock, waited):
                since, for_average = port.now(), waited
        pairs.is_done = True
        for worker in pairs.neighbours:
            port.send(self._ranks[worker], Leave(pairs.worker, clock))
        while pairs.training:
            await self._handle(await receive(), clock)
        now = port.now()
        if self._events is not None:
            self._events.left(now, clock, now - since)
        waited = for_average + now - since
        waiting = WaitBreakdown(workers=waited, waiting_for=self._last)
        if self._last < 0:  # there was nobody to wait for
            waiting = WaitBreakdown(messages=waited)
        return (self._counted(clock)._replace(waiting=waiting),)

    async def _handle(self, message: Message, clock: int, waited: float = 0.0) -> bool:
        """Do what a message asks for; return whether that was an average."""
        pairs = self._pairs
        if type(message) is Leave:
            self._last = message.worker
            if pairs.leave(message):  # what was offered may still be being read
                await self._until_taken(message.worker)
            return False
        if type(message) is not Mix:
            raise ProtocolError(f"worker {pairs.worker} was sent {message}, expected a neighbour's")
        self._heard[message.worker] = message.clock
        self._last = message.worker
        offer = pairs.take(message)
        if offer is None:
            return False
        if pairs.asks:
            mine, tau = self._port.offers[_OFFER], clock - offer.clock
        else:
            region = pairs.neighbours.index(message.worker)
            await self._until_taken(message.worker)
            mine, tau = self._send(offer, region, clock, flag=ANSWER), 0
        self._average(offer, mine, tau, clock, waited)
        return True

    def _send(self, offer: Offer, region: int, clock: int, flag: int = 0) -> Vector:
        """Send what this worker has now, as an offer or the answer to one; return it."""
        port, worker = self._port, self._pairs.worker
        sent = port.offers[region]
        np.copyto(sent, self._theta)
        now = port.now()
        port.send(self._ranks[offer.neighbour], Mix(worker, clock, offer.number), region)
        if (events := self._events) is not None:
            events.offered(
                now, clock, content_of(sent), 1,
                flag=flag, neighbour=offer.neighbour, number=offer.number,
            )  # fmt: skip
        return sent

    def _average(self, offer: Offer, mine: Vector, tau: int, clock: int, waited: float) -> None:
        """Move by half of what the neighbour's vector and this worker's differ by.

        Args:
            offer: that this is about.
            mine: what this worker has sent.
            tau: its steps since then.
            clock: its steps so far.
            waited: seconds that it has waited for this.
        """
        theta, theirs, events = self._theta, self._port.payload(0, offer.neighbour), self._events
        if events is not None:
            self._note_taken(offer, theirs, tau, clock, events)
        squares = 0.0
        for span in self._blocks:
            part = np.subtract(span.of(theirs), span.of(mine), out=self._scratch[: span.size])
            squares += float(np.dot(part, part))
            here = span.of(theta)
            np.add(here, np.multiply(part, _HALF, out=part), out=here)
        gap = math.sqrt(squares / theta.size) if theta.size else math.nan
        if events is not None:
            now, content = self._port.now(), content_of(theta)
            events.mixed(now, clock, content, waited, gap, neighbour=offer.neighbour)
        self.updates += 1
        self._count(tau, gap)

    def _note_taken(
        self, offer: Offer, theirs: Vector, tau: int, clock: int, events: WorkerEventRecorder
    ) -> None:
        """Record what is averaged into, where that is not what was sent, and what came."""
        now, asks = self._port.now(), self._pairs.asks
        if asks:
            events.owned(now, clock, content_of(self._theta))
        events.took(
            now, clock, offer.neighbour, digest(theirs), float(_HALF),
            flag=ANSWER * asks, number=offer.number, staleness=tau,
        )  # fmt: skip

    def _count(self, tau: int, gap: float) -> None:
        """Count an average."""
        self._taus.append(tau)
        self.taus[tau] = self.taus.get(tau, 0) + 1
        if not math.isnan(gap):
            count, total, largest = self.gaps
            self.gaps = count + 1, total + gap, max(largest, gap)
            self._gap_sum += gap
            self._gap_count += 1

    def _counted(self, clock: int) -> StepResult:
        """Return what was counted since the last step."""
        if not (taus := self._taus):
            return StepResult(clock)
        result = StepResult(
            clock, sum(taus), len(taus), max(taus), skew=-1,
            gap_sum=self._gap_sum, gap_count=self._gap_count,
        )  # fmt: skip
        taus.clear()
        self._gap_sum, self._gap_count = 0.0, 0
        return result

    async def _until_taken(self, worker: int) -> None:
        """Wait until a neighbour, which has answered or left since, has read what it was sent.

        It has, or its memory is no more; between hosts it may take a moment to learn that.
        """
        port, rank = self._port, self._ranks[worker]
        if port.in_flight(rank, 0):
            await port.until(
                lambda: not port.in_flight(rank, 0),
                lambda: f"worker {worker} (rank {rank}) to take what was sent",
            )

    def _leave_of(self, shard: int, worker: int) -> Leave | None:
        heard = self._heard.get(worker, 0)
        return None if worker in self._pairs.left else Leave(worker, heard, shard)
