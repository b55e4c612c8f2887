"""Ring all-reduce as a schedule. Pure: knows ranks and spans, never buffers or MPI.

The vector is split into p chunks. In the *reduce-scatter* every chunk travels once around the ring
and each rank it meets adds its own contribution; after p − 1 hops it is complete. In the
*all-gather* the complete chunks travel around once more and every rank keeps a copy. For p = 3,
with contributions a, b, c of ranks 0, 1, 2 (one row per rank; ``.`` is a value that this rank no
longer needs):

.. code-block:: text

             start        hop 1           hop 2              hops 3 and 4
    rank 0   a0 a1 a2     .   a1  ca2     .    Σ1   .        Σ0 Σ1 Σ2
    rank 1   b0 b1 b2     ab0 .   b2      .    .    Σ2       Σ0 Σ1 Σ2
    rank 2   c0 c1 c2     c0  bc1 .       Σ0   .    .        Σ0 Σ1 Σ2

**Cost.** A rank is in 2(p − 1) hops. In the reduce-scatter it sends every chunk but r + 1, in the
all-gather every chunk but r + 2, so 2n − |chunk r+1| − |chunk r+2| elements; with p a divisor of
n that is 2n(p − 1)/p, on every rank alike, and each rank combines n(p − 1)/p of them:

    T = 2(p − 1)α + 2n(p − 1)/p·β + n(p − 1)/p·γ

**Why no algorithm sends less.** An element costs at least 2(p − 1) messages, n elements 2n(p − 1),
and the busiest of p ranks sends at least 1/p of them: ``analysis/cost.py`` derives it. The ring
meets this bound for every p. Its price is the number of hops, which grows with p, so it is for long
vectors.

**Same bits.** Each element is summed by the ranks that its chunk passes and copied by the rest.

**No deadlock.** In each hop all ranks post a send to the right and a receive from the left at
once, so every send meets its receive in the same hop.

**Order.** The ring may pass the ranks in any order, ideally so that neighbours are close: if the
ranks of a host follow each other, only one link per host is used. Positions then replace ranks
above; chunk i starts at position i.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 69(2), 2009; Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19(1), 2005, for the cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psrt.collective.costs import LinkCosts
from psrt.collective.step import Step
from psrt.core.errors import ConfigError
from psrt.core.partition import Span, even_span, even_spans


@dataclass(frozen=True, slots=True)
class Ring:
    """One rank's place on a ring: its position, and the ranks after and before it.

    >>> Ring.of(3, 4, order=(0, 1, 3, 2))
    Ring(position=2, size=4, right=2, left=1)
    """

    position: int
    size: int
    right: int
    left: int

    @classmethod
    def of(cls, rank: int, size: int, order: Sequence[int] | None = None) -> Ring:
        """Return the place of ``rank`` on the ring that passes ``order``, or 0, 1, … p − 1.

        Args:
            rank: in ``[0, size)``.
            size: ranks on the ring, p ≥ 1.
            order: each rank once; None is 0, 1, … p − 1.

        Raises:
            ConfigError: if ``order`` does not name each rank once.
        """
        if order is None:
            return cls(rank, size, (rank + 1) % size, (rank - 1) % size)
        if sorted(order) != list(range(size)):
            raise ConfigError(f"ring order {list(order)}, expected each of {size} ranks once")
        position = list(order).index(rank)
        return cls(position, size, order[(position + 1) % size], order[position - 1])

    def hops(self, first: int) -> Iterator[tuple[int, int]]:
        """Yield which chunk is sent and which received in each hop of one journey.

        The chunks are walked backwards: what was received in a hop is sent in the next one.

        Args:
            first: chunk that is sent first; the last one received is ``first + 1``.
        """
        for hop in range(self.size - 1):
            yield (first - hop) % self.size, (first - hop - 1) % self.size


def ring_steps(
    rank: int, size: int, n: int, *, order: Sequence[int] | None = None
) -> Iterator[Step]:
    """Yield this rank's hops of a ring all-reduce over ``n`` elements.

    When the reduce-scatter ends, position ``r`` owns the finished sum of chunk
    ``(r + 1) mod p``; the all-gather starts there.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks on the ring, p ≥ 1.
        n: elements in the vector, ≥ 0; some chunks are empty where ``n < p``.
        order: the ranks as the ring passes them; the same on all ranks. Default: 0, 1, … p − 1.

    Yields:
        ``2 * (p - 1)`` steps, sending ``2 * n * (p - 1) / p`` elements in all where p divides n.

    Raises:
        ConfigError: if ``order`` does not name each rank once.

    >>> [(s.send.start, s.receive.start, s.combine) for s in ring_steps(0, 3, 3)]
    [(0, 2, True), (2, 1, True), (1, 0, False), (0, 2, False)]
    """
    chunks, ring = even_spans(n, size), Ring.of(rank, size, order)
    # The all-gather sends first what the reduce-scatter finished last.
    for first, combine in ((ring.position, True), (ring.position + 1, False)):
        for send, receive in ring.hops(first):
            yield Step(ring.right, chunks[send], ring.left, chunks[receive], combine)


def ring_owned(rank: int, size: int, n: int) -> Span:
    """Return the chunk whose sum ``rank`` finishes, where the ring passes 0, 1, … p − 1.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks on the ring, p ≥ 1.
        n: elements in the vector, ≥ 0.

    >>> [tuple(ring_owned(rank, 3, 7)) for rank in range(3)]
    [(3, 5), (5, 7), (0, 3)]
    """
    return even_span(n, size, (rank + 1) % size)


def ring_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return the cost at the top of this file: hops of n/p bytes, the first half combined.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    share = (p - 1) / p * nbytes
    return costs.chain(2 * (p - 1), 2 * share, share)
