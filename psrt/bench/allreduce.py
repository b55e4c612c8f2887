"""Compare all-reduces of every algorithm with the library's and with a copy of the buffer.

Each candidate's sum is verified, element by element, before it is timed; ``allreduce_rows`` lists
the candidates. They run on one host, and between hosts, real or pretended. Two bandwidths are
usual:

- *algbw*, the bytes of the vector over the time, as the caller sees it;
- *busbw*, algbw·2(p − 1)/p: the traffic on a wire that carries the minimum of any all-reduce.
  It can be compared between numbers of ranks, and with the speed of the wire.

Between hosts a ring takes at least 2(p − 1)/p·nβ. **Which β**: in a ring every rank sends and
receives at the same time. Where ranks share cores, memory or a wire each gets less than a pair of
ranks alone would. So β is that of ``exchange``, in which each rank sends n bytes to the next one
while it receives n from the previous one: nβ is its time, measured in the same rounds. The time for
combining (γ) is additional and counts as the ring's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from psrt.bench.allreduce_rows import (
    AFTER_BARRIER,
    AUTO,
    BACK_TO_BACK,
    COPY,
    EXCHANGE,
    KEY,
    LARGEST_BETWEEN,
    LIBRARY,
    WINDOW,
    Name,
    Outcome,
    WholeNumbers,
    fill,
    first_difference,
    names,
    rows_of,
)
from psrt.bench.race import Candidate, Layout, Readings, race, repeated
from psrt.bench.ranks import RankTrack, after_a_barrier, run_on
from psrt.collective.analysis.machine import MachineCosts
from psrt.core.arrays import FloatArray
from psrt.core.errors import ProtocolError
from psrt.core.progress import PROGRESS
from psrt.core.units import plural, size_text
from psrt.mpi.agreement import raise_on_all
from psrt.mpi.communicator import Communicator
from psrt.mpi.hosts import split_hosts
from psrt.mpi.links.pieces import pieces, unannounced_bytes

_K, _M = 1 << 10, 1 << 20
SIZES = tuple(_K << power for power in range(0, 17, 2))
RANKS = (2, 4)
HOSTS = (1, 2, 4)
#: Sizes between pretended hosts, where no wire is measured but the work of a schedule.
_PRETENDED_FROM = _M
#: Largest vector: a schedule may need a few more of that size as workspace.
LARGEST = 1 << 30
#: Seconds for all turns of a candidate of ``KEY``, and its fewest turns; then the same for other
#: candidates. Slow calls, such as the library's with more ranks than cores, have fewer turns, so
#: that the benchmark ends.
_KEY_S, _KEY_LEAST = 1.0, 5
_OTHER_S, _OTHER_LEAST = 0.1, 2
#: The same between hosts, where a call takes longer: three turns have a median.
_BETWEEN_S, _BETWEEN_LEAST = 0.5, 3
#: Between hosts ``auto`` chooses by these times. So candidates that take at most ``_NEAR`` times as
#: long as the fastest have ``_MORE_ROUNDS`` times as many rounds, with the budget of ``KEY`` each.
_NEAR, _MORE_ROUNDS = 1.25, 3
#: A candidate is left out from the size at which a call would take longer than this, if its time
#: per byte stays the same. With more ranks than cores a call of MPICH's own with 1 MB was seen to
#: take 5 s, and one with 64 MB takes as many minutes.
_LONG_S = 4.0
#: Seconds that all layouts share.
LIMIT_S = 240.0


def sizes_on(layout: Layout, sizes: Sequence[int]) -> list[int]:
    """Return the sizes to measure on a layout: if hosts are pretended, only large ones, if any."""
    large = [nbytes for nbytes in sizes if nbytes >= _PRETENDED_FROM]
    return list(large if layout.pretended and large else sizes)


def measure(
    comm: MPI.Comm,
    layouts: Sequence[Layout],
    *,
    costs: MachineCosts,
    sizes: Sequence[int] = SIZES,
    rounds: int = 9,
    limit_s: float = LIMIT_S,
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Verify and measure every candidate; collective.

    Each layout has an equal share of the remaining time. It ends before the size that would exceed
    the share, if that size takes as long as the previous one. The first size is always measured.

    Args:
        comm: all ranks.
        layouts: the sets of ranks to measure, see ``psrt.bench.race``.
        costs: for the choice of ``auto`` and for predicted times.
        sizes: bytes of the float32 vector, each a multiple of 4.
        rounds: number of turns of each candidate; some have fewer at large sizes.
        limit_s: seconds that all layouts share.
        say: called on rank 0 with a line about everything left out.

    Returns:
        On rank 0 the rows, see ``rows_of``; elsewhere an empty list.

    Raises:
        ProtocolError: on every rank, if a sum is wrong.
    """
    rows: list[dict[str, Any]] = []
    track, began = RankTrack(comm), perf_counter()
    say = say if comm.rank == 0 else lambda line: None
    now = 0.0  # since then, the same on every rank
    for place, layout in PROGRESS.each(list(enumerate(layouts)), "measuring", "layout"):
        end = now + (limit_s - now) / (len(layouts) - place)
        here = f"{plural(len(layout.ranks), 'rank')} on {plural(len(layout.hosts), 'host')}"
        left_out: set[Name] = set()
        last: Outcome | None = None
        took = 0.0
        for nbytes in PROGRESS.each(sorted(sizes_on(layout, sizes)), "measuring", "size"):
            if took and now + took > end:
                say(
                    f"left out: {here} from {size_text(nbytes)} on, for time ({limit_s:g} s in all)"
                )
                break
            for name, seconds in _endless(last, nbytes).items():
                left_out.add(name)
                say(
                    f"left out: {here}, {name.algorithm} ({name.buffer}, {name.pattern}) from "
                    f"{size_text(nbytes)} on, for about {seconds:.0f} s a call"
                )
            work = partial(
                _race, layout=layout, nbytes=nbytes, rounds=rounds, costs=costs, without=left_out
            )
            last = run_on(comm, layout.ranks, work)
            if last is not None:
                rows += rows_of(last, costs)
            (later,) = track.slowest([perf_counter() - began])
            now, took = later, later - now
    return rows if comm.rank == 0 else []


