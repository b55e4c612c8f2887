"""All-reduce at one root, as a schedule: a parameter server in disguise. Pure: never buffers.

Rank 0 receives every vector, one by one in the order of the ranks, folds each as it arrives, and
sends the sum back in the same order:

.. code-block:: text

    p = 4     round   1    2    3    4    5    6
                     1→0  2→0  3→0  0→1  0→2  0→3
    rank 0 has       ab   abc  Σ

**Cost.** All 2(p − 1) messages pass the root, whose link is the bottleneck while the others
wait:

    T = 2(p − 1)(α + nβ) + (p − 1)nγ

All ranks together send 2n(p − 1), which is the minimum (``cost.py`` derives it), and the root half
of it, where the ring's busiest rank sends 1/p. It is what a parameter server of one
shard costs; with p shards, one on each rank, it would send what a ring sends.

**Same bits.** Rank 0 alone sums, in rank order, and the rest copy. The bits are those of
``naive.py``.

**No deadlock.** Only the root waits for more than one peer, and it serves them in rank order: each
of the others is at its first step until its turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.costs import LinkCosts
from psrt.collective.step import Step
from psrt.core.partition import Span


def root_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's steps of an all-reduce at rank 0.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks that take part, p ≥ 1.
        n: elements in the vector, ≥ 0.

    Yields:
        ``2 * (p - 1)`` steps on rank 0, two on the others.

    >>> [(s.send_to, s.receive_from) for s in root_steps(0, 3, 10)]
    [(None, 1), (None, 2), (1, None), (2, None)]
    """
    whole = Span(0, n)
    if rank:
        yield Step.sending(0, whole)
        yield Step.receiving(0, whole, combine=False)
        return
    for source in range(1, size):
        yield Step.receiving(source, whole, combine=True)
    for to in range(1, size):
        yield Step.sending(to, whole)


def root_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return the cost at the top of this file; what the root sends is not combined.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    return costs.chain(2 * (p - 1), 2 * (p - 1) * nbytes, (p - 1) * nbytes)
