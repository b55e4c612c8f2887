"""A rank's part in what all workers do together in virtual time: sums, and comparing numbers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from types import coroutine
from typing import TYPE_CHECKING

import numpy as np

from psrt.arrays import Vector
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.choose import choose
from psrt.collective.registry import AUTO, LIBRARY, NODE
from psrt.errors import ConfigError
from psrt.partition import Span
from psrt.simulation.network import Channel
from psrt.simulation.sums import RendezvousSum, ScheduleSum
from psrt.transport.majority import outliers
from psrt.transport.port import AS_ASKED, CONTROL, Reduction, RoleMap, Take

if TYPE_CHECKING:
    from psrt.simulation.simulator import Simulator


@coroutine
def suspend() -> Generator[None, None, None]:
    """Hand control to the scheduler, which resumes the role later."""
    yield


class CollectivePort:
    """What a port in virtual time has for collective operations; see ``Port``."""

    def __init__(self, world: Simulator, rank: int) -> None:
        """Set up without spans."""
        self.world = world
        self.rank = rank
        self.role_map: RoleMap = world.role_map
        #: A worker's number, −1 at a server.
        self.worker = -1 if (worker := self.role_map.worker_of(rank)) is None else worker
        self.bytes_sent = 0
        self.bytes_received = 0
        #: (n + CONTROL,) at a worker; without numerics the control values alone; empty at a server.
        self.gradient: Vector = np.zeros(
            0 if self.worker < 0 else CONTROL + (self.role_map.n if world.numerics else 0),
            np.float32,
        )
        #: Whether the role waits for something to arrive.
        self.waiting = False
        #: Whether computing time passes.
        self.computing = False
        #: Called when computing time is over.
        self._after_compute: list[Callable[[], object]] = []
        #: By rank, the way there; made when first taken.
        self._channels: dict[int, Channel] = {}
        #: Spans that have arrived and were not taken yet, by source and key.
        self._spans: defaultdict[tuple[int, int], deque[tuple[Vector | None, int]]]
        self._spans = defaultdict(deque)
        self._reductions = 0

    def after_compute(self, action: Callable[[], object]) -> None:
        """Act now or, where work asks for it, when the computing time of the work is over.

        In virtual time the work is done first and its time passes afterwards, so what the work
        begins before its end would begin too early by up to all of that time.
        """
        if self.computing:
            self._after_compute.append(action)
        else:
            action()

    def channel(self, to: int) -> Channel:
        """Return the way to rank ``to``."""
        return self._channels.setdefault(to, Channel(self.rank, to))

    def post(self, to: int, key: int, numbers: Vector | None, nbytes: int) -> None:
        """Send numbers to rank ``to``, for what it knows as ``key``; they are copied."""
        world, copy = self.world, None if numbers is None else numbers.copy()
        self.bytes_sent += nbytes
        arrive = world.ports[to].keep_span
        world.network.send(self.channel(to), nbytes, arrive, (self.rank, key, copy, nbytes))

    def keep_span(self, span: tuple[int, int, Vector | None, int]) -> None:
        """Keep what has arrived until it is taken."""
        source, key, numbers, nbytes = span
        self._spans[source, key].append((numbers, nbytes))
        self.world.wake(self.rank)

    def take_span(self, source: int, key: int) -> Sequence[Vector | None]:
        """Return the next numbers that rank ``source`` posted for ``key``, if they are here."""
        waiting = self._spans[source, key]
        if not waiting:
            return ()
        numbers, nbytes = waiting.popleft()
        self.bytes_received += nbytes
        return (numbers,)

    async def arrival(self) -> None:
        """Suspend until something has arrived."""
        self.waiting = True
        await suspend()

    def choice(self, algorithm: str, n: int) -> tuple[str, str]:
        """Return the all-reduce that ``algorithm`` comes to.

        ``auto`` picks among hosts of one rank each; but where the costs say how long a sum takes,
        they are those of a run on one host, and so is the choice. Virtual ranks are on no host, so
        there is no ``node+NAME``; ``mpi`` is the library's own secret, so it runs only where its
        time was measured.
        """
        workers, timed = len(self.role_map.workers), self.world.costs.reduce is not None
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
        self._reductions += 1  # counts alike on all workers, which make the same in the same order
        algorithm, _ = self.choice(algorithm, span.size)
        by_messages = algorithm in ALGORITHMS and self.world.costs.reduce is None
        plan = ScheduleSum if by_messages else RendezvousSum
        return plan(self, span, algorithm, take, key=self._reductions)

    def numbers(self, span: Span) -> Vector | None:
        """Return a span of the gradient; without numerics there are the control values alone."""
        if self.world.numerics:
            return span.of(self.gradient)
        return self.gradient[:] if span.start >= self.role_map.n else None

    def share_theta(self, algorithm: str) -> None:
        """Do nothing: every worker has its own memory."""

    async def differing(self, number: int) -> list[int]:
        """Meet where all workers compare their numbers; see ``Port``."""
        world, nbytes = self.world, 8 * (len(self.role_map.workers) - 1)
        found: list[list[int]] = []

        def on_result(wrong: list[int]) -> None:
            self.bytes_received += nbytes
            found.append(wrong)
            world.wake(self.rank)

        self.bytes_sent += nbytes
        place = world.rendezvous.at("differing", outliers, nbytes, along=True)
        place.arrive(self.worker, number, on_result)
        while not found:
            await self.arrival()
        return list(found[0])
