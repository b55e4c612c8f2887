"""Push and pull of one vector between workers and servers: psrt beside the simplest loop.

    mpirun -n 5 python apps/bench/ps.py         # up to 2 servers and 3 workers

The simplest loop is a naive first version: a server posts an ``Irecv`` per worker, takes
whichever completes (``Waitany``), does ``w -= lr * g`` and ``Send``s w back; a worker ``Send``s
and ``Recv``s. In ``sync`` the server waits for all of them (``Waitall``) and takes their mean. Both
do the same updates with the same numbers, turn by turn in one run, and the result of both is
checked: whole numbers, so it is exact in any order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
from mpi4py import MPI
from shards import add_flag, chosen_shards, read_shards

from psrt.bench.figures import Column, spread, table
from psrt.bench.race import Candidate, Pace, Run, race
from psrt.bench.ranks import RankTrack, run_on
from psrt.cli.bench import Report, run_script
from psrt.cli.bench_allreduce import named, vector_sizes
from psrt.cli.flags import FlagParser
from psrt.config import TrainConfig, modes, resolve
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError, ProtocolError
from psrt.core.partition import even_spans
from psrt.core.progress import PROGRESS
from psrt.core.units import size_text
from psrt.faults.vitals import HERE
from psrt.job.build import role_map_for
from psrt.mpi.agreement import raise_on_all
from psrt.mpi.cores import kept_on
from psrt.mpi.port import MpiPort
from psrt.optim import Schedule
from psrt.optim.table import Always, Sgd
from psrt.rows.suggest import did_you_mean
from psrt.runtime.server import Server
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.updater import Updater
from psrt.sync import policy_for
from psrt.transport import drive
from psrt.transport.port import ThetaMemory
from psrt.views.explain.inputs import read_ranks

#: Bytes of the vector that goes back and forth.
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
#: (servers, workers).
LAYOUTS = ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3))
#: By mode, whether an update takes one gradient of every worker.
MODES = {"async": False, "sync": True}
#: A power of two, so that θ stays whole and exact: each push adds one to every element.
_LR = 0.5
_GRADIENT = -2.0
#: Exact float32 whole numbers end at 2²⁴.
_MOST_TRIPS = 1 << 20


class PsrtTrips:
    """Round trips over psrt's own roles and SGD."""

    def __init__(
        self,
        comm: MPI.Comm,
        servers: int,
        n: int,
        *,
        mode: str = "async",
        shards_per_server: int | None = 1,
    ) -> None:
        roles = tuple(range(servers)), tuple(range(servers, comm.size))
        self._mode = mode
        if shards_per_server is None:
            config = resolve(TrainConfig(mode=cast(Any, mode), servers=servers), ranks=comm.size)
            shards_per_server = chosen_shards(comm, config, n, compute_s=0.0)
        #: Of each server.
        self.shards = shards_per_server
        self._role_map = role_map_for(n, *roles, shards_per_server=shards_per_server)
        self._port = MpiPort(comm, self._role_map, theta_memory=ThetaMemory.LANDING)
        self._port.gradient[:] = _GRADIENT

    def run(self, trips: int) -> Vector:
        """Make that many round trips with every worker; return this rank's final numbers."""
        port, role_map = self._port, self._role_map
        # Else a wait in each of many round trips would pass for one that never ends.
        HERE.pulse = lambda: (port.bytes_sent, port.bytes_received)
        mine = role_map.shards_of(port.rank)
        if not mine:
            port.theta[:] = 0.0
            with kept_on(port.cores):
                drive(self._work(trips))
            return port.theta
        shards = [self._shard_server(number) for number in mine]
        drive(Server(port, shards).run())
        return np.concatenate([it.shard.theta for it in shards])

    def _shard_server(self, number: int) -> ShardServer:
        port, size = self._port, self._role_map.spans[number].size
        updater = Updater(size, Sgd().make(size), Schedule(Always(), _LR, epochs=1))
        workers = len(self._role_map.workers)
        numbers = Shard(
            port.versions[number],
            np.zeros(size, np.float32),
            updater,
            payload=partial(port.payload, number),
            workers=workers,
            by_samples=False,
        )
        return ShardServer(port, number, numbers, policy_for(modes.MODES[self._mode], workers))

    async def _work(self, trips: int) -> None:
        strategy = PushPull(self._port)
        clock = 0
        while clock < trips:
            clock = await strategy.step(Step(clock, 1, 0.0))
        await strategy.leave(clock)

    def close(self) -> None:
        """Free the port."""
        self._port.close()


