"""What a call of 1 KB costs beyond its messages, on two ranks.

A call's time is Python and messages together, so the messages are timed by themselves, turn by
turn, and taken off round by round:

- Between hosts the butterfly of two ranks is one exchange of the vector and one fold. Bare, that
  is ``Sendrecv`` and ``np.add``. What the call takes beyond them is psrt's.
- On one host there are no messages but looks at a peer's flag, which nobody can time apart from
  the call. The library's own call stands for them: it cannot do without its messages either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from psrt.bench.asleep import work_while_others_sleep
from psrt.bench.measure import Summary, format_table
from psrt.bench.rounds import Entry, pairs
from psrt.bench.seats import Seats, seats
from psrt.bench.turns import take_turns
from psrt.collective.analysis.machine import MachineCosts
from psrt.mpi.group import Group

NBYTES = 1024
#: By number of hosts: what is timed.
_FIGURES = {
    1: "auto on one host, beyond MPI.Allreduce",
    2: "butterfly between hosts, beyond a bare Sendrecv and np.add",
}
_COLUMNS = ("call_s", "messages_s", "own_s")


def measure(
    comm: MPI.Comm, present: Sequence[Sequence[int]], *, costs: MachineCosts, rounds: int = 9
) -> list[dict[str, Any]]:
    """Measure both; collective.

    Args:
        comm: all ranks.
        present: the ranks of each host.
        costs: by which ``auto`` picks.
        rounds: turns of each.

    Returns:
        At rank 0 a row per figure: ``call_s``, ``messages_s`` and ``own_s``, their difference;
        an empty list elsewhere.
    """
    rows: list[dict[str, Any]] = []
    for hosts, figure in _FIGURES.items():
        pair = seats(present, 2, hosts)
        if pair is None:
            continue
        work = partial(_compare, seats=pair, costs=costs, rounds=rounds)
        found = work_while_others_sleep(comm, pair.ranks, work)
        if found is not None:
            rows.append({"figure": figure, "hosts": hosts, "bytes": NBYTES, **found})
    return rows if comm.rank == 0 else []


def _compare(
    comm: MPI.Comm, *, seats: Seats, costs: MachineCosts, rounds: int
) -> dict[str, Summary]:
    apart = len(seats.hosts) > 1
    with Group(comm, costs=costs, host=seats.host_of(seats.ranks[comm.rank])) as group:
        buffer = group.empty(NBYTES // 4)
        call = partial(group.allreduce, buffer, "sum", "butterfly" if apart else "auto")
        bare = _bare_exchange(comm) if apart else _library(comm)
        call()
        bare()
        rows = take_turns(comm, {"call": Entry(call), "messages": Entry(bare)}, rounds)
        return summarize(rows)


def summarize(rounds: list[dict[str, float]]) -> dict[str, Summary]:
    """Return the calls, the messages, and their difference round by round.

    >>> summarize([{"call": 3.0, "messages": 1.0}, {"call": 5.0, "messages": 3.0}])["own_s"].median
    2.0
    """
    both = pairs(rounds, "call", "messages")
    return {
        "call_s": Summary.of([call for call, _ in both]),
        "messages_s": Summary.of([messages for _, messages in both]),
        "own_s": Summary.of([call - messages for call, messages in both]),
    }


def _bare_exchange(comm: MPI.Comm) -> Any:
    """Return a call that does what a butterfly of two ranks cannot do without."""
    mine, given = (np.zeros(NBYTES // 4, np.float32) for _ in range(2))
    peer = 1 - comm.rank

    def exchange() -> None:
        comm.Sendrecv(mine, peer, 0, given, peer, 0)
        np.add(mine, given, mine)

    return exchange


def _library(comm: MPI.Comm) -> Any:
    return partial(comm.Allreduce, MPI.IN_PLACE, np.zeros(NBYTES // 4, np.float32), MPI.SUM)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as text."""
    return format_table(
        ["a call of 1 KB, 2 ranks", "call µs", "messages µs", "psrt's own µs"],
        [[row["figure"], *(row[name].format(1e6, 1) for name in _COLUMNS)] for row in rows],
    )
