"""A small recorded job in virtual time: its events, what ranks did, and each message.

The roles are the real ones. Their events are those of a history, and become slices as in a trace
(``psrt.views.trace.spans``). Events do not tell when a message arrives, or which one held up a sum:
both are noted where messages are sent and taken.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from psrt.config import TrainConfig, resolve
from psrt.core.messages import Message
from psrt.core.units import plural
from psrt.history import EventLog
from psrt.history.events import Kind
from psrt.history.kinds import SERVER_KINDS
from psrt.job.virtual import simulate
from psrt.runtime.problem import Problem
from psrt.simulation import SimulationCosts, Simulator
from psrt.simulation.event_queue import Action
from psrt.simulation.network import Channel
from psrt.simulation.port import VirtualPort
from psrt.transport import RoleMap
from psrt.transport.port import NO_PAYLOAD
from psrt.views.trace.marks import Slice, nanoseconds
from psrt.views.trace.source import Event
from psrt.views.trace.spans import Spans


class Passage(NamedTuple):
    """One message in flight; times in virtual seconds."""

    #: When it was handed over, and when all of it had arrived.
    start: float
    stop: float
    #: Ranks: workers in their order, then servers.
    source: int
    target: int
    #: None: a part of a sum.
    message: Message | None
    #: Seconds for which its payload kept a link busy until then.
    on_link: float


class RecordedJob(NamedTuple):
    """What happened in a job; ranks are numbered workers first, then servers."""

    #: Resolved.
    config: TrainConfig
    workers: int
    events: Sequence[Event]
    slices: Sequence[Slice]
    #: In order of their arrival.
    passages: Sequence[Passage]
    #: By worker: when it took messages of sums → when and by which worker the latest one was sent;
    #: times in nanoseconds.
    taken: Sequence[Mapping[int, tuple[int, int]]]
    #: By shard, the one that decides for it: itself, except in modes with a quorum.
    deciders: Sequence[int]

    def of_kind(self, *kinds: Kind, worker: int | None = None) -> list[Event]:
        """Return the events of some kinds, all or a worker's, in order of time."""
        return [it for it in self.events if it.kind in kinds and worker in (None, it.worker)]

    def on_lane(self, rank: int, lane: str) -> list[Slice]:
        """Return the slices of a rank's lane, in order of time."""
        return [it for it in self.slices if (it.rank, it.lane) == (rank, lane)]

    def ends(self) -> list[float]:
        """Return by worker when it finished, in seconds: at its last event, if a sum follows."""
        times = {it.worker: it.time for it in self.of_kind(Kind.LEAVE, Kind.REDUCED)}
        return [nanoseconds(times[worker]) / 1e9 for worker in range(self.workers)]


def recorded(
    config: TrainConfig,
    problem: Problem,
    *,
    workers: int,
    costs: Callable[[RoleMap], SimulationCosts],
    numerics: bool = True,
) -> RecordedJob:
    """Train a small job and return what happened.

    Args:
        config: of the mode, with ``steps``; its seed also seeds the delays.
        problem: that is trained.
        workers: their number, ≥ 1.
        costs: costs of computing, messages and updates, given the roles of ranks.
        numerics: whether to compute gradients.

    Raises:
        ConfigError: if the config does not fit the number of workers.
    """
    log = _Events()
    found = simulate(
        config, problem, workers=workers, seed=config.seed, costs=costs, world=_World, log=log,
        numerics=numerics,
    )  # fmt: skip
    log.drain()
    world, slices = found.world, list[Slice]()
    assert isinstance(world, _World), "it was asked for"
    role_map = world.role_map
    servers = [workers + role_map.server_ranks.index(rank) for rank in role_map.servers]
    events = [
        it._replace(rank=servers[it.shard] if it.kind in SERVER_KINDS else it.worker)
        for it in log.kept
    ]
    spans = Spans(
        slices.append, lambda event, mark: None, lambda count: None,
        shards=[len(servers)], of_rank=[{rank: servers.count(rank) for rank in servers}],
    )  # fmt: skip
    for event in events:
        spans.add(event)
    number = {rank: i for i, rank in enumerate((*role_map.workers, *role_map.server_ranks))}
    return RecordedJob(
        resolve(config, ranks=role_map.size),
        workers,
        events,
        slices,
        [it._replace(source=number[it.source], target=number[it.target]) for it in world.passages],
        [
            {at: (sent, number[rank]) for at, (sent, rank) in world.taken[rank_].items()}
            for rank_ in role_map.workers
        ],
        role_map.deciders or range(len(role_map.servers)),
    )


