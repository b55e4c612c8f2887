"""All-to-all by pairwise exchange, as a schedule. Pure: knows ranks and spans, never buffers.

The vector is a p × p table of blocks: row i is chunk i, and each row is split into p blocks again.
Rank r starts with row r, its block (r, j) being meant for rank j, and ends with column r, the
blocks (i, r), each at its own place: a transposition of who has what, not of the table. A caller
has two arrays of p blocks, the row and the column; ``on_blocks`` puts the steps on these.

.. code-block:: text

    p = 3       starts with              ends with              rounds: rank r sends to
    rank 0      00 01 02                 00 · · 10 · · 20       r + 1, then r + 2, and receives
    rank 1      10 11 12                 · 01 · · 11 · · 21     from r − 1, then r − 2
    rank 2      20 21 22                 · · 02 · · 12 · · 22

**Cost.** p − 1 rounds of one block of n/p² elements, so with p² a divisor of n

    T = (p − 1)α + n(p − 1)/p²·β

Each rank must send p − 1 blocks of its row, so no algorithm sends less; fewer rounds (Bruck) would
send blocks more than once, which pays for very short ones only.

**No deadlock.** Round k is a permutation, r → r + k: all post both halves, and every send meets
its receive. In this order no rank receives from two at once.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from psrt.collective.step import Step
from psrt.core.partition import Span


def block_of(n: int, size: int, row: int, column: int) -> Span:
    """Return block ``(row, column)`` of the table that ``n`` elements make.

    The same spans as ``even_spans(n, size)`` and ``even_spans`` of each row, one block at a time.

    Args:
        n: elements of the whole table, ≥ 0.
        size: number of ranks, p ≥ 1; the table has p × p blocks.
        row: rank that the block starts on, in ``[0, size)``.
        column: rank that it ends on, in ``[0, size)``.

    >>> block_of(10, 2, 1, 0)
    Span(start=5, stop=8)
    """
    around = _part(Span(0, n), size, row)
    return _part(around, size, column)


def all_to_all_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's steps of an all-to-all over the table that ``n`` elements make.

    Args:
        rank: this rank, in ``[0, size)``; it starts with row ``rank`` and ends with the column.
        size: ranks that take part, p ≥ 1.
        n: elements in the whole table, ≥ 0; some blocks are empty where ``n < p * p``.

    Yields:
        ``p - 1`` exchanges of one block each.

    >>> [(s.send_to, s.send.start, s.receive_from, s.receive.start)
    ...  for s in all_to_all_steps(0, 3, 9)]
    [(1, 1, 2, 6), (2, 2, 1, 3)]
    """
    for away in range(1, size):
        to, source = (rank + away) % size, (rank - away) % size
        send, receive = block_of(n, size, rank, to), block_of(n, size, source, rank)
        yield Step(to, send, source, receive, False)


def on_blocks(steps: Iterable[Step], rank: int, size: int, n: int) -> Iterator[Step]:
    """Put the steps over a table on the arrays of ``size`` blocks that a rank really has.

    Args:
        steps: of ``all_to_all_steps(rank, size, n * size)``.
        rank: this rank, in ``[0, size)``.
        size: ranks that take part, p ≥ 1.
        n: elements of each of the two arrays, a multiple of ``size``.

    Yields:
        the same steps, which send from ``n`` elements, the row, and receive into as many behind
        them, the column.

    >>> [(s.send_to, s.send.start, s.receive_from, s.receive.start)
    ...  for s in on_blocks(all_to_all_steps(1, 3, 9), 1, 3, 3)]
    [(2, 2, 0, 3), (0, 0, 2, 5)]
    """
    block = n // size
    for step in steps:
        assert step.receive_from is not None, "every step is an exchange"
        start, source = step.send.start - rank * n, n + step.receive_from * block
        send, receive = Span(start, start + block), Span(source, source + block)
        yield Step(step.send_to, send, step.receive_from, receive, False)


def _part(span: Span, parts: int, index: int) -> Span:
    size, larger = divmod(span.size, parts)
    start = span.start + index * size + min(index, larger)
    return Span(start, start + size + (index < larger))
