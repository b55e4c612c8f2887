"""The cost of messages between hosts, measured by one rank of each host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

import numpy as np
from mpi4py import MPI

from psrt.core.errors import TransportError
from psrt.doctor.facts import PairFacts, pair_from_json, to_json
from psrt.doctor.messages import Array, collect, deal, swap

#: Bytes in each direction of an exchange between hosts. For the larger ones libraries switch to
#: protocols that may not use both directions at once.
_SIZES = (64, 8 << 20)
#: Seconds for all exchanges of one size, and the most of them.
_BUDGET_S, _MOST = 0.5, 50


def measure_links(comm: MPI.Comm, leaders: Sequence[int], timeout_s: float) -> list[PairFacts]:
    """Measure each pair of hosts, until two cannot reach each other; all ranks return all pairs."""
    links: list[PairFacts] = []
    for turn in rounds(len(leaders)):
        mine = ""
        for pair in ((leaders[i], leaders[j]) for i, j in turn):
            if comm.rank in pair:
                link = _exchanges(comm, pair, timeout_s)
                mine = to_json(link) if comm.rank == pair[0] else ""
        # The others sleep in the meantime, and leave the cores to the ranks that measure.
        found = [text for text in collect(comm, mine, 2 * timeout_s) if text]
        texts = deal(comm, "\n".join(found), 2 * timeout_s).splitlines()
        links += map(pair_from_json, texts)
        if any(link.error for link in links):
            break
    return links


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of pairs of different hosts, in which every two hosts meet once.

    The circle method: the first stays, the others move by one place after each round.

    >>> list(rounds(4))
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    >>> [len(turn) for turn in rounds(5)], list(rounds(1))
    ([2, 2, 2, 2, 2], [[]])
    """
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    for _ in range(len(places) - 1):
        halves = zip(places, reversed(places), strict=True)
        both = [(a, b) for a, b in list(halves)[: len(places) // 2]]
        yield [(min(a, b), max(a, b)) for a, b in both if a is not None and b is not None]
        places = [places[0], places[-1], *places[1:-1]]


def _exchanges(comm: MPI.Comm, pair: tuple[int, int], timeout_s: float) -> PairFacts:
    """Measure what two ranks need to exchange messages, both sending at once."""
    peer = pair[1] if comm.rank == pair[0] else pair[0]
    largest = max(_SIZES)
    mine, theirs = np.zeros(largest, np.uint8), np.zeros(largest, np.uint8)
    try:
        swap(comm, peer, mine[:0], theirs[:0], timeout_s)  # both are there
        agree = partial(_agreed, comm, peer, pair, timeout_s)
        seconds = {
            size: _median(partial(swap, comm, peer, mine[:size], theirs[:size], timeout_s), agree)
            for size in _SIZES
        }
        one_way = _median(partial(_one_way, comm, peer, pair, mine, theirs, timeout_s), agree)
    except (MPI.Exception, TransportError) as failure:
        error = str(failure).splitlines()[0]
        return PairFacts(ranks=pair, error=error)
    alpha_s = seconds[min(_SIZES)]
    return PairFacts(
        ranks=pair,
        alpha_s=alpha_s,
        beta_s=max(0.0, seconds[largest] - alpha_s) / largest,
        nbytes=largest,
        one_way_s=one_way,
        both_ways_s=seconds[largest],
    )


def _one_way(
    comm: MPI.Comm,
    peer: int,
    pair: tuple[int, int],
    mine: Array,
    theirs: Array,
    timeout_s: float,
) -> None:
    """Send a message from the first of two ranks to the second, and an acknowledgement back."""
    if comm.rank == pair[0]:
        swap(comm, peer, mine, None, timeout_s)
        swap(comm, peer, None, theirs[:0], timeout_s)
    else:
        swap(comm, peer, None, theirs, timeout_s)
        swap(comm, peer, mine[:0], None, timeout_s)


def _agreed(comm: MPI.Comm, peer: int, pair: tuple[int, int], timeout_s: float, count: int) -> int:
    """Return the number of the first of two ranks."""
    mine, theirs = np.array([count], np.int64), np.empty(1, np.int64)
    swap(comm, peer, mine, theirs, timeout_s)
    return count if comm.rank == pair[0] else int(theirs[0])


def _median(call: Callable[[], None], agree: Callable[[int], int]) -> float:
    """Return the median seconds of a call, over as many calls as there is time for."""

    def timed() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    turns = agree(min(_MOST, max(1, int(_BUDGET_S / timed()))))
    return median(timed() for _ in range(turns))
