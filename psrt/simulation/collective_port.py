"""A rank's collective operations in virtual time: sums, and comparisons of numbers."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from types import coroutine
from typing import TYPE_CHECKING, Any

import numpy as np

from psrt.codec.randomness import BACK
from psrt.codec.times import FREE
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.choose import choose
from psrt.collective.analysis.pick import Coding, pick_coded, pick_sharded
from psrt.collective.registry import AUTO, LIBRARY, NODE, owned_by
from psrt.core.arrays import AnyVector, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span, even_span
from psrt.core.sharding import Sharing
from psrt.simulation.event_queue import Action
from psrt.simulation.network import Channel
from psrt.simulation.rendezvous import hosts_among
from psrt.simulation.schedule_run import ScheduleRun
from psrt.simulation.straight_run import StraightRun
from psrt.simulation.sums import Gathering, MessageSum, RendezvousSum, ShardedSum
from psrt.transport.coded_sum import CodedSum, SumCodec
from psrt.transport.port import AS_ASKED, CONTROL, Held, Reduction, RoleMap, Take, outliers

if TYPE_CHECKING:
    from psrt.simulation.cell import World


@coroutine
def suspend() -> Generator[None, None, None]:
    """Hand control to the scheduler, which resumes the role later."""
    yield


class CollectivePort:
    """The collective operations of a port in virtual time; see ``Port``."""

    def __init__(self, world: World, rank: int) -> None:
        """Set up without spans."""
        self.world = world
        self.rank = rank
        self.role_map: RoleMap = world.role_map
        #: A worker's number, −1 at a server.
        self.worker = -1 if (worker := self.role_map.worker_of(rank)) is None else worker
        rate = world.costs.worker_apply
        #: See ``Port``; here a worker's.
        self.apply_s: Callable[[int, int], float] | None = (
            None if rate == math.inf else lambda shard, nbytes: nbytes / rate
        )
        self.bytes_sent = 0
        self.bytes_received = 0
        #: (n + CONTROL · controls,) at a worker; without numerics only the control values; empty
        #: at a server.
        behind = CONTROL * self.role_map.controls
        self.gradient: Vector = np.zeros(
            0
            if self.worker < 0
            else behind + (self.role_map.gradient_size if world.numerics else 0),
            np.float32,
        )
        #: (n,) at a worker; made by the port. Empty without numerics.
        self.theta: Vector = np.zeros(0, np.float32)
        #: Whether the role waits for an arrival.
        self.waiting = False
        #: Seconds spent on frames since the last await, which virtual time must still pass.
        self.behind = 0.0
        #: When the last message sent so far leaves.
        self.left = -math.inf
        #: Whether computing time passes.
        self.computing = False
        #: Called when computing time is over.
        self._after_compute: list[Callable[[], object]] = []
        #: By rank and shard, the channel to it; made on first use.
        self._channels: dict[tuple[int, int], Channel] = {}
        #: Spans that have arrived but were not consumed yet, by source and key.
        self._spans: defaultdict[tuple[int, int], deque[tuple[AnyVector | None, int]]]
        self._spans = defaultdict(deque)
        self._reductions = 0
        #: Schedules in progress: a rank that waits for one of them advances all, as over MPI.
        self.under_way: list[ScheduleRun | CodedSum | StraightRun] = []

    def after_compute(self, action: Callable[[], object]) -> None:
        """Call ``action`` now, or at the end of the computing time if called within ``compute``.

        In virtual time the work runs first and its time passes afterwards, so an action started in
        the middle of the work would be early by up to that whole time.
        """
        if self.computing:
            self._after_compute.append(action)
        else:
            action()

    def now(self) -> float:
        """Return virtual time in seconds as this rank sees it."""
        return self.world.time + self.behind

    def encodes(self, n: int, way: int) -> None:
        """Spend the time of encoding n elements, on their way ``FORTH`` or ``BACK``."""
        if (frames := self.world.frames) is not None:
            back = way == BACK and frames.encode_reply != FREE
            self.behind += (frames.encode_reply if back else frames.encode).at(n)

    def decodes(self, n: int, way: int) -> None:
        """Spend the time of decoding n elements."""
        if (frames := self.world.frames) is not None:
            back = way == BACK and frames.decode_reply != FREE
            self.behind += (frames.decode_reply if back else frames.decode).at(n)

    async def catch_up(self) -> None:
        """Let the time pass that this rank has already spent."""
        if self.behind:
            await self.pause(0.0)

    async def pause(self, seconds: float, *, works: bool = False) -> None:
        """Let ``seconds`` of virtual time pass, after the time of any work already done."""
        world = self.world
        spent, self.behind = self.behind, 0.0
        if world.cores is None:
            world.after(seconds + spent, world.resume, self.rank)
            await suspend()
            return
        if works:
            seconds, spent = 0.0, seconds + spent
        if spent:
            world.cores[self.rank].work(spent, world.resume, self.rank)
            await suspend()
        if seconds or not spent:
            world.after(seconds, world.resume, self.rank)
            await suspend()

    def depart(self, channel: Channel, nbytes: int, arrive: Action, argument: Any) -> None:
        """Hand a message to the network at this rank's own time; see ``Network.send``."""
        world = self.world
        if not self.behind and world.time > self.left:
            world.network.send(channel, nbytes, arrive, argument)
            return
        # Also if an earlier message leaves at this moment: messages leave in the order of calls.
        message = channel, nbytes, arrive, argument
        self.left = world.at(self.now(), self._send_now, message, not_before=self.left)

    def _send_now(self, message: tuple[Channel, int, Action, Any]) -> None:
        self.world.network.send(*message)

    def channel(self, to: int, shard: int = 0) -> Channel:
        """Return the channel to rank ``to``; each of a server's shards has one of its own."""
        return self._channels.setdefault((to, shard), Channel(self.rank, to, self.world.ranks))

    def post(self, to: int, key: int, numbers: AnyVector | None, nbytes: int) -> None:
        """Send a span, or the frame of one, to another rank.

        Args:
            to: the rank.
            key: marks the reduction; the receiver passes it to ``take_span``.
            numbers: copied at the call; None without numerics.
            nbytes: their length, with or without numerics.
        """
        world, copy = self.world, None if numbers is None else numbers.copy()
        self.bytes_sent += nbytes
        arrive = world.ports[to].keep_span
        self.depart(self.channel(to), nbytes, arrive, (self.rank, key, copy, nbytes))

    def keep_span(self, span: tuple[int, int, AnyVector | None, int]) -> None:
        """Queue a span that has arrived, and wake the role."""
        source, key, numbers, nbytes = span
        self._spans[source, key].append((numbers, nbytes))
        self.world.wake(self.rank)

    def take_span(self, source: int, key: int) -> Sequence[Any]:
        """Return the next numbers that rank ``source`` posted for ``key``; empty if none yet."""
        waiting = self._spans[source, key]
        if not waiting:
            return ()
        numbers, nbytes = waiting.popleft()
        self.bytes_received += nbytes
        return (numbers,)

    def move_on(self) -> None:
        """Run all steps of all schedules whose spans have arrived."""
        self.under_way = [run for run in self.under_way if not run.advance()]

    async def arrival(self) -> None:
        """Suspend until the next arrival, or only until time already spent has passed."""
        if self.behind:
            await self.pause(0.0)
            return
        self.waiting = True
        await suspend()

    def choice(
        self,
        algorithm: str,
        n: int,
        *,
        coded: Coding | None = None,
        sharded: Sharing | None = None,
    ) -> tuple[str, str]:
        """Return the all-reduce that ``algorithm`` names, and the reason; see ``Port``.

        ``auto`` assumes hosts of one rank each. It assumes one host if the costs were measured on
        one (``costs.reduce``), or if ``costs.hosts`` puts all workers on one. Hierarchical sums
        are not simulated, so ``node+NAME`` is refused, and ``node`` over several hosts, too. The
        schedule of ``mpi`` is unknown, so it needs a measured time.
        """
        world, role_map = self.world, self.role_map
        workers, timed = len(role_map.workers), world.costs.reduce is not None
        there = 0  # not specified
        if world.costs.hosts is not None:
            there = hosts_among(world, [role_map.rank_name(rank) for rank in role_map.workers])
        hosts = [workers] if timed or there == 1 else [1] * workers
        if algorithm == NODE and not timed and there > 1:
            raise ConfigError(
                f"all-reduce {NODE} over {there} hosts needs MPI; in virtual time there are "
                f"{', '.join([AUTO, *ALGORITHMS])}"
            )
        if coded is not None:
            machine = self.world.machine
            found = pick_coded(algorithm, hosts, coded, machine, through_hosts=False)
            return found.algorithm, found.why
        if sharded is not None:
            together = [workers] if timed or algorithm == NODE else hosts
            alone = sharded is Sharing.PARAMETERS
            best = pick_sharded(algorithm, together, 4 * n, self.world.machine, alone=alone)
            return best.algorithm, best.why
        if algorithm == AUTO:
            best = choose(hosts, 4 * n, 4, self.world.machine)
            return best.algorithm, best.why
        known = [AUTO, NODE, *ALGORITHMS] + [LIBRARY] * timed
        if algorithm not in known:
            raise ConfigError(
                f"all-reduce {algorithm} needs MPI; in virtual time there are {', '.join(known)}"
            )
        return algorithm, AS_ASKED

    def owned(self, span: Span, algorithm: str, *, worker: int | None = None) -> Span:
        """Return the part of a span that this worker, or another one, owns."""
        ranks, worker = len(self.role_map.workers), self.worker if worker is None else worker
        if algorithm in ALGORITHMS:
            start, stop = owned_by(algorithm, worker, ranks, span.size)
        else:
            start, stop = even_span(span.size, ranks, worker)
        return Span(span.start + start, span.start + stop)

    def reduction(
        self,
        span: Span,
        algorithm: str,
        take: Take | None,
        codec: SumCodec | None = None,
        *,
        held: Held | None = None,
    ) -> Reduction:
        """Make the plan of a sum; without a ``Held``, every rank owns every element."""
        # The same number on all workers: they make the same reductions in the same order.
        self._reductions += 1
        if held is not None and take is not None:
            self._reductions += 1
            keys = self._reductions - 1, self._reductions
            return ShardedSum(self, span, algorithm, take, held, keys=keys)
        if codec is None:
            algorithm, _ = self.choice(algorithm, span.size)
        key = self._reductions
        if codec is not None or (algorithm in ALGORITHMS and self.world.costs.reduce is None):
            return MessageSum(self, span, algorithm, take, key=key, codec=codec)
        return RendezvousSum(self, span, algorithm, take, key=key)

    def gather(self, span: Span, algorithm: str, at: int) -> Reduction:
        """Make the plan by which all workers get what each owns of a span."""
        self._reductions += 1
        return Gathering(self, span, algorithm, at, key=self._reductions)

    def numbers(self, span: Span) -> Vector | None:
        """Return a span of the gradient; without numerics, only the control values exist."""
        if self.world.numerics:
            return span.of(self.gradient)
        first = span.start - self.role_map.gradient_size
        return self.gradient[first : first + span.size] if first >= 0 else None

    def share_theta(self, algorithm: str) -> None:
        """Do nothing: every simulated worker has its own memory."""

    async def differing(self, number: int) -> list[int]:
        """Compare one number of each worker, at a rendezvous; see ``Port``."""
        world, nbytes = self.world, 8 * (len(self.role_map.workers) - 1)
        found: list[list[int]] = []

        def on_result(wrong: list[int]) -> None:
            self.bytes_received += nbytes
            found.append(wrong)
            world.wake(self.rank)

        await self.catch_up()
        self.bytes_sent += nbytes
        place = world.rendezvous.at("differing", outliers, nbytes, along=True)
        place.arrive(self.worker, number, on_result)
        while not found:
            await self.arrival()
        return list(found[0])
