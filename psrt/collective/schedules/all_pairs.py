"""All-pairs all-reduce as a schedule: each chunk straight to its owner, and back. Pure: no buffers.

Rank r owns chunk r. In p − 1 rounds every rank sends each other rank the chunk that that rank owns.
Each owner folds the p contributions to its own chunk, in rank order, and in p − 1 more rounds
sends the result to all. For p = 3, rank 1, with contributions a, b, c of ranks 0, 1, 2:

.. code-block:: text

                vector       workspace
    start       b0 b1 b2      .    .
    round 1     b0 b1 b2      a1   .       sends b2 to rank 2, receives a1 from rank 0
    round 2     b0 b1 b2      a1   c1      sends b0 to rank 0, receives c1 from rank 2
    fold        .  Σ1 .       .    .       (a1 + b1) + c1
    round 3     Σ0 Σ1 .                    sends Σ1 to rank 2, receives Σ0 from rank 0
    round 4     Σ0 Σ1 Σ2                   sends Σ1 to rank 0, receives Σ2 from rank 2

**Cost.** 2(p − 1) rounds of n/p elements, where p divides n, and p − 1 folds of as many:

    T = 2(p − 1)α + 2n(p − 1)/p·β + n(p − 1)/p·γ

In the α-β-γ model it costs the same as a ring: the same messages, and no all-reduce sends less.
On a real network they use p(p − 1) links instead of p, and share them if the ranks of a host send
at once. Its advantage over the ring is that a contribution travels *once*, from its rank to the one
that folds it, and a result once from there. So a message may be a lossy code of its numbers and
still be coded once on each way, where a ring would code the sum again at every hop.

**Same bits.** One owner folds each element, in rank order, and the rest copy it. The order is the
same everywhere in the vector, so it does not matter how the vector is split.

**No deadlock.** Round k of each half is a permutation, r → r + k: all post both halves, and every
send meets its receive.

Source: Cowan, Maleki, Musuvathi, Saarikivi and Xiong, "MSCCLang: Microsoft Collective Communication
Language", ASPLOS 2023, section 7, for the name; with coded chunks it is the scatter-reduce,
all-gather of Markov, Ramezanikebrya and Alistarh, "CGX", Middleware 2022.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.costs import LinkCosts
from psrt.collective.schedules.naive import fold_in_order
from psrt.collective.schedules.ring import ring_seconds
from psrt.collective.step import Step
from psrt.core.partition import Span, even_spans


def all_pairs_workspace(size: int, n: int) -> int:
    """Return the elements of workspace: the other ranks' parts of the longest chunk."""
    return (size - 1) * even_spans(n, size)[0].size


def all_pairs_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's steps of an all-reduce by direct exchange.

    Args:
        rank: this rank, in ``[0, size)``; it owns chunk ``rank``.
        size: ranks that take part, p ≥ 1.
        n: elements in the vector, ≥ 0; some chunks are empty where ``n < p``.

    Yields:
        ``p - 1`` exchanges of chunks, ``p - 1`` local folds, a copy of the result into the vector
        except on rank 0, and ``p - 1`` exchanges of results.

    >>> [(s.send_to, s.send.start, s.receive_from, s.receive.start)
    ...  for s in all_pairs_steps(0, 3, 3)]
    [(1, 1, 2, 4), (2, 2, 1, 3), (0, 3, 0, 0), (0, 4, 0, 0), (1, 0, 2, 2), (2, 0, 1, 1)]
    """
    chunks = even_spans(n, size)
    own, longest = chunks[rank], chunks[0].size
    # The workspace holds the other ranks' contributions to the own chunk, in order.
    starts = [n + i * longest for i in range(size - 1)]
    slots = [Span(start, start + own.size) for start in starts]
    homes = [*slots[:rank], own, *slots[rank:]]
    away = [((rank + k) % size, (rank - k) % size) for k in range(1, size)]
    for to, source in away:
        yield Step(to, chunks[to], source, homes[source], False)
    yield from fold_in_order(rank, homes, own)
    for to, source in away:
        yield Step(to, own, source, chunks[source], False)


def all_pairs_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return the cost at the top of this file, which is a ring's.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    return ring_seconds(p, nbytes, costs, itemsize)
