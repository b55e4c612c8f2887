"""Binomial-tree all-reduce as a schedule. Pure: knows ranks and spans, never buffers or MPI.

The vector is reduced to rank 0 and broadcast from there, both along the same binomial tree. A
rank's parent is the rank with its lowest set bit cleared, so the subtree of a rank with k trailing
zeros holds 2**k ranks, and its children are the ranks that differ from it in one of those zeros.
For p = 6:

.. code-block:: text

              0
           /  |  \
          1   2   4         round 0 (bit 0):  1→0  3→2  5→4
              |   |         round 1 (bit 1):  2→0
              3   5         round 2 (bit 2):  4→0
                            the broadcast is the same, last round first, arrows turned

**Cost.** In round b of the reduction all ranks whose lowest set bit is b hand over to their parent
and are done. After ⌈lg p⌉ rounds only rank 0, which has no set bit, is left; before that there is
always a rank with a sum to hand over, hence 2⌈lg p⌉ rounds with the broadcast. A message is the
whole vector:

    T = 2⌈lg p⌉(α + nβ) + ⌈lg p⌉nγ

The root sends n⌈lg p⌉ elements, one vector to each child. A rank whose lowest set bit is b sends
one vector up and one to each of its at most b children, and b < ⌈lg p⌉, so nobody sends more than
the root. Few rounds and long messages: the tree is for short vectors.

Source: the binomial tree is folklore; with this cost, as MPICH's choice for short reductions and
broadcasts, in Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
in MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.step import Step
from psrt.partition import Span


def tree_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's steps of a binomial reduction to rank 0 and a broadcast back.

    Rank 0 alone knows the sum and the rest copy it, so all ranks hold the same bits.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks in the tree, p ≥ 1.
        n: elements in the vector, ≥ 0.

    Yields:
        Two steps per edge of the tree at this rank: ``2 * ceil(lg p)`` at the root, 2 at a leaf,
        sending at most ``n * ceil(lg p)`` elements in all.

    >>> [(s.send_to, s.receive_from) for s in tree_steps(2, 6, 10)]
    [(None, 3), (0, None), (None, 0), (3, None)]
    """
    whole = Span(0, n)
    parent = rank & (rank - 1) if rank else None
    children = _children(rank, size)
    for child in children:
        yield Step.receiving(child, whole, combine=True)
    if parent is not None:
        yield Step.sending(parent, whole)
        yield Step.receiving(parent, whole, combine=False)
    for child in reversed(children):
        yield Step.sending(child, whole)


def _children(rank: int, size: int) -> list[int]:
    """Return the ranks that hand over to ``rank``, in the order of their rounds."""
    children = []
    bit = 1
    while rank & bit == 0 and rank + bit < size:
        children.append(rank + bit)
        bit <<= 1
    return children
