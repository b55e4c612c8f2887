"""Ring all-reduce as a schedule. Pure: knows ranks and spans, never buffers or MPI.

The vector is cut into p chunks. In the *reduce-scatter* every chunk travels once around the ring
and each rank it meets adds its own contribution; after p − 1 hops it is complete. In the
*all-gather* the complete chunks travel around once more and every rank keeps a copy. For p = 3,
with contributions a, b, c of ranks 0, 1, 2 (a rank's row; ``·`` is not yet of use):

.. code-block:: text

             start        hop 1          hop 2              hops 3 and 4
    rank 0   a0 a1 a2     .  .  ca2      .    Σ1   .        Σ0 Σ1 Σ2
    rank 1   b0 b1 b2     ab0 .  .       .    .    Σ2       Σ0 Σ1 Σ2
    rank 2   c0 c1 c2     .  bc1 .       Σ0   .    .        Σ0 Σ1 Σ2

**Cost.** A rank is in 2(p − 1) hops. In the reduce-scatter it sends every chunk but r + 1, in the
all-gather every chunk but r + 2, so 2n − |chunk r+1| − |chunk r+2| elements; with p a divisor of
n that is 2n(p − 1)/p, on every rank alike, and each rank combines n(p − 1)/p of them:

    T = 2(p − 1)α + 2n(p − 1)/p·β + n(p − 1)/p·γ

**Why nobody sends less.** Look at one element. Before the first rank can know its sum, p − 1
messages must have brought the others' contributions together; only the last of these makes a rank
complete, and each of the p − 1 remaining ranks needs at least one message after that one. So an
element costs at least 2(p − 1) messages, n elements 2n(p − 1), and the busiest of p ranks sends at
least the p-th part of it. The ring meets the bound for every p; what it pays is the number of
hops, which grows with p, so it is for long vectors.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 69(2), 2009; Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19(1), 2005, for the cost model.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.step import Step
from psrt.partition import even_spans


def ring_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's hops of a ring all-reduce over ``n`` elements.

    Both phases walk the chunks backwards, so when the reduce-scatter ends rank ``r`` owns the
    finished sum of chunk ``(r + 1) mod p``; the all-gather starts there. Each element is summed
    by that one owner and copied by the rest, so all ranks hold the same bits.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks on the ring, p ≥ 1.
        n: elements in the vector, ≥ 0; some chunks are empty where ``n < p``.

    Yields:
        ``2 * (p - 1)`` steps, sending ``2 * n * (p - 1) / p`` elements in all where p divides n.

    >>> [(s.send.start, s.receive.start, s.combine) for s in ring_steps(0, 3, 3)]
    [(0, 2, True), (2, 1, True), (1, 0, False), (0, 2, False)]
    """
    chunks = even_spans(n, size)
    right, left = (rank + 1) % size, (rank - 1) % size
    # The all-gather sends first what the reduce-scatter finished last: chunk rank + 1.
    for first, combine in ((rank, True), (rank + 1, False)):
        for hop in range(size - 1):
            send, receive = (first - hop) % size, (first - hop - 1) % size
            yield Step(right, chunks[send], left, chunks[receive], combine)
