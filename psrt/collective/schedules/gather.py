"""Gather to a root along a binomial tree, as a schedule. Pure: ranks and spans, never buffers.

A scatter (``scatter.py``) run backwards: rank r starts with chunk r, each rank collects the chunks
of its subtree and hands them to its parent, and the root ends with all of them, each at its own
place. For p = 4 and root 0: 1→0 and 3→2 with one chunk each, then 2→0 with chunks 2 and 3.

**Cost.** As the scatter's: ⌈lg p⌉ rounds, which is the least, and for p a power of two

    T = lg p·α + n(p − 1)/p·β

where the second term is what the root must receive however it is done.

**No deadlock.** A rank waits for its children only, as in ``reduce.py``.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.schedules.binomial import Binomial
from psrt.collective.schedules.scatter import subtree_spans
from psrt.collective.step import Step


def gather_steps(rank: int, size: int, n: int, root: int = 0) -> Iterator[Step]:
    """Yield this rank's steps of a binomial gather to ``root``.

    Args:
        rank: this rank, in ``[0, size)``; it starts with chunk ``rank``.
        size: ranks in the tree, p ≥ 1.
        n: elements in the vector, ≥ 0.
        root: rank that ends with the whole vector; inner ranks end with part of it.

    Yields:
        One or two steps per edge of the tree at this rank, the shortest way up first.

    >>> [(s.receive_from, s.receive) for s in gather_steps(0, 4, 4)]
    [(1, Span(start=1, stop=2)), (2, Span(start=2, stop=4))]
    """
    place = Binomial(rank, size, root)
    for child in place.children:
        for span in subtree_spans(Binomial(child, size, root), n):
            yield Step.receiving(child, span, combine=False)
    if place.parent is not None:
        for span in subtree_spans(place, n):
            yield Step.sending(place.parent, span)
