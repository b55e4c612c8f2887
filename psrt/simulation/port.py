"""A rank's port in virtual time: the protocol of ``port`` on top of the scheduler of ``world``.

Payloads lie with their writer until they are read, as in shared memory, or are copied when their
message arrives, as between hosts. A role that awaits is suspended until an event resumes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import coroutine
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from psrt.collective import ALGORITHMS
from psrt.collective.analysis.choose import choose
from psrt.collective.registry import AUTO, LIBRARY, NODE
from psrt.errors import ConfigError
from psrt.messages import Message, Params, Push, Report
from psrt.partition import Span
from psrt.simulation.network import Lane
from psrt.simulation.schedule_run import Rehearsal
from psrt.simulation.sums import GatheredSum, differing
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import (
    AS_ASKED,
    EXTRA,
    NO_PAYLOAD,
    VERSIONS,
    Reduction,
    Take,
    Vector,
    Wiring,
)

if TYPE_CHECKING:
    from psrt.simulation.scheduler import VirtualWorld

T = TypeVar("T")

#: In an inbox: where the message came from, itself, its region there, and its bytes.
Mail = tuple[Lane, Message, int, int]


@coroutine
def _suspend() -> Generator[None, None, None]:
    """Hand control to the scheduler, which resumes the role later."""
    yield


class VirtualPort:
    """One rank's port in a ``VirtualWorld``."""

    def __init__(self, world: VirtualWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.wiring: Wiring = world.wiring
        self.bytes_sent = 0
        self.bytes_received = 0
        #: Says whom this rank waits for; a role replaces it.
        self.whom: Callable[[], str] = lambda: "a message"
        #: See ``Port``.
        self.apply_s: Callable[[int], float] | None = (
            None if world.costs.apply is None else self._apply_seconds
        )
        #: How long it takes to take up a message; None: no time.
        self._take_s = world.costs.take
        #: Messages taken up, if that takes time.
        self._turn = 0
        #: Whether the role waits for something to arrive.
        self.waiting = False
        #: Whether computing time passes.
        self.computing = False
        #: Gradient steps whose pushes this worker has sent.
        self.pushed = 0
        self._make_vectors()
        self._inbox: deque[Mail] = deque()
        #: By rank, the way there; made when first taken.
        self._lanes: dict[int, Lane] = {}
        #: What was posted and not yet looked at, by source and key.
        self._parcels: dict[tuple[int, int], deque[tuple[Vector | None, int]]] = {}
        self._reductions = 0
        self._copies: dict[int, Vector] = {}
        #: What is to be done when computing time is over.
        self._later: list[Callable[[], object]] = []

    def _make_vectors(self) -> None:
        wiring, shard = self.wiring, self.wiring.shard_of(self.rank)
        n = wiring.n if self.world.numerics else 0
        #: The span of this server; empty at a worker.
        self._span = Span(0, 0) if shard is None else wiring.spans[shard]
        self.gradient: Vector = np.zeros(n + EXTRA if shard is None else 0, np.float32)
        self.theta: Vector = np.zeros(n if shard is None else 0, np.float32)
        size = self._span.size if self.world.numerics else 0
        self.versions: list[Vector] = [
            np.zeros(size, np.float32) for _ in range(0 if shard is None else VERSIONS)
        ]

    def now(self) -> float:
        """Return virtual time in seconds."""
        return self.world.time

    def payload(self, worker: int) -> Vector:
        """Return where the gradient span of ``worker`` is found."""
        if not self.world.numerics:
            return self.gradient
        rank = self.wiring.workers[worker]
        if self.world.shared_memory:
            return self._span.of(self.world.ports[rank].gradient)
        if rank not in self._copies:
            self._copies[rank] = np.zeros(self._span.size, np.float32)
        return self._copies[rank]

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)`` and let its cost pass.

        The work is done at once, its time passes afterwards; so what it begins, begins then.
        """
        self.computing = True
        result = work(*args)
        await self.pause(self.world.costs.compute(self.rank, self.world.rng))
        self.computing = False
        while self._later:
            self._later.pop(0)()
        return result

    def soon(self, action: Callable[[], object]) -> None:
        """Do something now, or as soon as the computing time is over in which it is asked for."""
        if self.computing:
            self._later.append(action)
        else:
            action()

    async def aside(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``; no time passes."""
        return work(*args)

    async def pause(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        world = self.world
        world.after(seconds, world.resume, self.rank)
        await _suspend()

    def _apply_seconds(self, nbytes: int) -> float:
        """Return how long this server works so many bytes in, and count it as busy for so long."""
        world = self.world
        assert world.costs.apply is not None, "there is no apply_s without a cost"
        seconds = world.costs.apply(self.rank, nbytes, world.rng)
        world.busy[self.rank] = world.busy.get(self.rank, 0.0) + seconds
        return seconds

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Send ``message``, and the contents of ``region`` with it, to rank ``to``."""
        world, nbytes = self.world, FRAME_BYTES
        if region != NO_PAYLOAD:
            nbytes += 4 * (self._span.size or world.ports[to]._span.size)
        self.bytes_sent += nbytes
        if type(message) is Push:
            self.pushed = message.clock + 1
        if to in world.crashed:
            return
        lane = self._lanes.get(to) or self.lane(to)
        lane.unread += 1
        world.links.carry(lane, nbytes, world.ports[to].deliver, (lane, message, region, nbytes))

    def lane(self, to: int) -> Lane:
        """Return the way to rank ``to``."""
        return self._lanes.setdefault(to, Lane(self.rank, to))

    def announce(self, to: int, message: Message, region: int) -> Callable[[int], None] | None:
        """Decline: nothing happens during an update in virtual time."""
        return None

    def deliver(self, mail: Mail) -> None:
        """Take in a message that has arrived."""
        world = self.world
        if not world.shared_memory and world.numerics:
            lane, message, region, _ = mail
            if type(message) is Push and region != NO_PAYLOAD:
                there = self._span.of(world.ports[lane.source].gradient)
                np.copyto(self.payload(message.worker), there)
        self._inbox.append(mail)
        if self.waiting:
            self.waiting = False
            world.resume(self.rank)

    def in_flight(self, to: int) -> bool:
        """Tell whether the last payload sent to rank ``to`` may still be being read."""
        lane = self._lanes.get(to)
        return lane is not None and lane.unread > 0

    def forget(self, rank: int) -> None:
        """Take all that was sent to a rank for read: it will not read any more."""
        lane = self._lanes.get(rank)
        if lane is not None and lane.unread:
            lane.unread = 0
            self.world.touch(self.rank)

    async def receive(self) -> Message:
        """Return the next message in order of arrival, its payload in place."""
        inbox, take, waited = self._inbox, self._take_s, False
        while not inbox:
            self.waiting = waited = True
            await _suspend()
        if take is not None:
            if not waited:
                self._bring_forward()
            await self.pause(take(self.rank, inbox[0][1], waited, self.world.rng))
            self._bring_forward()
            self._turn += 1
        lane, message, region, nbytes = inbox.popleft()
        if nbytes:  # else it is word of a death, which nobody sent
            world = self.world
            if type(message) is Params and world.numerics:
                span = self.wiring.spans[message.shard]
                np.copyto(span.of(self.theta), world.ports[lane.source].versions[region])
            lane.unread -= 1
            if not lane.unread:
                world.touch(lane.source)
            self.bytes_received += nbytes
        return message

    def _bring_forward(self) -> None:
        """Put the message first of the peer whose turn it is, or the next one's that has any."""
        inbox, wiring = self._inbox, self.wiring
        if len(inbox) > 1:
            here = wiring.workers if wiring.worker_of(self.rank) is None else wiring.servers
            order = [(here.index(mail[0].source) - self._turn) % len(here) for mail in inbox]
            first = order.index(min(order))
            mail = inbox[first]
            del inbox[first]
            inbox.appendleft(mail)

    async def until(self, done: Callable[[], bool], whom: Callable[[], str]) -> None:
        """Let time pass until ``done()``.

        That is asked again whenever a peer has read all that it was sent, and before it would be
        said that nothing happens any more.
        """
        if not done():
            self.whom, before = whom, self.whom
            self.world.watch(self.rank, done)
            await _suspend()
            self.whom = before

    def choice(self, algorithm: str, n: int) -> tuple[str, str]:
        """Return the all-reduce that ``algorithm`` comes to.

        ``auto`` picks among hosts of one rank each; but where the costs say what a sum takes, they
        are those of a run on one host, and so is the choice. There is no ``node+NAME``: virtual
        hosts are nowhere. ``mpi`` is how long somebody measured it to be, or nothing.
        """
        workers, timed = len(self.wiring.workers), self.world.costs.reduce is not None
        if algorithm == AUTO:
            hosts = [workers] if timed else [1] * workers
            best = choose(hosts, 4 * n, 4, self.world.machine)
            return best.algorithm, best.why
        known = [AUTO, NODE, *ALGORITHMS] + [LIBRARY] * timed
        if algorithm not in known:
            raise ConfigError(
                f"all-reduce {algorithm} needs MPI; in virtual time there are {', '.join(known)}"
            )
        return algorithm, AS_ASKED

    def reduction(self, span: Span, algorithm: str, take: Take | None) -> Reduction:
        """Make the plan of a sum; every rank owns every element."""
        self._reductions += 1
        algorithm, _ = self.choice(algorithm, span.size)
        if algorithm in ALGORITHMS and self.world.costs.reduce is None:
            return Rehearsal(
                self,
                self._numbers(span),
                span,
                algorithm,
                take,
                rank=self.rank,
                size=len(self.wiring.workers),
                key=self._reductions,
            )
        return GatheredSum(self, self._numbers(span), span, algorithm, take, key=self._reductions)

    def _numbers(self, span: Span) -> Vector | None:
        """Return a span of the gradient; without numerics there are the extras alone."""
        if self.world.numerics:
            return span.of(self.gradient)
        return self.gradient[:] if span.start >= self.wiring.n else None

    def share_theta(self, algorithm: str) -> None:
        """Do nothing: every worker has its own memory."""

    async def differing(self, number: int) -> list[int]:
        """Come to where all workers compare their numbers."""
        return await differing(self, number)

    def post(self, to: int, key: int, numbers: Vector | None, nbytes: int) -> None:
        """Send numbers to rank ``to``, for what it knows as ``key``; they are copied."""
        copy = None if numbers is None else numbers.copy()
        self.bytes_sent += nbytes
        there = self.world.ports[to]
        self.world.links.carry(self.lane(to), nbytes, there.take_in, (self.rank, key, copy, nbytes))

    def take_in(self, parcel: tuple[int, int, Vector | None, int]) -> None:
        """Take in what a rank posted."""
        source, key, numbers, nbytes = parcel
        self._parcels.setdefault((source, key), deque()).append((numbers, nbytes))
        self.world.wake(self.rank)

    def parcel(self, source: int, key: int) -> Sequence[Vector | None]:
        """Return the next of what rank ``source`` posted for ``key``, nothing if it is not here."""
        waiting = self._parcels.get((source, key))
        if not waiting:
            return ()
        numbers, nbytes = waiting.popleft()
        self.bytes_received += nbytes
        return (numbers,)

    async def arrival(self) -> None:
        """Suspend until something has arrived."""
        self.waiting = True
        await _suspend()

    def report(self, report: Report) -> None:
        """Hand ``report`` to the world."""
        self.world.on_report(report)
