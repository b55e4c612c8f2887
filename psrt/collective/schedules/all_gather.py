"""Ring all-gather as a schedule: the second half of a ring all-reduce. Pure: never buffers.

Rank r starts with chunk r; every chunk goes once around and every rank keeps a copy.

.. code-block:: text

    p = 3        start        hop 1          hop 2
    rank 0     a  .  .        a  .  c        a  b  c
    rank 1     .  b  .        a  b  .        a  b  c
    rank 2     .  .  c        .  b  c        a  b  c

**Cost.** p − 1 hops; rank r sends every chunk but r + 1, so n(p − 1)/p elements where p divides n:

    T = (p − 1)α + n(p − 1)/p·β

Each rank must receive the p − 1 chunks that it lacks, so no algorithm receives less. ⌈lg p⌉ rounds
would do, by doubling (``halving_doubling.py``), for p a power of two.

**No deadlock** as in ``ring.py``: in each hop every send meets its receive.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 69(2), 2009.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.schedules.ring import Ring
from psrt.collective.step import Step
from psrt.core.partition import even_spans


def all_gather_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's hops of a ring all-gather over ``n`` elements.

    Args:
        rank: this rank, in ``[0, size)``; it starts with chunk ``rank``.
        size: ranks on the ring, p ≥ 1.
        n: elements in the vector, ≥ 0.

    Yields:
        ``p - 1`` steps, receiving every chunk of ``even_spans(n, size)`` but the own one.

    >>> [(s.send.start, s.receive.start) for s in all_gather_steps(0, 3, 3)]
    [(0, 2), (2, 1)]
    """
    chunks, ring = even_spans(n, size), Ring.of(rank, size)
    for send, receive in ring.hops(rank):
        yield Step(ring.right, chunks[send], ring.left, chunks[receive], False)
