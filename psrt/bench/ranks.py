"""A race among MPI ranks: their barriers, and sleep for ranks that do not take part."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from psrt.core.errors import ConfigError, PsrtError
from psrt.mpi.agreement import raise_on_all
from psrt.transport.backoff import Backoff

Result = TypeVar("Result")
#: Longest wait for other ranks, in seconds.
_TIMEOUT_S = 3600.0
#: Number of yields before a wait would sleep.
_NEVER_SLEEP = 1 << 30


class RankTrack:
    """The ranks of a communicator; see ``psrt.bench.race.Track``.

    No wait is one of MPI's own. Those spin, and MPICH's never yield: with more ranks than cores
    each lasts a time slice of the scheduler, a thousand times its own time, and so would the first
    call after it.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def meet(self) -> None:
        """Meet asleep, so that ranks still at work have the cores; then awake, to start at once."""
        wait(self._comm.Ibarrier())
        wait(self._comm.Ibarrier(), yields=_NEVER_SLEEP)

    def slowest(self, seconds: list[float]) -> list[float]:
        """Return, place by place, the largest number of any rank, on every rank; collective."""
        largest = np.array(seconds)
        wait(self._comm.Iallreduce(MPI.IN_PLACE, largest, MPI.MAX))
        return [float(value) for value in largest]


def wait(request: MPI.Request, *, yields: int = 50) -> None:
    """Wait without keeping a core from other ranks.

    Args:
        request: of something that all ranks take part in.
        yields: polls that yield the core, before the wait sleeps between polls.
    """
    backoff = Backoff(oversubscribed=True, timeout_s=_TIMEOUT_S, yields=yields)
    backoff.wait(request.Test, lambda: "the other ranks")


def run_on(
    comm: MPI.Comm, ranks: Sequence[int], work: Callable[[MPI.Comm], Result]
) -> Result | None:
    """Let some ranks work on their own communicator while the others sleep; collective.

    Args:
        comm: all ranks.
        ranks: the ranks that work, in their order on that communicator.
        work: their work.

    Returns:
        What ``work`` returned, None on the ranks that slept.

    Raises:
        PsrtError: on all ranks, if those that worked agreed on one.
    """
    part = part_of(comm, ranks)
    result, error = None, None
    try:
        result = None if part is None else work(part)
    except PsrtError as failure:
        if not failure.agreed:  # the others may wait for this rank: let the job end
            raise
        error = failure
    wait(comm.Ibarrier())
    with raise_on_all(comm):
        if error is not None:
            raise error
    if part is not None:
        part.Free()
    return result


def part_of(comm: MPI.Comm, ranks: Sequence[int]) -> MPI.Comm | None:
    """Return a communicator of some ranks, in their order, None on the others; collective.

    Raises:
        ConfigError: on all ranks, if ``comm`` has too few ranks.
    """
    if max(ranks) >= comm.size:
        raise ConfigError(f"this needs {max(ranks) + 1} ranks or more, there are {comm.size}")
    takes_part = comm.rank in ranks
    key = list(ranks).index(comm.rank) if takes_part else 0
    part = comm.Split(0 if takes_part else MPI.UNDEFINED, key)
    return part if takes_part else None


def after_a_barrier(comm: MPI.Comm, call: Callable[[], object]) -> Callable[[int], float]:
    """Return a function that repeats a call, each after an MPI barrier that is not timed."""

    def run(count: int) -> float:
        seconds = 0.0
        for _ in range(count):
            comm.Barrier()
            start = time.perf_counter()
            call()
            seconds += time.perf_counter() - start
        return seconds

    return run
