"""Ring reduce-scatter as a schedule: the first half of a ring all-reduce. Pure: never buffers.

Rank r ends with the fold of chunk r. A chunk starts one rank behind its owner, goes once around
and is complete when it reaches its owner; see ``ring.py`` for the picture.

.. code-block:: text

    p = 3        start        hop 1          hop 2
    rank 0     a0 a1 a2       .  ca1 .       Σ0   .    .
    rank 1     b0 b1 b2       .  .  ab2      .    Σ1   .
    rank 2     c0 c1 c2       bc0 .  .       .    .    Σ2

**Cost.** p − 1 hops; a rank sends every chunk but its own:

    T = (p − 1)α + n(p − 1)/p·β + n(p − 1)/p·γ

Both volumes are the least: each rank must send its contributions to p − 1 chunks, and
p − 1 folds per element are p − 1 folds wherever they are done. ⌈lg p⌉ rounds would do, by halving
(``halving_doubling.py``), for p a power of two.

**No deadlock** and **same bits** as in ``ring.py``. The other chunks hold useless parts of sums at
the end.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 69(2), 2009.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.schedules.ring import Ring
from psrt.collective.step import Step
from psrt.core.partition import even_spans


def reduce_scatter_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's hops of a ring reduce-scatter over ``n`` elements.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks on the ring, p ≥ 1.
        n: elements in the vector, ≥ 0.

    Yields:
        ``p - 1`` steps, sending every chunk of ``even_spans(n, size)`` but the own one.

    >>> [(s.send.start, s.receive.start) for s in reduce_scatter_steps(0, 3, 3)]
    [(2, 1), (1, 0)]
    """
    chunks, ring = even_spans(n, size), Ring.of(rank, size)
    for send, receive in ring.hops(rank - 1):
        yield Step(ring.right, chunks[send], ring.left, chunks[receive], True)
