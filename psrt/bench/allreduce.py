"""All-reduces of every algorithm beside the library's and beside a copy of the buffer.

On one host, and among ranks that are on different hosts or count as being on some; see
``contest`` for who takes part. Two speeds are usual:

- *algbw*, the bytes of the vector over the time: what the caller sees;
- *busbw*, algbw·2(p − 1)/p: what a wire would see if no more were sent than any all-reduce must.
  It can be compared between numbers of ranks, and with the speed of the wire.

Between hosts a ring takes 2(p − 1)/p·nβ at least. **Which β**: in a ring every rank sends and
receives at the same time, all ranks at once, and where they share cores, memory or a wire each
gets less of it than two ranks that have it to themselves. So β is that of ``exchange``, in which
each rank sends n bytes to the next one while it receives n from the last: nβ is its time, read in
the same rounds. What is folded on the way (γ) comes on top and counts as the ring's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from psrt.bench.allreduce_rows import ALL_BETWEEN_UP_TO, Race, rows_of
from psrt.bench.asleep import work_while_others_sleep
from psrt.bench.contest import hold
from psrt.bench.seats import Seats, seats
from psrt.collective.analysis.machine import MachineCosts
from psrt.errors import ConfigError

_K, _M = 1 << 10, 1 << 20
SIZES = tuple(_K << power for power in range(0, 17, 2))
RANKS = (2, 4)
HOSTS = (1, 2, 4)
#: Between hosts, larger sizes are of interest.
_BETWEEN_FROM = _M
#: Largest vector: a schedule may want a few of them besides.
LARGEST = 1 << 30


def layouts(
    present: Sequence[Sequence[int]], ranks: Sequence[int], hosts: Sequence[int]
) -> list[Seats]:
    """Return every number of ranks on every number of hosts, as far as they can be seated.

    Raises:
        ConfigError: if none can.
    """
    found = [seats(present, p, h) for h in hosts for p in ranks]
    if not any(found):
        raise ConfigError(
            f"{sum(map(len, present))} ranks do not seat {_either(ranks)} ranks evenly on "
            f"{_either(hosts)} hosts"
        )
    return [layout for layout in found if layout is not None]


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))


def sizes_on(layout: Seats, sizes: Sequence[int]) -> list[int]:
    """Return which sizes are measured on a layout: between hosts the large ones, if any are."""
    large = [nbytes for nbytes in sizes if nbytes >= _BETWEEN_FROM]
    return list(large if len(layout.hosts) > 1 and large else sizes)


def measure(
    comm: MPI.Comm,
    places: Sequence[Seats],
    *,
    costs: MachineCosts,
    sizes: Sequence[int] = SIZES,
    rounds: int = 9,
) -> list[dict[str, Any]]:
    """Verify and measure every contestant; collective.

    Args:
        comm: all ranks.
        places: who takes part, see ``layouts``.
        costs: by which ``auto`` picks, and times are predicted.
        sizes: bytes of the vector of float32, each a multiple of 4.
        rounds: turns of what promises are about; others have fewer at large sizes.

    Returns:
        At rank 0 the rows, see ``rows_of``; an empty list elsewhere.

    Raises:
        ProtocolError: on every rank, if a sum is wrong.
    """
    rows: list[dict[str, Any]] = []
    for layout in places:
        for nbytes in sizes_on(layout, sizes):
            only_key = len(layout.hosts) > 1 and nbytes > ALL_BETWEEN_UP_TO
            work = partial(
                hold, seats=layout, nbytes=nbytes, rounds=rounds, costs=costs, only_key=only_key
            )
            outcome = work_while_others_sleep(comm, layout.ranks, work)
            if outcome is not None:
                rows += rows_of(Race(layout, nbytes, outcome), costs)
    return rows if comm.rank == 0 else []
