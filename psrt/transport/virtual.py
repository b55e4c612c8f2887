"""The port without MPI: a seeded discrete-event scheduler runs all ranks in one process.

Virtual time moves from event to event; the seed decides every delay and every tie, so the same
seed gives the same run, event for event, and another seed another interleaving. Messages between
two ranks keep their order, as MPI's do. Payloads lie with their writer until they are read, as
in shared memory, or are copied, as between hosts.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from psrt.collective import ALGORITHMS
from psrt.collective.choose import choose
from psrt.collective.machine import DEFAULT_COSTS, MachineCosts
from psrt.errors import ConfigError, TransportError
from psrt.messages import Message, Params, Push, Report
from psrt.partition import Span
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.majority import outliers
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
from psrt.transport.rehearsal import Rehearsal

T = TypeVar("T")
Numbers = np.ndarray[tuple[int], np.dtype[Any]]
Draw = Callable[[np.random.Generator], float]

#: The key of numbers that are compared; those of reductions count from 1.
_COMPARE = 0


@dataclass(frozen=True, slots=True)
class Costs:
    """What things take in virtual time, in seconds. The defaults make every order possible."""

    #: One call of ``compute`` at a rank.
    compute: Callable[[int, np.random.Generator], float] = lambda _, rng: rng.exponential(1e-3)
    #: From the sending of a message to its arrival, but for its bytes.
    latency: Draw = lambda rng: rng.exponential(1e-4)
    #: Seconds per byte of message and payload.
    per_byte: float = 0.0


class _Suspend:
    """What a role awaits: hands control to the scheduler, which resumes it later."""

    def __await__(self) -> Generator[_Suspend, None, None]:
        yield self


@dataclass(slots=True)
class _Mail:
    """A message on its way or in an inbox."""

    source: int
    message: Message
    region: int
    nbytes: int


@dataclass(slots=True)
class _Task:
    """A role that runs: its coroutine and, at the end, its result."""

    role: Coroutine[Any, Any, Any]
    result: Any = None
    done: bool = False


@dataclass(order=True, slots=True)
class _Event:
    time: float
    tie: float
    number: int
    action: Callable[[], None] = field(compare=False)


class VirtualWorld:
    """All ranks of a job, their ports, and the time they live in."""

    def __init__(
        self,
        wiring: Wiring,
        *,
        seed: int,
        costs: Costs | None = None,
        shared_memory: bool = True,
        machine: MachineCosts = DEFAULT_COSTS,
    ) -> None:
        """Make a port for every rank.

        Args:
            wiring: who is who.
            seed: decides every delay and every tie.
            costs: what things take.
            shared_memory: whether a server reads gradients where the workers have them; if not
                they are copied when a push arrives, as between hosts.
            machine: what ``auto`` picks an all-reduce by; it need not agree with ``costs``.
        """
        self.wiring = wiring
        self.costs = costs or Costs()
        self.rng = np.random.default_rng(seed)
        self.shared_memory = shared_memory
        self.machine = machine
        self.time = 0.0
        #: Events so far.
        self.events = 0
        #: Takes the reports that reach rank 0.
        self.on_report: Callable[[Report], None] = lambda _: None
        self.ports = [VirtualPort(self, rank) for rank in range(wiring.size)]
        self._queue: list[_Event] = []
        self._made = 0
        self._tasks: dict[int, _Task] = {}
        #: Roles that wait for something to become true: by rank, what asks whether it has.
        self._watches: dict[int, Callable[[], bool]] = {}
        #: Arrival of the newest message from rank to rank: none may arrive before it.
        self._newest: dict[tuple[int, int], float] = {}

    def run(self, roles: dict[int, Coroutine[Any, Any, Any]]) -> dict[int, Any]:
        """Run a role at each rank to its end and return their results by rank.

        Raises:
            TransportError: if nothing can happen any more and a role is not at its end.
        """
        self._tasks = {rank: _Task(role) for rank, role in roles.items()}
        for rank in roles:
            self.after(0.0, lambda rank=rank: self._resume(rank))  # type: ignore[misc]
        try:
            with np.errstate(all="ignore"):  # the loss tells of a run that diverges
                while self._queue:
                    event = heapq.heappop(self._queue)
                    self.time = event.time
                    self.events += 1
                    event.action()
                    self._look_again()
            stuck = [rank for rank, task in self._tasks.items() if not task.done]
            if stuck:
                waits = "; ".join(f"rank {r} waits for {self.ports[r].whom()}" for r in stuck)
                raise TransportError(f"deadlock at {self.time:.6f} s of virtual time: {waits}")
        finally:
            for task in self._tasks.values():
                task.role.close()
        return {rank: task.result for rank, task in self._tasks.items()}

    def after(self, seconds: float, action: Callable[[], None]) -> float:
        """Let ``action`` happen in so many seconds; return when that is."""
        return self._at(self.time + seconds, action)

    def carry(self, source: int, to: int, nbytes: int, arrive: Callable[[], None]) -> None:
        """Let a message arrive after its delay, and after every earlier one of this pair."""
        delay = self.costs.latency(self.rng) + nbytes * self.costs.per_byte
        pair = (source, to)
        when = max(self.time + delay, self._newest.get(pair, 0.0))
        self._newest[pair] = when
        self._at(when, arrive, in_order=True)

    def wake(self, rank: int) -> None:
        """Resume a role that waits for something to arrive."""
        port = self.ports[rank]
        if port.waiting:
            port.waiting = False
            self._resume(rank)

    def resume_after(self, rank: int, seconds: float) -> None:
        """Resume a role in so many seconds."""
        self.after(seconds, lambda: self._resume(rank))

    def watch(self, rank: int, done: Callable[[], bool]) -> None:
        """Resume a role as soon as ``done()``, which is asked after every event."""
        self._watches[rank] = done

    def _look_again(self) -> None:
        """Resume the roles whose watch is over, and those that this sets free in turn."""
        while ready := [rank for rank, done in self._watches.items() if done()]:
            # One only: what it does may undo what another one waits for.
            del self._watches[ready[0]]
            self._resume(ready[0])

    def _at(self, when: float, action: Callable[[], None], *, in_order: bool = False) -> float:
        # Ties go by chance, but not between two messages of one pair.
        tie = 0.0 if in_order else self.rng.random()
        heapq.heappush(self._queue, _Event(when, tie, self._number(), action))
        return when

    def _number(self) -> int:
        """Return a number larger than at any earlier call."""
        self._made += 1
        return self._made

    def _resume(self, rank: int) -> None:
        task = self._tasks[rank]
        try:
            task.role.send(None)
        except StopIteration as stop:
            task.result, task.done = stop.value, True


class VirtualPort:
    """One rank's port in a ``VirtualWorld``."""

    def __init__(self, world: VirtualWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.wiring = wiring = world.wiring
        self.bytes_sent = 0
        self.bytes_received = 0
        #: Says whom this rank waits for; a role replaces it.
        self.whom: Callable[[], str] = lambda: "a message"
        #: Whether the role waits for something to arrive.
        self.waiting = False
        shard = wiring.shard_of(rank)
        is_worker = shard is None
        self.gradient: Vector = np.zeros(wiring.n + EXTRA if is_worker else 0, np.float32)
        self.theta: Vector = np.zeros(wiring.n if is_worker else 0, np.float32)
        size = 0 if shard is None else wiring.spans[shard].size
        self.versions: list[Vector] = [
            np.zeros(size, np.float32) for _ in range(0 if is_worker else VERSIONS)
        ]
        self._inbox: deque[_Mail] = deque()
        self._unread: dict[int, int] = {}
        #: What was posted and not yet looked at, by source and key.
        self._parcels: dict[tuple[int, int], deque[Numbers]] = {}
        self._reductions = 0
        self._copies: dict[int, Vector] = {}

    def now(self) -> float:
        """Return virtual time in seconds."""
        return self.world.time

    def payload(self, worker: int) -> Vector:
        """Return where the gradient span of ``worker`` is found."""
        rank = self.wiring.workers[worker]
        if self.world.shared_memory:
            return self._span().of(self.world.ports[rank].gradient)
        if rank not in self._copies:
            self._copies[rank] = np.zeros(self._span().size, np.float32)
        return self._copies[rank]

    def _span(self) -> Span:
        return self.wiring.spans[self.wiring.servers.index(self.rank)]

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)`` and let its cost pass."""
        result = work(*args)
        await self.pause(self.world.costs.compute(self.rank, self.world.rng))
        return result

    async def pause(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        self.world.resume_after(self.rank, seconds)
        await _Suspend()

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Send ``message``, and the contents of ``region`` with it, to rank ``to``."""
        nbytes = FRAME_BYTES + (4 * self._payload_size(to) if region != NO_PAYLOAD else 0)
        self.bytes_sent += nbytes
        self._unread[to] = self._unread.get(to, 0) + 1
        mail = _Mail(self.rank, message, region, nbytes)
        self.world.carry(self.rank, to, nbytes, lambda: self.world.ports[to].deliver(mail))

    def announce(self, to: int, message: Message, region: int) -> Callable[[int], None] | None:
        """Decline: nothing happens during an update in virtual time."""
        return None

    def _payload_size(self, peer: int) -> int:
        server = peer if self.wiring.shard_of(peer) is not None else self.rank
        return self.wiring.spans[self.wiring.servers.index(server)].size

    def deliver(self, mail: _Mail) -> None:
        """Take in a message that has arrived."""
        if isinstance(mail.message, Push) and mail.region != NO_PAYLOAD:
            worker = self.world.ports[mail.source]
            if not self.world.shared_memory:
                np.copyto(self.payload(mail.message.worker), self._span().of(worker.gradient))
        self._inbox.append(mail)
        self.world.wake(self.rank)

    def in_flight(self, to: int) -> bool:
        """Tell whether the last payload sent to rank ``to`` may still be being read."""
        return self._unread.get(to, 0) > 0

    async def receive(self) -> Message:
        """Return the next message in order of arrival, its payload in place."""
        while not self._inbox:
            await self.arrival()
        mail = self._inbox.popleft()
        sender = self.world.ports[mail.source]
        if isinstance(mail.message, Params):
            span = self.wiring.spans[mail.message.shard]
            np.copyto(span.of(self.theta), sender.versions[mail.region])
        sender._unread[self.rank] -= 1
        self.bytes_received += mail.nbytes
        return mail.message

    async def until(self, done: Callable[[], bool], whom: Callable[[], str]) -> None:
        """Let time pass until ``done()``."""
        if not done():
            self.whom, before = whom, self.whom
            self.world.watch(self.rank, done)
            await _Suspend()
            self.whom = before

    def choice(self, algorithm: str, n: int) -> tuple[str, str]:
        """Return the schedule that ``algorithm`` comes to among hosts of one rank each."""
        if algorithm == "auto":
            hosts = [1] * len(self.wiring.workers)
            best = choose(hosts, 4 * n, 4, self.world.machine)
            return best.algorithm, best.why
        if algorithm not in ALGORITHMS:
            raise ConfigError(
                f"all-reduce {algorithm} needs MPI; in virtual time there are "
                f"auto, {', '.join(ALGORITHMS)}"
            )
        return algorithm, AS_ASKED

    def reduction(self, span: Span, algorithm: str, take: Take | None) -> Reduction:
        """Make the plan of a schedule over virtual messages; every rank owns every element."""
        self._reductions += 1
        return Rehearsal(
            self,
            self.gradient,
            span,
            self.choice(algorithm, span.size)[0],
            take,
            rank=self.rank,
            size=len(self.wiring.workers),
            key=self._reductions,
        )

    def share_theta(self, algorithm: str) -> None:
        """Do nothing: every worker has its own memory."""

    async def differing(self, number: int) -> list[int]:
        """Tell every other worker and hear them all."""
        workers = self.wiring.workers
        others = [rank for rank in workers if rank != self.rank]
        for rank in others:
            self.post(rank, _COMPARE, np.array([number], np.int64))
        numbers = {self.rank: number}
        for rank in others:
            while (given := self.parcel(rank, _COMPARE)) is None:
                await self.arrival()
            numbers[rank] = int(given[0])
        return outliers([numbers[rank] for rank in workers])

    def post(self, to: int, key: int, numbers: Numbers) -> None:
        """Send numbers to rank ``to``, for what it knows as ``key``; they are copied."""
        copy = numbers.copy()
        self.bytes_sent += copy.nbytes
        there = self.world.ports[to]
        self.world.carry(self.rank, to, copy.nbytes, lambda: there.take_in(self.rank, key, copy))

    def take_in(self, source: int, key: int, numbers: Numbers) -> None:
        """Take in what rank ``source`` posted."""
        self._parcels.setdefault((source, key), deque()).append(numbers)
        self.world.wake(self.rank)

    def parcel(self, source: int, key: int) -> Numbers | None:
        """Return the next of what rank ``source`` posted for ``key``, None if it is not here."""
        waiting = self._parcels.get((source, key))
        if not waiting:
            return None
        numbers = waiting.popleft()
        self.bytes_received += numbers.nbytes
        return numbers

    async def arrival(self) -> None:
        """Suspend until something has arrived."""
        self.waiting = True
        await _Suspend()

    def report(self, report: Report) -> None:
        """Hand ``report`` to the world."""
        self.world.on_report(report)
