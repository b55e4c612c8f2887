"""Reduction to a root along a binomial tree, as a schedule. Pure: ranks and spans, never buffers.

Each rank folds what its children hand over, then hands the sum to its parent; see ``binomial.py``
for the tree and why ⌈lg p⌉ rounds are the least. A message is the whole vector, and the root folds
once in each round:

    T = ⌈lg p⌉(α + nβ + nγ)

Every rank but the root sends n elements, which is the least. Long vectors are better served by a
reduce-scatter and a gather, whose rounds move n/p and not n.

**No deadlock.** A rank waits for its children before it sends, and a leaf waits for no rank; by
induction over the height of the subtree every send is posted in the end, and its parent takes the
children in the order in which they finish.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.schedules.binomial import Binomial
from psrt.collective.step import Step
from psrt.core.partition import Span


def reduce_steps(rank: int, size: int, n: int, root: int = 0) -> Iterator[Step]:
    """Yield this rank's steps of a binomial reduction to ``root``.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks in the tree, p ≥ 1.
        n: elements in the vector, ≥ 0.
        root: rank that ends with the fold; the others end with part of it.

    Yields:
        One step per edge of the tree at this rank: at most ``ceil(lg p)``, at the root.

    >>> [(s.send_to, s.receive_from) for s in reduce_steps(2, 6, 10)]
    [(None, 3), (0, None)]
    """
    place, whole = Binomial(rank, size, root), Span(0, n)
    for child in place.children:
        yield Step.receiving(child, whole, combine=True)
    if place.parent is not None:
        yield Step.sending(place.parent, whole)
