"""The strategy of gossip by pairs: two workers average whenever one finds the other's offer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np

from psrt.core.arrays import ITEMSIZE, Vector
from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Message, Mix, Park
from psrt.core.partition import block_spans
from psrt.history.events import ANSWER
from psrt.optim import BLOCK
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import LocalSteps, Step
from psrt.runtime.strategies.pair_cut import PairCut
from psrt.runtime.strategies.pairs import Offer, Pairs
from psrt.runtime.updater import Updater
from psrt.runtime.weakly import weakly
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import Port

#: The region of an offer; those of answers are in the order of the neighbours.
_OFFER = 0
_HALF = np.float32(0.5)


class Turns(Protocol):
    """What a worker does when: all that is free in a run, so a replay brings its own."""

    def partner(self, clock: int) -> int | None:
        """Return the neighbour to make an offer to before step ``clock``; None for none."""
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
        """Return the neighbour that the draw chooses."""
        return self._pairs.draw()

    async def poll(self, clock: int) -> Message | None:
        """Return the next message if it has come."""
        return await self._port.poll()

    async def receive(self) -> Message:
        """Return the next message."""
        return await self._port.receive()


class PairGossip(LocalSteps):
    """Takes local steps, and between two of them averages with one neighbour at a time.

    An asking worker offers x = θ_i before a step, and continues. The answering one sends y = θ_j
    back, and moves θ_j ← θ_j + ½ (x − y). The asking one then moves θ_i ← θ_i + ½ (y − x), with the
    x that it offered, not its θ_i by then: the two moves are exact negatives, so Σθ stays.

    Workers wait only at their end, for the last answer and for their neighbours to leave, and at
    a checkpoint, see ``pair_cut``.
    """

    # Deferred messages are sent again after a resume; so is ``Leave`` of neighbours that had left.
    saved: ClassVar[tuple[str, ...]] = ("vector", "_pairs")
    by_element: ClassVar[tuple[str, ...]] = ("vector",)
    owns_theta = False  # its sum is kept from one average to the next

    def __init__(
        self,
        port: Port,
        updater: Updater,
        pairs: Pairs,
        *,
        turns: Turns | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of a worker with neighbours, in whose ``theta`` the initial parameters are.
            updater: takes the steps.
            pairs: says which neighbour it averages with.
            turns: says when; None as soon as possible.
            events: records events for the history; None keeps none.
        """
        super().__init__(port, updater, events=events)
        self._pairs = pairs
        self._turns = FreeTurns(port, pairs) if turns is None else turns
        self._ranks = port.role_map.workers
        n = port.theta.size
        self._blocks = block_spans(n, BLOCK)
        self._scratch = np.empty(min(n, BLOCK), np.float32)
        #: See ``Boundary.call``.
        self.call: Callable[[int, int], int] | None = None
        #: The checkpoint that is next; the one that this worker parks for now, as ``Params.cut``,
        #: 0 for none; and the step of its newest.
        self._next, self._cut, self._last_cut = PairCut(), 0, 0
        #: Messages that were deferred there, and are taken after the next step.
        self._aside: deque[Message] = deque()
        self.has_lost = False
        self._clock = 0
        #: When it had done all its steps, or the last average after that.
        self._ended: float | None = None
        self.counts.count_ages(pairs.worker)
        #: By neighbour, the clock that it sent last.
        self._heard: dict[int, int] = {}
        #: The neighbour that sent something last; −1 if none has.
        self._last = -1
        port.waiting_for = weakly(self._awaited, "a message")
        port.leave_of = weakly(self._leave_of)

    @property
    def held(self) -> tuple[Vector, float]:
        """θ, which all workers bring with the same weight."""
        return self._theta, 1.0

    @property
    def vector(self) -> Vector:
        """θ, as it is saved; filled where a run is resumed."""
        assert self._pairs.open is None, "no checkpoint has half of an average"
        return self._theta

    @property
    def at_cut(self) -> bool:
        """Whether this worker and its neighbours have reached a checkpoint."""
        return self._cut != 0

    @property
    def cut(self) -> int:
        """The checkpoint that they have reached, as ``Params.cut``; 0 for none."""
        return self._cut

    @property
    def early_bytes(self) -> int:  # type: ignore[override]
        """Bytes of deferred messages, and of ``Leave`` from neighbours that will send it again."""
        aside = self._next.aside
        vectors = sum(type(it) is Mix for it in aside)
        each = ITEMSIZE * self._port.role_map.n
        return FRAME_BYTES * (len(aside) + len(self._pairs.gone)) + vectors * each

    def begin(self, step: Step) -> None:
        """Offer θ_i, if the last answer is there."""
        neighbour = self._turns.partner(step.clock)
        if neighbour is not None:
            self._send(self._pairs.offer(neighbour, step.clock), _OFFER, step.clock)
        self._since = self._port.now() - step.computed

    async def step(self, step: Step) -> int:
        """Take a step, then what has come."""
        await self._take(step)
        self._clock = clock = step.clock + 1
        while (message := await self._poll(clock)) is not None:
            await self._handle(message, clock)
        if self.call is not None:
            cut = self._next.due or self.call(clock, self._last_cut)
            if cut:
                await self._come_to(cut, clock)
        return clock

    async def _poll(self, clock: int) -> Message | None:
        """Return the next message if there is one."""
        return self._aside.popleft() if self._aside else await self._turns.poll(clock)

    async def _come_to(self, cut: int, clock: int) -> None:
        """Reach a checkpoint together with the neighbours, see ``pair_cut``."""
        port, pairs, receive, coming = self._port, self._pairs, self._turns.receive, self._next
        began = port.now()
        while pairs.open is not None:
            await self._handle(await receive(), clock)
        coming.begin(cut)
        told = pairs.training
        for worker in told:
            port.send(self._ranks[worker], Park(pairs.worker, clock, cut))
        while not coming.is_complete(pairs.training):
            message = await receive()
            assert isinstance(message, Mix | Leave | Park), "no neighbour sends anything else"
            if not coming.puts_aside(message):
                await self._handle(message, clock)
        self._cut, self._last_cut = cut, abs(cut)
        if (events := self._events) is not None:
            now = port.now()
            events.parked(now, clock, self._last_cut, len(told), now - began)

    async def park(self, clock: int) -> None:
        """Continue; what was deferred is taken after the next step, to count for that one."""
        self._cut = 0
        self._aside.extend(self._next.end())

    def go_on(self, clock: int) -> None:
        """Continue at a clock."""
        self._clock = clock

    async def finish(self) -> None:
        """Wait for the last answer: what is saved at the end has no half of an average."""
        port, clock = self._port, self._clock
        while self._aside:
            await self._handle(self._aside.popleft(), clock)
        since = self._ended = port.now()
        while self._pairs.open is not None:  # one average at most
            message = await self._turns.receive()
            waited = port.now() - since
            if await self._handle(message, clock, waited):
                self._ended = port.now()
                self.counts.waited(workers=waited, waiting_for=self._last)
        # From now on every offer is void.
        self._pairs.is_done = True

    async def leave(self, clock: int) -> None:
        """Tell the neighbours, and wait until all of them are done."""
        port, pairs = self._port, self._pairs
        if not pairs.is_done:
            await self.finish()
        for worker in pairs.neighbours:
            port.send(self._ranks[worker], Leave(pairs.worker, clock))
        while pairs.staying:
            had_lost = self.has_lost
            await self._handle(await self._turns.receive(), clock)
            if self.has_lost and not had_lost and self.at_round is not None:
                await self.at_round(0)  # no checkpoint is made any more
        now, since = port.now(), self._ended
        assert since is not None, "it has finished"
        if self._events is not None:
            self._events.left(now, clock, now - since)
        if self._last < 0:  # there was nobody to wait for
            self.counts.waited(messages=now - since)
        else:
            self.counts.waited(workers=now - since, waiting_for=self._last)
        self.counts.stats.left = dict(pairs.left)

    async def _handle(self, message: Message, clock: int, waited: float = 0.0) -> bool:
        """Do what a message asks for; return whether that was an average."""
        pairs = self._pairs
        if type(message) is Park:
            if not pairs.is_done:  # else ``Leave`` is what its neighbour takes for an answer
                self._next.hear(message)
            return False
        if type(message) is Leave:
            self._last = message.worker
            if pairs.leave(message):  # what was offered may still be being read
                await self._until_taken(message.worker)
            return False
        if type(message) is not Mix:
            raise ProtocolError(f"worker {pairs.worker} received {message}, expected a neighbour's")
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
                now, clock, events.content(sent), 1,
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
            now, content = self._port.now(), events.content(theta)
            events.mixed(now, clock, content, waited, gap, neighbour=offer.neighbour)
        self.updates += 1
        self.counts.averaged(tau, gap)

    def _note_taken(
        self, offer: Offer, theirs: Vector, tau: int, clock: int, events: WorkerEventRecorder
    ) -> None:
        """Record what is averaged into, where that is not what was sent, and what came."""
        now, asks = self._port.now(), self._pairs.asks
        if asks:
            events.owned(now, clock, events.content(self._theta))
        events.took(
            now, clock, offer.neighbour, events.digest(theirs), float(_HALF),
            flag=ANSWER * asks, number=offer.number, staleness=tau,
        )  # fmt: skip

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

    def _awaited(self) -> str:
        return self._next.awaited(self._pairs.training) or self._pairs.awaited()

    def _leave_of(self, shard: int, worker: int) -> Leave | None:
        if worker in self._pairs.gone:
            return None
        self.has_lost = True
        return Leave(worker, self._heard.get(worker, 0), shard)