class PlainTrips:
    """Round trips over the simplest loop of blocking calls."""

    #: Of each server.
    shards = 1

    def __init__(self, comm: MPI.Comm, servers: int, n: int, *, mode: str = "async") -> None:
        self._comm = comm
        self._rounds = MODES[mode]
        self._servers = servers
        self._spans = even_spans(n, servers)
        self._is_server = comm.rank < servers
        size = self._spans[comm.rank].size if self._is_server else n
        self._w = np.zeros(size, np.float32)
        self._g = np.full(0 if self._is_server else n, _GRADIENT, np.float32)
        workers = comm.size - servers if self._is_server else 0
        self._buffers = [np.empty(size, np.float32) for _ in range(workers)]

    def run(self, trips: int) -> Vector:
        """Make that many round trips with every worker; return this rank's final numbers."""
        self._w[:] = 0.0
        if self._is_server and self._rounds:
            self._serve_rounds(trips)
        elif self._is_server:
            self._serve(trips)
        else:
            for _ in range(trips):
                for server, span in enumerate(self._spans):
                    self._comm.Send(span.of(self._g), server)
                for server, span in enumerate(self._spans):
                    self._comm.Recv(span.of(self._w), server)
        return self._w

    def _serve(self, trips: int) -> None:
        comm, w, buffers, first = self._comm, self._w, self._buffers, self._servers
        requests = [comm.Irecv(buffer, first + i) for i, buffer in enumerate(buffers)]
        left = [trips] * len(buffers)
        for _ in range(trips * len(buffers)):
            i = MPI.Request.Waitany(requests)
            w -= np.float32(_LR) * buffers[i]
            comm.Send(w, first + i)
            left[i] -= 1
            if left[i]:
                requests[i] = comm.Irecv(buffers[i], first + i)

    def _serve_rounds(self, trips: int) -> None:
        comm, w, buffers, first = self._comm, self._w, self._buffers, self._servers
        for _ in range(trips):
            MPI.Request.Waitall([comm.Irecv(one, first + i) for i, one in enumerate(buffers)])
            total = buffers[0]
            for one in buffers[1:]:
                total += one
            w -= np.float32(_LR) * (total / np.float32(len(buffers)))
            for i in range(len(buffers)):
                comm.Send(w, first + i)

    def close(self) -> None:
        """Do nothing."""


#: The candidates, by name.
CANDIDATES: dict[str, Callable[..., PsrtTrips | PlainTrips]] = {
    "psrt": PsrtTrips,
    "plain": PlainTrips,
}


def measure(
    comm: MPI.Comm,
    *,
    sizes: tuple[int, ...] = SIZES,
    layouts: tuple[tuple[int, int], ...] = LAYOUTS,
    mode: str = "async",
    shards_per_server: int | None = None,
    rounds: int = 9,
    turn_s: float = 0.1,
) -> list[dict[str, Any]]:
    """Measure every layout that fits into ``comm``; collective.

    Args:
        comm: at least 2 ranks.
        sizes: bytes of the vector.
        layouts: (servers, workers).
        mode: async or sync.
        shards_per_server: of psrt's, None for as many as training would choose; the plain loop has
            one.
        rounds: turns of each candidate.
        turn_s: how long one turn is to take, in seconds.

    Returns:
        At rank 0 a row per layout and size: seconds per round trip of each candidate, and their
        ratio, as medians with quartiles; an empty list elsewhere.

    Raises:
        ProtocolError: on every rank, if a push was lost or doubled.
    """
    rows: list[dict[str, Any]] = []
    fitting = [it for it in layouts if sum(it) <= comm.size]
    cases = [(*layout, size) for layout in fitting for size in sizes]
    for servers, workers, size in PROGRESS.each(cases, "measuring", "case"):
        work = partial(
            _compare,
            servers=servers,
            mode=mode,
            shards_per_server=shards_per_server,
            n=size // 4,
            rounds=rounds,
            turn_s=turn_s,
        )
        row = run_on(comm, range(servers + workers), work)
        rows += [] if row is None else [row]
    return rows if comm.rank == 0 else []


