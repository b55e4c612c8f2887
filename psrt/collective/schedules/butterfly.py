"""Butterfly (recursive doubling) all-reduce as a schedule. Pure: ranks and spans, never buffers.

In round b every rank exchanges its whole vector with the rank whose number differs in bit b, and
both add. After round b each aligned group of 2**(b+1) ranks holds the group's sum, so after lg p
rounds everyone holds the sum of all. For p = 4:

.. code-block:: text

    rank     start   round 0 (bit 0)   round 1 (bit 1)
      0        a         a+b            (a+b)+(c+d)
      1        b         b+a            (b+a)+(d+c)
      2        c         c+d            (c+d)+(a+b)
      3        d         d+c            (d+c)+(b+a)

**Same bits.** By induction: all ranks of a group hold the same bits x and all of the sibling group
the same y; one side computes x + y and the other y + x, which IEEE 754 rounds to the same value.
It holds for every operation that commutes to the bit. Sums and products do, save for the payload
of a NaN; ``minimum`` and ``maximum`` do, save for the sign of a zero. An executor that puts the
lower rank's operand first makes it hold for those too, since all of a group agree who is lower.

**Any p.** Ranks beyond the largest power of two, q, hand over to a neighbour first and copy from it
at the end (``core.py``).

**Cost.** p = q: lg p rounds, n lg p elements sent and combined per rank; otherwise two more rounds,
and a rank that has taken a neighbour's numbers sends n elements more:

    T = lg p·(α + nβ + nγ),  or  (lg q + 2)α + (lg q + 2)nβ + (lg q + 1)nγ

After k rounds a rank can have heard from at most 2**k ranks, so ⌈lg p⌉ rounds are the minimum:
latency-optimal for p a power of two. Its price is bandwidth, p·lg p/(2(p − 1)) times what a ring
sends, so it is for short vectors.

**No deadlock.** In each round all of the core post both halves, and partners have each other.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.collective.costs import LinkCosts, lg_floor
from psrt.collective.schedules.core import around_core, around_core_seconds
from psrt.collective.step import Step
from psrt.core.partition import Span


def butterfly_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's steps of a recursive-doubling all-reduce over ``n`` elements.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks in the butterfly, p ≥ 1.
        n: elements in the vector, ≥ 0.

    Yields:
        With q as above and r = p − q, ``lg q`` exchanges of the whole vector; an even rank below
        2r has two more steps around them, an odd one has only these two.

    >>> [(s.send_to, s.receive_from) for s in butterfly_steps(0, 5, 10)]
    [(None, 1), (2, 2), (3, 3), (1, None)]
    """
    whole = Span(0, n)

    def exchanges(number: int, core: Sequence[int]) -> Iterator[Step]:
        bit = 1
        while bit < len(core):
            partner = core[number ^ bit]
            yield Step(partner, whole, partner, whole, True)
            bit <<= 1

    return around_core(rank, size, n, exchanges)


def butterfly_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return the cost at the top of this file, for every p.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    rounds = lg_floor(p)
    exchanges = costs.chain(rounds, rounds * nbytes, rounds * nbytes)
    return exchanges + around_core_seconds(p, nbytes, costs)
