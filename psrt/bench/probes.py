"""Measure on this machine the times that ``fit`` needs.

An exchange is one of psrt's all-gathers between two ranks: each sends its half and receives the
other's. So α includes psrt's own work around a step, and predictions are of psrt's schedules, not
of a wire alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI

from psrt.bench.fit import Readings
from psrt.bench.race import Candidate, Key, Layout, layout, race, repeated
from psrt.bench.ranks import RankTrack, run_on
from psrt.mpi.communicator import Communicator

#: Bytes in each direction of an exchange, and bytes folded.
EXCHANGES = (64, 1 << 10, 16 << 10, 256 << 10, 2 << 20, 8 << 20)
FOLDS = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
#: Bytes of the vectors of all-reduces.
VECTORS = tuple(1 << power for power in range(10, 26, 2))
#: Seconds for all turns of one call of one size.
_BUDGET_S = 0.25


def read_machine(
    comm: MPI.Comm,
    present: Sequence[Sequence[int]],
    *,
    ranks: Sequence[int],
    rounds: int,
    exchanges: Sequence[int] = EXCHANGES,
    folds: Sequence[int] = FOLDS,
    vectors: Sequence[int] = VECTORS,
) -> Readings:
    """Measure everything that these ranks allow; collective.

    Args:
        comm: all ranks.
        present: by host, its ranks.
        ranks: numbers of ranks to measure all-reduces on.
        rounds: number of turns of each.
        exchanges: sizes of exchanges, in bytes in each direction.
        folds: sizes of folds, in bytes.
        vectors: sizes of all-reduces, in bytes.

    Returns:
        Medians on rank 0; elsewhere empty readings.
    """
    found: dict[str, dict[int, float]] = {"inside": {}, "between": {}, "fold": {}}
    for name, hosts in (("inside", 1), ("between", 2)):
        pair = layout(present, 2, hosts)
        if pair is not None:
            work = partial(exchange_times, placed=pair, sizes=exchanges, rounds=rounds)
            found[name] = run_on(comm, pair.ranks, work) or {}
    pair = layout(present, 2, 1) or layout(present, 2, 2)
    if pair is not None:
        work = partial(_folds, sizes=folds, rounds=rounds)
        found["fold"] = run_on(comm, pair.ranks, work) or {}
    node: dict[tuple[int, int], float] = {}
    library: dict[tuple[int, int], float] = {}
    for count in ranks:
        one_host = layout(present, count, 1)
        if one_host is not None:
            both = partial(_all_reduces, sizes=vectors, rounds=rounds)
            times = run_on(comm, one_host.ranks, both) or {}
            node |= {(count, n): s for (name, n), s in times.items() if name == "node"}
            library |= {(count, n): s for (name, n), s in times.items() if name == "library"}
    return Readings(**found, node=node, library=library) if comm.rank == 0 else Readings()


def exchange_times(
    comm: MPI.Comm, *, placed: Layout, sizes: Sequence[int], rounds: int
) -> dict[int, float]:
    """Return bytes in each direction → seconds of an exchange."""
    with Communicator(comm, host=placed.host_of(placed.ranks[comm.rank])) as communicator:
        buffer = communicator.empty(2 * max(sizes) // 4)
        calls = {m: partial(communicator.all_gather, buffer[: 2 * m // 4]) for m in sizes}
        return medians(comm, calls, rounds)


def _folds(comm: MPI.Comm, *, sizes: Sequence[int], rounds: int) -> dict[int, float]:
    """Return the seconds of combining vectors, by their bytes; all ranks at a time."""
    given, mine = (np.zeros(max(sizes) // 4, np.float32) for _ in range(2))
    calls = {m: partial(np.add, mine[: m // 4], given[: m // 4], mine[: m // 4]) for m in sizes}
    return medians(comm, calls, rounds)


def _all_reduces(
    comm: MPI.Comm, *, sizes: Sequence[int], rounds: int
) -> dict[tuple[str, int], float]:
    """Return the seconds of psrt's all-reduce on a host and of the library's."""
    with Communicator(comm, host=0) as communicator:
        window = communicator.empty(max(sizes) // 4)
        plain = np.zeros(max(sizes) // 4, np.float32)
        calls: dict[tuple[str, int], Callable[[], object]] = {}
        for nbytes in sizes:
            n = nbytes // 4
            calls["node", nbytes] = partial(communicator.all_reduce, window[:n], "sum", "node")
            # As ``auto`` would call it: with the check that all ranks make the same call.
            calls["library", nbytes] = partial(communicator.all_reduce, plain[:n], "sum", "mpi")
        return medians(comm, calls, rounds)


def medians(
    comm: MPI.Comm, calls: Mapping[Key, Callable[[], object]], rounds: int
) -> dict[Key, float]:
    """Race calls; return the median seconds of each; collective."""
    for call in calls.values():
        call()
    candidates = {key: Candidate(repeated(call), _BUDGET_S) for key, call in calls.items()}
    found = race(candidates, rounds, track=RankTrack(comm))
    return {key: found.summary(key).median for key in calls}
