"""What the ports of a small job in virtual time record: for timelines.

The roles are the real ones; a port notes when it computes, what it sends and when that arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from psrt.arrays import AnyVector
from psrt.history import EventLog, Kind
from psrt.messages import Message, Params, Report, Sketch
from psrt.simulation import Simulator
from psrt.simulation.port import Mail, VirtualPort
from psrt.transport import RoleMap
from psrt.transport.port import NO_PAYLOAD

T = TypeVar("T")


class Passage(NamedTuple):
    """One message on its way; times in virtual seconds."""

    start: float
    stop: float
    #: Ranks.
    source: int
    target: int
    #: None: a part of a sum.
    message: Message | None


class Transfer(NamedTuple):
    """What becomes of one worker's part of a mean of a fragment; times in virtual seconds."""

    #: Number of the fragment.
    fragment: int
    #: When this worker sent its part, and when the last worker did.
    sent: float
    complete: float
    #: When this worker took the mean.
    taken: float
    #: The worker that was the last to send its part.
    last: int


class SumLog(EventLog):
    """Keeps when workers send and take fragments, and writes nothing."""

    def __init__(self) -> None:
        self.origin = 0.0
        self.queue = []
        #: By worker: the time and the fragment of each part that was sent; and taken, the time.
        self.sent: dict[int, list[tuple[float, int]]] = {}
        self.taken: dict[int, list[float]] = {}

    def add(
        self, kind: int, time: float, worker: int, clock: int, version: int, shard: int = -1,
        *rest: Any, **more: Any,
    ) -> None:  # fmt: skip
        """Keep an event of a sum."""
        if self.queue:
            self.drain()
        if kind == Kind.REDUCE:
            self.sent.setdefault(worker, []).append((time, shard))
        elif kind == Kind.REDUCED:
            self.taken.setdefault(worker, []).append(time)

    def transfers(self, workers: int) -> list[list[Transfer]]:
        """Return by worker the sums that it took part in; its k-th is the k-th of each other."""
        self.drain()
        found: list[list[Transfer]] = [[] for _ in range(workers)]
        for k, (_, fragment) in enumerate(self.sent[0]):
            sent = [self.sent[i][k][0] for i in range(workers)]
            last = max(range(workers), key=sent.__getitem__)
            for i in range(workers):
                found[i].append(Transfer(fragment, sent[i], sent[last], self.taken[i][k], last))
        return found


@dataclass(slots=True)
class Log:
    """The calls at the port of one worker."""

    #: Start and stop of each step's computing, in order.
    busy: list[tuple[float, float]] = field(default_factory=list)
    #: Time of each reply, the worker whose push triggered it, and the time that push was sent.
    answers: list[tuple[float, int, float]] = field(default_factory=list)
    #: Of streaming local SGD, the sums that it took part in, in order.
    sums: list[Transfer] = field(default_factory=list)
    #: Time at which messages of sums were taken → of that which was sent last, when and by whom.
    hops: dict[float, tuple[float, int]] = field(default_factory=dict)
    #: Time at which the worker finished.
    done: float = 0.0


class RecordingWorld(Simulator):
    """A simulator whose ports record their calls."""

    def __init__(self, role_map: RoleMap, **rest: Any) -> None:
        super().__init__(role_map, **rest)
        #: By worker number.
        self.logs = [Log() for _ in role_map.workers]
        #: By worker and shard, the times at which messages were sent that are not handled yet.
        self.sent: dict[tuple[int, int], deque[float]] = {}
        #: By rank of the worker and shard, for each reply in flight: the worker whose message
        #: triggered it, and the time that was sent.
        self.causes: dict[tuple[int, int], deque[tuple[int, float]]] = {}
        #: By rank, receiver and sum, the times at which messages of sums were sent, not yet taken.
        self.posted: dict[tuple[int, int, int], deque[float]] = {}
        #: All messages that have arrived.
        self.passages: list[Passage] = []
        #: By source, target, and key of a sum or shard: when those in flight were sent.
        self.flying: dict[tuple[int, int, int, bool], deque[float]] = {}
        self.ports = [RecordingPort(self, rank) for rank in range(role_map.size)]

    def leaves(self, source: int, target: int, key: int, *, sums: bool) -> None:
        """Note that a message sets out now."""
        self.flying.setdefault((source, target, key, sums), deque()).append(self.time)

    def arrives(self, source: int, target: int, key: int, message: Message | None) -> None:
        """Note that the first such message that is still on its way arrives now."""
        start = self.flying[source, target, key, message is None].popleft()
        self.passages.append(Passage(start, self.time, source, target, message))


class RecordingPort(VirtualPort):
    """A port that records its calls in its simulator."""

    def __init__(self, world: RecordingWorld, rank: int) -> None:
        super().__init__(world, rank)
        self._records = world
        worker = self.role_map.worker_of(rank)
        #: None at a server.
        self._log = None if worker is None else world.logs[worker]
        #: At a server: the worker whose message is being handled, and the time it was sent.
        self._cause = 0, 0.0

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Record the start of a step."""
        if self._log is not None:
            self._log.busy.append((self.now(), self.now()))
        return await super().compute(work, *args)

    async def pause(self, seconds: float) -> None:
        """Extend the step; a straggler's delay is part of it."""
        if self._log is not None and self._log.busy:
            self._log.busy[-1] = self._log.busy[-1][0], self.now() + seconds
        await super().pause(seconds)

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Record the time of a worker's message, and the cause of a server's reply."""
        if type(message) is Params:
            self._records.causes.setdefault((to, message.shard), deque()).append(self._cause)
        else:
            sent = self._records.sent.setdefault((self.rank, message.shard), deque())
            sent.append(self.now())
        self._records.leaves(self.rank, to, message.shard, sums=False)
        super().send(to, message, region)

    def deliver(self, mail: Mail) -> None:
        """Record the arrival of a message."""
        channel, message, _, _ = mail
        self._records.arrives(channel.source, self.rank, message.shard, message)
        super().deliver(mail)

    async def receive(self) -> Message:
        """Record a reply, or the cause of the replies to come."""
        message = await super().receive()
        if isinstance(message, Params):
            cause = self._records.causes[self.rank, message.shard].popleft()
            if self._log is not None:
                self._log.answers.append((self.now(), *cause))
        else:
            sender = self.role_map.workers[message.worker]
            self._cause = message.worker, self._records.sent[sender, message.shard].popleft()
        return message

    def post(self, to: int, key: int, numbers: AnyVector | None, nbytes: int) -> None:
        """Record the time of a message of a sum."""
        self._records.posted.setdefault((self.rank, to, key), deque()).append(self.now())
        self._records.leaves(self.rank, to, key, sums=True)
        super().post(to, key, numbers, nbytes)

    def keep_span(self, span: tuple[int, int, AnyVector | None, int]) -> None:
        """Record the arrival of a message of a sum."""
        self._records.arrives(span[0], self.rank, span[1], None)
        super().keep_span(span)

    def take_span(self, source: int, key: int) -> Sequence[Any]:
        """Record when a message of a sum is taken, and when it was sent."""
        found = super().take_span(source, key)
        if found and self._log is not None:
            sender = self.role_map.worker_of(source)
            assert sender is not None, "sums are among workers"
            sent = self._records.posted[source, self.rank, key].popleft()
            hops, now = self._log.hops, self.now()
            hops[now] = max(hops.get(now, (sent, sender)), (sent, sender))
        return found

    def report(self, report: Report | Sketch) -> None:
        """Record the end of a worker at its last report."""
        if isinstance(report, Report) and report.last and self._log is not None:
            self._log.done = self.now()
        super().report(report)
