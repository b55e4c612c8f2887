"""Halving-doubling (Rabenseifner) all-reduce as a schedule. Pure: ranks and spans, never buffers.

A reduce-scatter by recursive halving, then an all-gather by recursive doubling, both of
``halving.py``, which has the picture. Ranks beyond the largest power of two, q, hand over to a
neighbour first and copy from it at the end (``core.py``).

**Cost.** For p = q, with p a divisor of n:

    T = 2 lg p·α + 2n(p − 1)/p·β + n(p − 1)/p·γ

The ring's volume, which is the least, in at most twice the least number of rounds: for medium and
long vectors, where p is a power of two, nothing is better in both. Otherwise the neighbours come
on top, 2n elements one after the other on the critical path:

    T = (2 lg q + 2)α + (2n(q − 1)/q + 2n)β + (n(q − 1)/q + n)γ

about twice the ring's volume; ``binary_blocks.py`` avoids that for most p. Partners are up to p/2
ranks apart and long messages take the longest way, so on a network that is not flat the ring may
win where the model says otherwise.

**Same bits.** Each element is summed by one owner's chain of exchanges and copied by the rest.

**No deadlock.** Halving, doubling and the neighbours each have none, and follow one another in the
same order on all ranks.

Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004, LNCS 3036;
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.collective.costs import LinkCosts, lg_floor
from psrt.collective.schedules.core import around_core, around_core_seconds
from psrt.collective.schedules.halving import Halving
from psrt.collective.step import Step


def halving_doubling_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's steps of a halving-doubling all-reduce over ``n`` elements.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks that take part, p ≥ 1.
        n: elements in the vector, ≥ 0; some messages are empty where ``n < q``.

    Yields:
        With q as above and r = p − q, ``2 * lg q`` exchanges; an even rank below 2r has two more
        steps around them, an odd one has only these two.

    >>> [(s.send_to, s.send.size, s.combine) for s in halving_doubling_steps(0, 4, 8)]
    [(2, 4, True), (1, 2, True), (1, 2, False), (2, 4, False)]
    """

    def exchanges(number: int, core: Sequence[int]) -> Iterator[Step]:
        halving = Halving.of(number, core, n)
        yield from halving.reduce_scatter()
        yield from halving.all_gather()

    return around_core(rank, size, n, exchanges)


def halving_doubling_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return the cost at the top of this file, for every p.

    Exchanges of n/2, n/4, … n/q bytes, (q − 1)/q·n in all, and the same back.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    q = 1 << lg_floor(p)
    share = (q - 1) / q * nbytes
    exchanges = costs.chain(2 * lg_floor(p), 2 * share, share)
    return exchanges + around_core_seconds(p, nbytes, costs)
