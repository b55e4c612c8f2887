"""What a call of 1 KB costs beyond its messages, on two ranks.

    mpirun -n 2 python apps/bench/call.py

A call's time is Python and messages together, so the messages are timed by themselves, turn by
turn, and taken off round by round:

- Between hosts the butterfly of two ranks is one exchange of the vector and one sum. Bare, that
  is ``Sendrecv`` and ``np.add``. What the call takes beyond them is psrt's.
- On one host there are no messages but looks at a peer's flag, which nobody can time apart from
  the call. The library's own call stands for them: it needs its messages, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from psrt.bench.figures import Column, Summary, spread, table
from psrt.bench.race import Candidate, Layout, Readings, layout, race, repeated
from psrt.bench.ranks import RankTrack, run_on
from psrt.cli.bench import Report, run_script
from psrt.cli.bench_allreduce import hosts_present
from psrt.mpi.communicator import Communicator

NBYTES = 1024
#: Microseconds of a call beyond its messages that psrt wants to stay below.
WANTED_US = 15.0
#: By number of hosts: what is timed.
_FIGURES = {
    1: "auto on one host, beyond MPI.Allreduce",
    2: "butterfly between hosts, beyond a bare Sendrecv and np.add",
}


def measure(
    comm: MPI.Comm, present: Sequence[Sequence[int]], *, rounds: int = 9
) -> list[dict[str, Any]]:
    """Measure both; collective.

    Args:
        comm: all ranks.
        present: the ranks of each host.
        rounds: turns of each.

    Returns:
        At rank 0 a row per figure: ``call_s``, ``messages_s`` and ``own_s``, their difference;
        an empty list elsewhere.
    """
    rows: list[dict[str, Any]] = []
    for hosts, figure in _FIGURES.items():
        pair = layout(present, 2, hosts)
        if pair is None:
            continue
        found = run_on(comm, pair.ranks, partial(_compare, pair=pair, rounds=rounds))
        if found is not None:
            rows.append({"figure": figure, "hosts": hosts, "bytes": NBYTES, **summarize(found)})
    return rows if comm.rank == 0 else []


def _compare(comm: MPI.Comm, *, pair: Layout, rounds: int) -> Readings[str]:
    with Communicator(comm, host=pair.host_of(pair.ranks[comm.rank])) as communicator:
        buffer = communicator.empty(NBYTES // 4)
        algorithm = "butterfly" if pair.apart else "auto"
        call = partial(communicator.all_reduce, buffer, "sum", algorithm)
        bare = _bare_exchange(comm) if pair.apart else _library(comm)
        calls: dict[str, Callable[[], object]] = {"call": call, "messages": bare}
        for make in calls.values():
            make()
        candidates = {name: Candidate(repeated(make)) for name, make in calls.items()}
        return race(candidates, rounds, track=RankTrack(comm))


def summarize(found: Readings[str]) -> dict[str, Summary]:
    """Return the calls, the messages, and their difference round by round.

    >>> rounds = [{"call": 3.0, "messages": 1.0}, {"call": 5.0, "messages": 3.0}]
    >>> summarize(Readings(rounds))["own_s"].median
    2.0
    """
    own = [call - messages for call, messages in found.pairs("call", "messages")]
    return {
        "call_s": found.summary("call"),
        "messages_s": found.summary("messages"),
        "own_s": Summary.of(own),
    }


def _bare_exchange(comm: MPI.Comm) -> Callable[[], object]:
    """Return a call that does the least that a butterfly of two ranks needs."""
    mine, given = (np.zeros(NBYTES // 4, np.float32) for _ in range(2))
    peer = 1 - comm.rank

    def exchange() -> None:
        comm.Sendrecv(mine, peer, 0, given, peer, 0)
        np.add(mine, given, mine)

    return exchange


def _library(comm: MPI.Comm) -> Callable[[], object]:
    return partial(comm.Allreduce, MPI.IN_PLACE, np.zeros(NBYTES // 4, np.float32), MPI.SUM)


COLUMNS: tuple[Column, ...] = (
    ("a call of 1 KB, 2 ranks", "figure"),
    ("call µs", spread("call_s", 1e6, 1)),
    ("messages µs", spread("messages_s", 1e6, 1)),
    ("psrt's own µs", spread("own_s", 1e6, 1)),
    ("wanted", lambda _: f"≤ {WANTED_US:g}"),
)


def report(comm: MPI.Comm, rounds: int) -> Report:
    """Measure, and return the rows and their table."""
    rows = measure(comm, hosts_present(comm), rounds=rounds)
    return {"a call": (rows, table(rows, COLUMNS))}


if __name__ == "__main__":
    sys.exit(run_script(lambda given, comm: report(comm, given.rounds), __doc__, ranks=2))
