"""What the cores allow: the computing and updating of a step, added up over them.

Counted is the time of a processor, not of a clock on the wall: neither waits nor turns that another
rank had on the core. All else that a scheme takes is left out: messages, wake-ups, decisions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import ParamSpec, TypeVar

import numpy as np
from mpi4py import MPI

from psrt.bench.ranks import wait
from psrt.mpi.hosts import split_hosts

Args = ParamSpec("Args")
Result = TypeVar("Result")
#: More than any machine has.
_MOST_CORES = 1 << 13


class CpuMeter:
    """The processor time of the calls that it wraps, on this rank, by turn."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._per_step: list[float] = []

    def metered(self, call: Callable[Args, Result]) -> Callable[Args, Result]:
        """Return the call with its time counted."""

        def counted(*args: Args.args, **kwargs: Args.kwargs) -> Result:
            start = time.thread_time()
            result = call(*args, **kwargs)
            self._seconds += time.thread_time() - start
            return result

        return counted

    def end_turn(self, steps: int) -> None:
        """End a turn of that many steps."""
        self._per_step.append(self._seconds / steps)
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Of a step, in the median of the turns; 0 of a rank without a turn."""
        return median(self._per_step or [0.0])


def cores_of(comm: MPI.Comm) -> int:
    """Return the number of cores that the ranks may run on, of all hosts together; collective."""
    node, _ = split_hosts(comm)
    allowed = np.zeros(_MOST_CORES, np.uint8)
    allowed[list(os.sched_getaffinity(0))] = 1
    node.Allreduce(MPI.IN_PLACE, allowed, MPI.MAX)
    cores = np.array([int(allowed.sum()) if node.rank == 0 else 0])
    node.Free()
    comm.Allreduce(MPI.IN_PLACE, cores, MPI.SUM)
    return int(cores[0])


def least_seconds(comm: MPI.Comm, seconds: float, *, cores: int, ranks: int) -> float:
    """Return how long ranks need at least, each to be on a core for some seconds; collective.

    Args:
        comm: of the ranks, and of others with 0 seconds.
        seconds: of this rank.
        cores: those that all ranks may run on.
        ranks: those that have something to do.
    """
    most, total = np.array([seconds]), np.array([seconds])
    wait(comm.Iallreduce(MPI.IN_PLACE, most, MPI.MAX))
    wait(comm.Iallreduce(MPI.IN_PLACE, total, MPI.SUM))
    return max(float(most[0]), float(total[0]) / min(cores, ranks))
