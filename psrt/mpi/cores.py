"""Gives each worker of a host its own share of the cores while they train.

With more ranks than cores the kernel sometimes wakes a worker on the core of a computing worker
while another core is idle; that step then takes as long as two. A server is not bound, so it can
run wherever a worker waits.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
from mpi4py import MPI

Cores = frozenset[int]


def cores_of_worker(
    comm: MPI.Comm, workers: Collection[int], machine: Sequence[int]
) -> Cores | None:
    """Return the cores on which this rank should compute; collective.

    Args:
        comm: the ranks of the job.
        workers: the ranks that compute.
        machine: the ranks on this rank's machine, in order.

    Returns:
        None if this rank is not a worker, if its machine has a core for each rank or too few for
        its workers, or if its ranks were already bound to different cores.
    """
    allowed = _allowed()
    bound = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([zlib.crc32(repr(allowed).encode())], np.int64), bound)
    here = bound[list(machine)]
    if not len(machine) > len(allowed) > 0 or (here != bound[comm.rank]).any():
        return None
    return share(allowed, [rank in workers for rank in machine], machine.index(comm.rank))


def share(cores: list[int], computes: Sequence[int], rank: int) -> Cores | None:
    """Split cores among the ranks that compute; return those of one rank, None for none.

    >>> [share([0, 1, 4, 5, 6], [0, 1, 0, 1], rank) for rank in (0, 1, 3)]
    [None, frozenset({0, 1}), frozenset({4, 5})]
    >>> share([0], [1, 1], 0)
    """
    each = len(cores) // max(1, sum(computes))
    if not (computes[rank] and each):
        return None
    at = sum(computes[:rank]) * each
    return frozenset(cores[at : at + each])


@contextmanager
def kept_on(cores: Cores | None) -> Iterator[None]:
    """Bind this thread, and those that it starts, to some cores; None changes nothing."""
    before = _allowed()
    if cores is None or not before:
        yield
        return
    with suppress(OSError):  # the cores may have been taken away meanwhile
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


def _allowed() -> list[int]:
    """Return the cores that this thread may run on; empty if the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
