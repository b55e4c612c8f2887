"""Arrays pushed to a server and pulled by their names: ``psrt.ParameterServer`` beside MPI.

    mpirun -n 3 python apps/bench/keyed.py        # rank 0 serves two workers

The exchange is that of ps-lite's own benchmark (dmlc/ps-lite, tests/test_benchmark.cc): some number
of keys of one size each, all of which every worker pushes and pulls, again and again. In contrast
to that one the server computes: each push is a step of SGD. Candidates take turns in one run:

- mpi: a message each way for each key, in the fewest lines of mpi4py. The server takes what comes.
- keyed: ``push_pull`` of a dictionary.
- own: what ``psrt train`` does, where all keys are one vector, which is never copied.

Goodput is as ps-lite counts it: the bytes of all keys, once, by the time to push and pull them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from ps import PsrtTrips

import psrt
from psrt.bench.figures import Column, spread, table
from psrt.bench.race import Candidate, Pace, Run, race
from psrt.bench.ranks import RankTrack
from psrt.cli.bench import Report, run_script
from psrt.core.errors import ProtocolError
from psrt.core.units import size_text
from psrt.mpi.agreement import raise_on_all

#: Keys, and bytes of each.
GRID = ((1, 4 << 10), (40, 4 << 10), (400, 4 << 10), (40, 64 << 10), (40, 1 << 20), (10, 4 << 20))
#: Powers of two, so that all is exact: each push adds one to every number.
LR, GRADIENT = 0.5, -2.0
#: Round trips of a new ``ParameterServer`` that do not count: they touch its memory first.
FIRST = 5
#: What a run of round trips returns: seconds, and the numbers at the end where they are known.
Trips = Callable[[int], tuple[float, np.ndarray | None]]


def mpi_trips(comm: MPI.Comm, keys: int, size: int) -> Trips:
    """Return round trips of one message each way for each key of ``size`` elements."""
    values = np.zeros((keys, size), np.float32)
    gradients = np.full((keys, size), GRADIENT, np.float32)

    def serve(trips: int) -> None:
        pushed, status = np.empty(size, np.float32), MPI.Status()
        for _ in range(trips * keys * (comm.size - 1)):
            # In MPICH 5.0.2 over UCX a receive from anyone may wait for ever; a probe does not.
            comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            comm.Recv(pushed, status.source, status.tag)
            value = values[status.tag]
            value -= np.float32(LR) * pushed
            comm.Send(value, status.source, status.tag)

    def run(trips: int) -> tuple[float, np.ndarray | None]:
        values[:] = 0.0
        began = time.perf_counter()
        if comm.rank == 0:
            serve(trips)
            return 0.0, values
        for _ in range(trips):
            pulls = [comm.Irecv(value, 0, key) for key, value in enumerate(values)]
            pushes = [comm.Isend(gradient, 0, key) for key, gradient in enumerate(gradients)]
            MPI.Request.Waitall([*pulls, *pushes])
        return time.perf_counter() - began, None

    return run


def keyed_trips(comm: MPI.Comm, keys: int, size: int) -> Trips:
    """Return round trips of ``psrt.ParameterServer``, of which each run makes one."""
    names = [f"layer {key}" for key in range(keys)]
    gradients = {name: np.full(size, GRADIENT, np.float32) for name in names}

    def run(trips: int) -> tuple[float, np.ndarray | None]:
        shapes = dict.fromkeys(names, (size,))
        seconds = 0.0
        with psrt.ParameterServer(comm, shapes, servers=1, lr=LR) as server:
            if not server.serves:
                for _ in range(FIRST):
                    server.push_pull(gradients)
                began = time.perf_counter()
                for _ in range(trips):
                    server.push_pull(gradients)
                seconds = time.perf_counter() - began
        # Less the first ones, of which each worker has added as many.
        return seconds, server.theta - np.float32(FIRST * (comm.size - 1))

    return run


def own_trips(comm: MPI.Comm, keys: int, size: int) -> tuple[Trips, Callable[[], None]]:
    """Return round trips of psrt's own roles with one vector of all keys, and what ends them."""
    trips = PsrtTrips(comm, 1, keys * size, shards_per_server=None)

    def run(count: int) -> tuple[float, np.ndarray | None]:
        began = time.perf_counter()
        numbers = trips.run(count)
        seconds = time.perf_counter() - began
        return (0.0, numbers) if comm.rank == 0 else (seconds, None)

    return run, trips.close


def measure(
    comm: MPI.Comm,
    *,
    grid: tuple[tuple[int, int], ...] = GRID,
    rounds: int = 9,
    turn_s: float = 0.1,
) -> list[dict[str, Any]]:
    """Measure all candidates; collective.

    Args:
        comm: at least 2 ranks, of which the first serves.
        grid: keys, and bytes of each.
        rounds: turns of each candidate.
        turn_s: how long a turn is to take, in seconds.

    Returns:
        At rank 0 a row for each of the grid: seconds per round trip and ratios; an empty list
        elsewhere.

    Raises:
        ProtocolError: on every rank, if a push was lost or doubled.
    """
    rows = []
    for keys, nbytes in grid:
        wrong: list[str] = []
        own, close = own_trips(comm, keys, nbytes // 4)
        runs = {
            "mpi": mpi_trips(comm, keys, nbytes // 4),
            "keyed": keyed_trips(comm, keys, nbytes // 4),
            "own": own,
        }
        candidates = {
            name: Candidate(_checked(name, run, comm.size - 1, wrong)) for name, run in runs.items()
        }
        pace = Pace(turn_s, fewest=5, most=(1 << 20) // comm.size)
        found = race(candidates, rounds, track=RankTrack(comm), pace=pace)
        close()
        with raise_on_all(comm):
            if wrong:
                raise ProtocolError(wrong[0])
        rows.append(
            {
                "workers": comm.size - 1,
                "keys": keys,
                "bytes": nbytes,
                **{f"{name}_s": found.summary(name) for name in runs},
                "mpi_over_keyed": found.ratio("mpi", "keyed"),
                "own_over_keyed": found.ratio("own", "keyed"),
            }
        )
    return rows if comm.rank == 0 else []


def _checked(name: str, run: Trips, workers: int, wrong: list[str]) -> Run:
    """Return a function that makes round trips; what was lost or doubled is added to ``wrong``."""

    def checked(count: int) -> float:
        seconds, numbers = run(count)
        if numbers is not None and not (numbers == count * workers).all():
            wrong.append(f"{name} lost or doubled a push: {numbers.ravel()[:4]}")
        return seconds

    return checked


def _gbps(name: str) -> Column:
    """Return the column of a candidate's goodput."""
    return (
        f"{name} Gb/s",
        lambda row: f"{8e-9 * row['keys'] * row['bytes'] / row[f'{name}_s'].median:.2f}",
    )


COLUMNS: tuple[Column, ...] = (
    ("workers", "workers"),
    ("keys", "keys"),
    ("of", lambda row: size_text(row["bytes"])),
    ("keyed µs", spread("keyed_s", 1e6, 0)),
    *map(_gbps, ("keyed", "mpi", "own")),
    ("mpi / keyed", spread("mpi_over_keyed")),
    ("own / keyed", spread("own_over_keyed")),
)


def report(comm: MPI.Comm, rounds: int) -> Report:
    """Measure, and return the rows and their table."""
    rows = measure(comm, rounds=rounds)
    return {"push and pull by keys": (rows, table(rows, COLUMNS))}


if __name__ == "__main__":
    sys.exit(run_script(lambda given, comm: report(comm, given.rounds), __doc__, ranks=2))
