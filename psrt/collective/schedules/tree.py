r"""Binomial-tree all-reduce as a schedule. Pure: knows ranks and spans, never buffers or MPI.

The vector is reduced to rank 0 (``reduce.py``) and broadcast from there (``broadcast.py``), both
along the binomial tree of ``binomial.py``. For p = 6:

.. code-block:: text

              0
           /  |  \
          1   2   4         rounds 0, 1, 2:  1→0 3→2 5→4,   2→0,   4→0     folded
              |   |         rounds 3, 4, 5:  0→4,   0→2,   0→1 2→3 4→5     copied
              3   5

**Cost.** ⌈lg p⌉ rounds up and as many down. A message is the whole vector:

    T = 2⌈lg p⌉(α + nβ) + ⌈lg p⌉nγ

The root sends n⌈lg p⌉ elements, one vector to each child. A rank whose lowest set bit is b sends
one vector up and one to each of its at most b children, and b < ⌈lg p⌉, so no rank sends more than
the root. All ranks together send 2n(p − 1), the minimum (``cost.py`` derives it), but
the root a large share of it. Few rounds and long messages: the tree is for short vectors. The
butterfly halves the rounds; the tree keeps its 2⌈lg p⌉ for every p.

**Same bits.** Rank 0 alone knows the sum, and the rest copy it.

**No deadlock.** The reduction waits upwards only, the broadcast downwards only, and a rank begins
the second when it has finished the first.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.costs import LinkCosts, lg_ceil
from psrt.collective.schedules.broadcast import broadcast_steps
from psrt.collective.schedules.reduce import reduce_steps
from psrt.collective.step import Step


def tree_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's steps of a binomial reduction to rank 0 and a broadcast back.

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
    yield from reduce_steps(rank, size, n)
    yield from broadcast_steps(rank, size, n)


def tree_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return the cost at the top of this file, for every p.

    The root has ⌈lg p⌉ children, each with one message up and one down. Child i is the root of a
    smaller tree, by the same argument ready in time, so the root never waits.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    height = lg_ceil(p)
    return costs.chain(2 * height, 2 * height * nbytes, height * nbytes)
