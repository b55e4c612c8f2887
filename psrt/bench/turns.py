"""Timing collective calls against each other: turns within one run, and the slowest rank counts.

All ranks meet before a turn, each times its own calls, and the longest time of any rank is the
reading: a collective is over when the last rank has its result. Brief calls are made many times
in a turn, so that the meeting before it and the clock do not show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np
from mpi4py import MPI

from psrt.bench.rounds import Entry, Key, has_turn, plan
from psrt.transport.backoff import Patience

#: A call this short is tried more than once before its turns are planned.
_BRIEF_S, _TRIES = 10e-3, 5
#: Yields before a wait would sleep.
_NEVER_SLEEP = 1 << 30


def take_turns(comm: MPI.Comm, entries: Mapping[Key, Entry], rounds: int) -> list[dict[Key, float]]:
    """Time every entry in some of the rounds or in all, as its budget allows; collective.

    Every other round goes through them backwards, so that none always follows the same one and
    inherits its caches.

    Args:
        comm: the ranks that make the calls.
        entries: what to time; each has been called before, so that it is set up.
        rounds: at least 1.

    Returns:
        By round, the seconds of one call of each entry that had a turn in it; the same on every
        rank. Readings of one round were taken within moments of each other.
    """
    plans = {key: plan(_try(comm, entry.call), entry, rounds) for key, entry in entries.items()}
    seconds = np.zeros((rounds, len(entries)))
    order = list(enumerate(entries.items()))
    for number in range(rounds):
        for column, (key, entry) in order if number % 2 == 0 else reversed(order):
            calls, turns = plans[key]
            if has_turn(number, turns, rounds):
                seconds[number, column] = _turn(comm, entry.call, calls) / calls
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return [
        {key: float(s) for key, s in zip(entries, row, strict=True) if s > 0} for row in seconds
    ]


def _try(comm: MPI.Comm, call: Callable[[], object]) -> float:
    """Return about what a call takes, the same on every rank."""
    seconds = _slowest(comm, call)
    if seconds < _BRIEF_S:  # one reading alone might be of a rank that had no core just then
        seconds = min(_slowest(comm, call) for _ in range(_TRIES))
    return seconds


def _slowest(comm: MPI.Comm, call: Callable[[], object]) -> float:
    seconds = np.array([_turn(comm, call, 1)])
    _wait(comm.Iallreduce(MPI.IN_PLACE, seconds, MPI.MAX))
    return float(seconds[0])


def _turn(comm: MPI.Comm, call: Callable[[], object], calls: int) -> float:
    """Meet, then return the seconds that this rank needs for so many calls."""
    _wait(comm.Ibarrier())
    start = perf_counter()
    for _ in range(calls):
        call()
    return perf_counter() - start


def _wait(request: MPI.Request) -> None:
    """Wait without holding a core that another rank needs.

    MPICH's blocking calls never yield. With more ranks than cores each of them lasts a time slice
    of the scheduler, thousands of times what it takes, and so would the first call after it.
    """
    Patience(crowded=True, timeout_s=3600.0, yields=1 << 30).wait(
        request.Test, lambda: "the other ranks"
    )
