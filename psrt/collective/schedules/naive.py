"""Naive all-reduce as a schedule: every rank sends everything to every rank. Pure: never buffers.

Every rank collects the p contributions, its own and p − 1 in its workspace, and folds them itself
in the order of the ranks. For p = 3, rank 1:

.. code-block:: text

                vector   workspace
    start         b       .    .
    round 1       b       a    .         sends b to rank 2, receives a from rank 0
    round 2       b       a    c         sends b to rank 0, receives c from rank 2
    fold          b    (a+b)+c c         a+b, then c; 2n folds
    copy          Σ       Σ    c

**Cost.** p − 1 rounds of the whole vector and p − 1 folds of it on every rank:

    T = (p − 1)(α + nβ + nγ)

That is p/2 times what a ring sends, and p times what it folds: the cost of a parameter server,
without a server. It is the baseline for the others, and the plainest way to a result that does not
depend on the schedule: it is the fold in rank order.

**Same bits.** All ranks compute the same expression, ((x₀ + x₁) + x₂) + …, operand for operand.

**No deadlock.** Round k is a permutation, r → r + k: all post both halves, and every send meets
its receive. In this order no rank receives from two at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.collective.costs import LinkCosts
from psrt.collective.step import Step
from psrt.core.partition import Span


def naive_workspace(size: int, n: int) -> int:
    """Return the elements of workspace: the other ranks' vectors."""
    return (size - 1) * n


def naive_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's steps of an all-reduce in which all send all to all.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks that take part, p ≥ 1.
        n: elements in the vector, ≥ 0.

    Yields:
        ``p - 1`` exchanges of the whole vector, ``p - 1`` local folds, and a copy of the result
        into the vector, except on rank 0, whose vector is what it folds into.

    >>> [(s.send_to, s.receive_from, s.receive.start) for s in naive_steps(1, 3, 10)]
    [(2, 0, 10), (0, 2, 20), (1, 1, 10), (1, 1, 10), (1, 1, 0)]
    """
    whole = Span(0, n)
    # The workspace holds the vectors of the other ranks in order.
    slots = [Span((1 + i) * n, (2 + i) * n) for i in range(size - 1)]
    homes = [*slots[:rank], whole, *slots[rank:]]
    for away in range(1, size):
        to, source = (rank + away) % size, (rank - away) % size
        yield Step(to, whole, source, homes[source], False)
    yield from fold_in_order(rank, homes, whole)


def fold_in_order(rank: int, homes: Sequence[Span], into: Span) -> Iterator[Step]:
    """Yield the local steps of ``rank`` that fold ``homes`` in their order.

    Args:
        rank: whose steps they are.
        homes: where the contributions are, by rank; the first one is folded into.
        into: the span among them where the result must end.

    Yields:
        a fold for each but the first, and a copy where that is not ``into``.
    """
    first, *others = homes
    for other in others:
        yield Step.local(rank, other, first, combine=True)
    if first != into:
        yield Step.local(rank, first, into, combine=False)


def naive_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return the cost at the top of this file: one message after the other on every rank.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    return costs.chain(p - 1, (p - 1) * nbytes, (p - 1) * nbytes)
