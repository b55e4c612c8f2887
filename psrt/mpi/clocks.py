"""How far the clocks of hosts are apart: by the shortest of some messages there and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from psrt.mpi.tags import CLOCK

#: Sends the first array to a rank and then receives into the second; None leaves either away.
Swap: TypeAlias = Callable[
    [int, np.ndarray[Any, Any] | None, np.ndarray[Any, Any] | None],
    None,
]
#: Messages there and back, of which the shortest counts: a few in each turn of a host, since the
#: first one of a turn has waited for the hosts before it.
_TURNS, _PINGS = 10, 5


def compare_clocks(
    rank: int, leaders: Sequence[int], clock: Callable[[], float], swap: Swap
) -> tuple[float, float] | None:
    """Compare the clock of each host with rank 0's; collective over the leaders.

    Args:
        rank: this one.
        leaders: a rank of each host, rank 0 first.
        clock: returns the time, in seconds.
        swap: how two ranks exchange messages.

    Returns:
        The seconds that this rank's clock is ahead of rank 0's, and how far off that may be; None
        at ranks that are not leaders.
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
            # Theirs was taken somewhere in between: half of the shortest trip is the error.
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
    """Compare the clocks of all hosts; collective, and all ranks return the same.

    Args:
        comm: the ranks.
        hosts: the lowest rank of each rank's host.
        clock: returns the time, in seconds.
        progress: called after each message, for whoever watches whether ranks get on.

    Returns:
        By the lowest rank of a host, what ``compare_clocks`` says of it.
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
