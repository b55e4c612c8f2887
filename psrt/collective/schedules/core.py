"""The largest power of two among p ranks, and how the rest hand over to it. Pure: ranks, spans.

Schedules that pair ranks by the bits of their numbers need a power of two. Let q = 2**⌊lg p⌋ and
r = p − q. Of the first 2r ranks each odd one folds into its even neighbour before the schedule of
the q ranks that remain, the *core*, and copies the result from it afterwards; neighbours, because
ranks that follow each other are mostly on one host. The core is numbered in order:

.. code-block:: text

    p = 6, r = 2      rank    0 ← 1    2 ← 3    4    5
                    number    0        1        2    3

It costs two more rounds, 2n more elements on the wire one after the other, and a fold of n:

    2(α + nβ) + nγ

**No deadlock.** The odd neighbour does nothing else, so its even one never waits for a rank that
waits; within the core all begin when their neighbours have handed over.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from psrt.collective.costs import LinkCosts, lg_floor
from psrt.collective.step import Step
from psrt.core.partition import Span


def core_ranks(size: int) -> list[int]:
    """Return the ranks of the core; their places are their numbers.

    >>> core_ranks(6)
    [0, 2, 4, 5]
    """
    folded = size - (1 << (size.bit_length() - 1))
    return [*range(0, 2 * folded, 2), *range(2 * folded, size)]


def around_core(
    rank: int,
    size: int,
    n: int,
    inner: Callable[[int, Sequence[int]], Iterator[Step]],
) -> Iterator[Step]:
    """Yield this rank's steps of an all-reduce that ``inner`` does for powers of two.

    Args:
        rank: this rank, in ``[0, size)``.
        size: all ranks, p ≥ 1.
        n: elements in the vector, ≥ 0.
        inner: ``(number, core)`` → the steps of the rank ``core[number]`` among the core.
    """
    core, whole = core_ranks(size), Span(0, n)
    paired = rank < 2 * (size - len(core))
    if paired and rank % 2:
        yield Step.sending(rank - 1, whole)
        yield Step.receiving(rank - 1, whole, combine=False)
        return
    if paired:
        yield Step.receiving(rank + 1, whole, combine=True)
    yield from inner(core.index(rank), core)
    if paired:
        yield Step.sending(rank + 1, whole)


def around_core_seconds(p: int, nbytes: float, costs: LinkCosts) -> float:
    """Return the seconds that the ranks beyond the core add, 0 where there are none.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
    """
    return 0.0 if p == 1 << lg_floor(p) else costs.chain(2, 2 * nbytes, nbytes)