def described(
    config: TrainConfig, slow: Sequence[float], *, shards: int | None = None
) -> Iterator[str]:
    """Yield a description of a small job, in parts of a sentence.

    Args:
        config: resolved.
        slow: by worker, the factor by which its steps take longer.
        shards: shards of each server; None leaves them out.
    """
    mode = config.scheme
    yield mode.described(config.allreduce)
    servers, count = config.servers or 0, plural(len(slow), "worker")
    yield f"{count}, {plural(servers, 'server')}" if servers else count
    yield f"{config.steps} steps each"
    if shards is not None:
        yield f"{plural(shards, 'shard')} per server"
    for worker, factor in enumerate(slow):
        if factor != 1.0:
            yield f"worker {worker} takes {factor:g} × as long"


class _Events(EventLog):
    """Keeps events in memory unchanged, and writes nothing."""

    def __init__(self) -> None:
        self.origin, self.queue = 0.0, []
        self.kept: list[Event] = []
        self._at, self._buffer = 0, cast(Any, self.kept)  # a list, which is never full

    @staticmethod
    def pack(kept: list[Event], at: int, *columns: Any) -> None:
        """Keep an event; ``recorded`` knows its rank."""
        kept.append(Event._make((*columns, 0, -1)))


class _World(Simulator):
    """A simulator whose ports note when messages arrive, and which of a sum were taken when."""

    def __init__(self, role_map: RoleMap, **rest: Any) -> None:
        super().__init__(role_map, **rest)
        self.passages: list[Passage] = []
        #: By receiver, sender and key of a sum: send times of messages that it has yet to take.
        self.posted: defaultdict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        #: By rank, see ``RecordedJob``.
        self.taken: list[dict[int, tuple[int, int]]] = [{} for _ in range(role_map.size)]
        self.ports = [_Port(self, rank) for rank in range(role_map.size)]


class _Port(VirtualPort):
    def __init__(self, world: _World, rank: int) -> None:
        super().__init__(world, rank)
        self._noted = world

    def depart(self, channel: Channel, nbytes: int, arrive: Action, argument: Any) -> None:
        """Note the arrival of a message: one between roles, or a part of a sum."""
        noted, sent, what = self._noted, self.now(), argument[1]
        is_sum = isinstance(what, int)
        if is_sum:
            noted.posted[channel.to, channel.source, what].append(nanoseconds(sent))

        def arrived(argument: Any) -> None:
            has_payload = is_sum or argument[2] != NO_PAYLOAD
            on_link = nbytes / noted.costs.bandwidth if has_payload else 0.0
            message = None if is_sum else what
            noted.passages.append(
                Passage(sent, noted.time, channel.source, channel.to, message, on_link)
            )
            arrive(argument)

        super().depart(channel, nbytes, arrived, argument)

    def take_span(self, source: int, key: int) -> Sequence[Any]:
        """Note when a part of a sum is taken, and when it was sent."""
        found = super().take_span(source, key)
        if found:
            sent = self._noted.posted[self.rank, source, key].popleft(), source
            taken, now = self._noted.taken[self.rank], nanoseconds(self.now())
            taken[now] = max(taken.get(now, sent), sent)
        return found
