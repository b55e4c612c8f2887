"""Measures the offsets of hosts' clocks: by the shortest of several round trips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from psrt.mpi.tags import CLOCK

#: Sends the first array to a rank and then receives into the second; None skips either.
Swap: TypeAlias = Callable[
    [int, np.ndarray[Any, Any] | None, np.ndarray[Any, Any] | None],
    None,
]
#: Round trips, of which the shortest counts: a few in each turn of a host, since the first one of
#: a turn includes waiting for the hosts before it.
_TURNS, _PINGS = 10, 5


def compare_clocks(
    rank: int, leaders: Sequence[int], clock: Callable[[], float], swap: Swap
) -> tuple[float, float] | None:
    """Compare the clock of each host with rank 0's; collective over the leaders.

    Args:
        rank: this one.
        leaders: a rank of each host, rank 0 first.
        clock: returns the time, in seconds.
        swap: exchanges messages between two ranks.

    Returns:
        The seconds by which this rank's clock is ahead of rank 0's, and the error bound; None on
        ranks that are not leaders.
    """
    nothing, theirs = np.empty(1), np.empty(1)
    best = (float("inf"), 0.0)
    for leader in [it for it in leaders[1:] if rank in (0, it)] * _TURNS:
        for _ in range(_PINGS):
            if rank == 0:
                swap(leader, None, nothing)
                swap(leader, np.array([clock()]), None)
                continue
            sent = clock()
            swap(0, np.array([sent]), None)
            swap(0, None, theirs)
            # Rank 0 read its clock at some time between this rank's send and receipt. The middle of
            # the two is off by at most half of the trip, so the shortest trip has the least error.
            took = clock() - sent
            best = min(best, (took, sent + took / 2 - theirs[0]))
    if rank == 0:
        return 0.0, 0.0
    return (float(best[1]), best[0] / 2) if rank in leaders else None


def clocks_of_hosts(
    comm: MPI.Comm,
    hosts: Sequence[int],
    clock: Callable[[], float],
    progress: Callable[[], object],
) -> dict[int, tuple[float, float]]:
    """Compare the clocks of all hosts; collective, and all ranks return the same result.

    Args:
        comm: the ranks.
        hosts: the lowest rank of each rank's host.
        clock: returns the time, in seconds.
        progress: called after each message, to report that this rank makes progress.

    Returns:
        The lowest rank of a host → the result of ``compare_clocks`` for it.
    """
    leaders = sorted(set(hosts))

    def swap(peer: int, mine: Any, theirs: Any) -> None:
        if mine is not None:
            comm.Send(mine, peer, CLOCK)
        if theirs is not None:
            comm.Recv(theirs, peer, CLOCK)
        progress()

    mine = compare_clocks(comm.rank, leaders, clock, swap)
    found = np.empty((comm.size, 2))
    comm.Allgather(np.array(mine or (np.nan, np.nan)), found)
    return {leader: (float(found[leader, 0]), float(found[leader, 1])) for leader in leaders}
