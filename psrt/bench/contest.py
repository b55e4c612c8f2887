"""The all-reduces of one size on one layout of ranks: each is verified, then all take turns.

``entrants`` tells who they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from mpi4py import MPI

from psrt.bench.entrants import COPY, EXCHANGE, KEY, LIBRARY, WINDOW, Name, Outcome, names
from psrt.bench.rounds import Entry
from psrt.bench.seats import Seats
from psrt.bench.turns import take_turns
from psrt.bench.whole_numbers import Array, WholeNumbers, fill, first_difference
from psrt.collective.analysis.machine import MachineCosts
from psrt.errors import ProtocolError
from psrt.mpi.agreement import together
from psrt.mpi.group import Group

#: Seconds that all turns of one that promises are about may take, and the fewest turns of it; and
#: the same of the others.
_KEY_S, _KEY_LEAST = 1.0, 5
_OTHER_S, _OTHER_LEAST = 0.1, 2


@dataclass(frozen=True, slots=True)
class _Contestant:
    """One way to do it, and how to see that it did."""

    call: Callable[[], object]
    #: What is filled before the call, and what is looked at after it.
    given: Array
    result: Array
    #: A tile of what must be there then.
    wanted: Array
    #: Whether the group counts its bytes.
    counted: bool


def hold(
    comm: MPI.Comm,
    seats: Seats,
    nbytes: int,
    *,
    rounds: int,
    costs: MachineCosts,
    only_key: bool = False,
) -> Outcome:
    """Verify and time all contestants; collective.

    Args:
        comm: the ranks, in the order of ``seats``.
        seats: which of them are on a host together.
        nbytes: of each rank's vector of float32.
        rounds: of turns.
        costs: by which ``auto`` picks.
        only_key: leave out what no promise is about.

    Raises:
        ProtocolError: on every rank, if one has a wrong sum.
    """
    host = seats.host_of(seats.ranks[comm.rank])
    with Group(comm, costs=costs, host=host) as group:
        contest = _Contest(comm, group, nbytes // 4)
        fields = {
            name: contest.contestant(name) for name in names(seats) if name in KEY or not only_key
        }
        sent = {name: contest.verify(name, found) for name, found in fields.items()}
        contest.clear()
        entries = {
            name: Entry(found.call, _KEY_S, _KEY_LEAST)
            if name in KEY
            else Entry(found.call, _OTHER_S, _OTHER_LEAST)
            for name, found in fields.items()
        }
        found = take_turns(comm, entries, rounds)
        chosen = group.choice(nbytes).algorithm
        # The plans hold views of the window, which goes with the group.
        del contest, fields, entries
    return Outcome(sent, chosen, found)


class _Contest:
    """The buffers of one size, and those who work on them."""

    def __init__(self, comm: MPI.Comm, group: Group, n: int) -> None:
        self._comm = comm
        self._group = group
        self._window = group.empty(n)
        self._plain = np.empty(n, np.float32)
        numbers = WholeNumbers(comm.size)
        self._mine, self._total = numbers.of(comm.rank), numbers.total()
        self._last = numbers.of((comm.rank - 1) % comm.size)

    def contestant(self, name: Name) -> _Contestant:
        """Return the contestant of a name."""
        algorithm, buffer = name
        window, plain = self._window, self._plain
        if algorithm == LIBRARY:
            library = partial(self._comm.Allreduce, MPI.IN_PLACE, plain, MPI.SUM)
            return _Contestant(library, plain, plain, self._total, counted=False)
        if algorithm == COPY:
            copy = partial(np.copyto, plain, window)
            return _Contestant(copy, window, plain, self._mine, counted=False)
        if algorithm == EXCHANGE:
            size = self._comm.size
            after, before = (self._comm.rank + 1) % size, (self._comm.rank - 1) % size
            exchange = partial(self._comm.Sendrecv, window, after, 0, plain, before, 0)
            return _Contestant(exchange, window, plain, self._last, counted=False)
        array = window if buffer == WINDOW else plain
        call = partial(self._group.allreduce, array, "sum", algorithm)
        # What the library sends of what it was handed is its own affair.
        return _Contestant(call, array, array, self._total, counted=algorithm != "mpi")

    def verify(self, name: Name, contestant: _Contestant) -> tuple[int, ...] | None:
        """Make one call on whole numbers; collective. Return the bytes that each rank sent.

        Raises:
            ProtocolError: on every rank, if one has a wrong sum.
        """
        fill(contestant.given, self._mine)
        before = self._group.bytes_sent
        contestant.call()
        sent = np.array([self._group.bytes_sent - before], np.int64)
        with together(self._comm):
            check(name, contestant.result, contestant.wanted, self._comm.rank)
        if not contestant.counted:
            return None
        all_sent = np.empty(self._comm.size, np.int64)
        self._comm.Allgather(sent, all_sent)
        return tuple(all_sent.tolist())

    def clear(self) -> None:
        """Set all numbers to 0: sums of sums stay 0, where others would grow beyond bounds."""
        self._window[:] = 0
        self._plain[:] = 0
        self._comm.Barrier()


def check(name: Name, result: Array, wanted: Array, rank: int) -> None:
    """Look at every element of a result.

    Raises:
        ProtocolError: if one is wrong.
    """
    at = first_difference(result, wanted)
    if at is not None:
        algorithm, buffer = name
        raise ProtocolError(
            f"{algorithm} on a {buffer} of {result.nbytes} bytes: rank {rank} has {result[at]:g} "
            f"as element {at}, expected {wanted[at % wanted.size]:g}"
        )