def _endless(last: Outcome | None, nbytes: int) -> dict[Name, float]:
    """Return the candidates that would take too long, and the estimated seconds of a call.

    Args:
        last: of the previous size; None if there was none, or this rank did not take part.
        nbytes: the next size.
    """
    if last is None:
        return {}
    growth = nbytes / last.nbytes
    seconds = {name: growth * last.readings.summary(name).median for name in last.sent}
    return {name: about for name, about in seconds.items() if about > _LONG_S}


def _race(
    comm: MPI.Comm,
    *,
    layout: Layout,
    nbytes: int,
    rounds: int,
    costs: MachineCosts,
    without: Set[Name],
) -> Outcome:
    """Verify and time all candidates of one size on one layout; collective."""
    only_key = len(layout.hosts) > 1 and nbytes > LARGEST_BETWEEN
    with Communicator(
        comm, machine_costs=costs, host=layout.host_of(layout.ranks[comm.rank])
    ) as communicator:
        buffers = _Buffers(comm, communicator, nbytes // 4)
        calls = {
            name: buffers.call(name)
            for name in names(layout, nbytes)
            if (name in KEY or not only_key) and name not in without
        }
        sent = buffers.verify(calls)
        buffers.clear()
        real = len(layout.hosts) > 1 and not layout.pretended
        candidates = {name: _candidate(comm, name, call.make, real) for name, call in calls.items()}
        found = race(candidates, rounds, track=RankTrack(comm))
        if real:
            near = {
                name: Candidate(candidates[name].run, _KEY_S, _KEY_LEAST) for name in near_of(found)
            }
            more = race(near, _MORE_ROUNDS * rounds, track=RankTrack(comm))
            found = Readings([*found.rounds, *more.rounds])
        chosen = communicator.choice(nbytes).algorithm
        # The plans hold views of the window, which the communicator frees.
        del buffers, calls, candidates
    return Outcome(layout, nbytes, sent, chosen, found)


def near_of(found: Readings[Name]) -> list[Name]:
    """Return the candidates between which the choice is not clear yet, and ``auto``.

    >>> times = {"ring": 1.0, "tree": 1.2, "root": 1.3, "auto": 1.3, "exchange": 0.1}
    >>> row = {Name(algorithm, WINDOW): seconds for algorithm, seconds in times.items()}
    >>> [name.algorithm for name in near_of(Readings([row]))]
    ['ring', 'tree', 'auto']
    """
    names = dict.fromkeys(name for row in found.rounds for name in row)
    times = {
        name: found.summary(name).median
        for name in names
        if name.pattern == BACK_TO_BACK
        and name.algorithm not in (COPY, EXCHANGE)
        and (name.buffer == WINDOW or name.algorithm == LIBRARY)
    }
    most = _NEAR * min(times.values())
    return [name for name, s in times.items() if s <= most or name.algorithm == AUTO]


def _candidate(
    comm: MPI.Comm, name: Name, call: Callable[[], object], between_hosts: bool
) -> Candidate:
    run = after_a_barrier(comm, call) if name.pattern == AFTER_BARRIER else repeated(call)
    is_key = name._replace(pattern=BACK_TO_BACK) in KEY
    if is_key:
        return Candidate(run, _KEY_S, _KEY_LEAST)
    if between_hosts:
        return Candidate(run, _BETWEEN_S, _BETWEEN_LEAST)
    return Candidate(run, _OTHER_S, _OTHER_LEAST)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call to measure, and its expected result."""

    make: Callable[[], object]
    #: The array filled before the call, and the one checked after it.
    given: FloatArray
    result: FloatArray
    #: A tile of the expected result.
    wanted: FloatArray
    #: Whether the communicator counts its bytes.
    counted: bool


class _Buffers:
    """The vectors of one size, and the calls on them."""

    def __init__(self, comm: MPI.Comm, communicator: Communicator, n: int) -> None:
        self._comm = comm
        self._communicator = communicator
        self._window = communicator.empty(n)
        self._plain = np.empty(n, np.float32)
        node, hosts = split_hosts(comm)
        node.Free()
        self._most = min(unannounced_bytes(comm, hosts.machine))
        numbers = WholeNumbers(comm.size)
        self._mine, self._total = numbers.of(comm.rank), numbers.total()
        self._last = numbers.of((comm.rank - 1) % comm.size)

    def call(self, name: Name) -> _Call:
        """Return the call of a candidate."""
        window, plain = self._window, self._plain
        if name.algorithm == LIBRARY:
            library = partial(self._comm.Allreduce, MPI.IN_PLACE, plain, MPI.SUM)
            return _Call(library, plain, plain, self._total, counted=False)
        if name.algorithm == COPY:
            copy = partial(np.copyto, plain, window)
            return _Call(copy, window, plain, self._mine, counted=False)
        if name.algorithm == EXCHANGE:
            exchange = partial(_exchange, self._comm, window, plain, self._most)
            return _Call(exchange, window, plain, self._last, counted=False)
        array = window if name.buffer == WINDOW else plain
        call = partial(self._communicator.all_reduce, array, "sum", name.algorithm)
        # The bytes that the library sends are unknown.
        return _Call(
            call,
            array,
            array,
            self._total,
            counted=name.algorithm != "mpi" and name.pattern == BACK_TO_BACK,
        )

    def verify(self, calls: Mapping[Name, _Call]) -> dict[Name, tuple[int, ...] | None]:
        """Make each call once, on whole numbers; collective.

        Returns:
            By candidate, the bytes that each rank sent; None if they are not counted. The
            library's own call is skipped: it may take seconds.

        Raises:
            ProtocolError: on every rank, if a call gives a wrong sum.
        """
        mine = np.zeros(len(calls), np.int64)
        wrong: list[ProtocolError] = []
        for place, (name, call) in enumerate(calls.items()):
            if name.algorithm == LIBRARY or name.pattern == AFTER_BARRIER:
                continue  # not psrt's to verify; the same call as back to back
            fill(call.given, self._mine)
            before = self._communicator.bytes_sent
            call.make()
            mine[place] = self._communicator.bytes_sent - before
            try:
                check(name, call.result, call.wanted, self._comm.rank)
            except ProtocolError as error:  # the other ranks continue with the next call
                wrong.append(error)
        with raise_on_all(self._comm):
            if wrong:
                raise wrong[0]
        sent = np.empty((self._comm.size, len(calls)), np.int64)
        self._comm.Allgather(mine, sent)
        return {
            name: tuple(sent[:, place].tolist()) if call.counted else None
            for place, (name, call) in enumerate(calls.items())
        }

    def clear(self) -> None:
        """Set all numbers to 0: repeated sums of others would overflow."""
        self._window[:] = 0
        self._plain[:] = 0
        self._comm.Barrier()


def _exchange(comm: MPI.Comm, given: FloatArray, result: FloatArray, most: int) -> None:
    """Send to the next rank while receiving from the previous one, as in a ring.

    Args:
        comm: the ranks.
        given: the array that this rank sends.
        result: the array that it receives into.
        most: the most bytes of a message.
    """
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    requests = [comm.Isend(piece, after) for piece in pieces(given, most)]
    requests += [comm.Irecv(piece, before) for piece in pieces(result, most)]
    MPI.Request.Waitall(requests)


def check(name: Name, result: FloatArray, wanted: FloatArray, rank: int) -> None:
    """Check every element of a result.

    Args:
        name: of the call, for the message.
        result: the array that this rank ended with.
        wanted: the right elements, repeated to the length of ``result``.
        rank: this rank, for the message.

    Raises:
        ProtocolError: if an element is wrong.
    """
    at = first_difference(result, wanted)
    if at is not None:
        raise ProtocolError(
            f"{name.algorithm} on a {name.buffer} of {result.nbytes} bytes: rank {rank} has "
            f"{result[at]:g} as element {at}, expected {wanted[at % wanted.size]:g}"
        )