def _compare(
    comm: MPI.Comm,
    *,
    servers: int,
    mode: str,
    shards_per_server: int | None,
    n: int,
    rounds: int,
    turn_s: float,
) -> dict[str, Any]:
    makers = CANDIDATES | {"psrt": partial(PsrtTrips, shards_per_server=shards_per_server)}
    trips = {name: make(comm, servers, n, mode=mode) for name, make in makers.items()}
    wrong: list[str] = []
    each = 1 if MODES[mode] else comm.size - servers
    candidates = {
        name: Candidate(_checked(trip, comm, servers, each, wrong)) for name, trip in trips.items()
    }
    pace = Pace(turn_s, fewest=5, most=_MOST_TRIPS // comm.size)
    found = race(candidates, rounds, track=RankTrack(comm), pace=pace)
    for trip in trips.values():
        trip.close()
    with raise_on_all(comm):
        if wrong:
            raise ProtocolError(wrong[0])
    return {
        "mode": mode,
        "servers": servers,
        "shards_per_server": trips["psrt"].shards,
        "workers": comm.size - servers,
        "bytes": 4 * n,
        "psrt_s": found.summary("psrt"),
        "plain_s": found.summary("plain"),
        "plain_over_psrt": found.ratio("plain", "psrt"),
    }


def _checked(
    trip: PsrtTrips | PlainTrips, comm: MPI.Comm, servers: int, each: int, wrong: list[str]
) -> Run:
    """Return a function that makes round trips; only the workers' times count.

    A server that did not apply every push exactly once reports it in ``wrong``. A round trip of
    every worker adds ``each`` to all parameters.
    """

    def run(count: int) -> float:
        start = time.perf_counter()
        numbers = trip.run(count)
        seconds = time.perf_counter() - start
        if comm.rank >= servers:
            return seconds
        if not (numbers == count * each).all():
            wrong.append(f"{type(trip).__name__} lost or doubled a push: {numbers[:4]}")
        return 0.0

    return run


COLUMNS: tuple[Column, ...] = (
    ("servers", "servers"),
    ("workers", "workers"),
    ("bytes", lambda row: size_text(row["bytes"])),
    ("shards", "shards_per_server"),
    ("psrt µs", spread("psrt_s", 1e6, 1)),
    ("plain loop µs", spread("plain_s", 1e6, 1)),
    ("plain / psrt", spread("plain_over_psrt")),
)


def add_flags(parser: FlagParser) -> None:
    """Let users choose what is measured."""
    add_flag(parser)
    add = parser.add_argument
    add(
        "--sizes",
        metavar="BYTES",
        help="vector sizes: A,B,... or FIRST:LAST, each 4 times the one before (1K,64K,1M,16M)",
    )
    add(
        "--mode",
        metavar="NAME",
        default="async",
        help="of psrt, and of the plain loop: sync or async (async)",
    )
    add("--servers", metavar="N,...", help="numbers of servers (1,2 as far as there are ranks)")
    add("--workers", metavar="N,...", help="numbers of workers (1,2,3 as far as there are ranks)")


def report(given: argparse.Namespace, comm: MPI.Comm) -> Report:
    """Measure, and return the rows and their table.

    Raises:
        ConfigError: on every rank, for invalid flags.
    """
    if given.mode not in MODES:
        guess = did_you_mean(given.mode, MODES)
        raise ConfigError(f"--mode {given.mode}, expected {' or '.join(MODES)}{guess}")
    rows = measure(
        comm,
        sizes=tuple(vector_sizes(given.sizes, SIZES)),
        layouts=_layouts(given, comm.size),
        mode=given.mode,
        shards_per_server=read_shards(given),
        rounds=given.rounds,
    )
    return {"push and pull": (rows, table(rows, COLUMNS))}


def _layouts(given: argparse.Namespace, ranks: int) -> tuple[tuple[int, int], ...]:
    """Return numbers of servers and workers."""
    if given.servers is None and given.workers is None:
        return LAYOUTS
    servers = named("servers", read_ranks, given.servers or "1")
    workers = named("workers", read_ranks, given.workers or "1")
    needed = max(servers) + max(workers)
    if needed > ranks:
        raise ConfigError(
            f"{max(servers)} servers and {max(workers)} workers need {needed} ranks, got {ranks}"
        )
    return tuple(product(servers, workers))


if __name__ == "__main__":
    sys.exit(run_script(report, __doc__, ranks=2, flags=add_flags))
