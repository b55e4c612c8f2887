"""Scatter from a root along a binomial tree, as a schedule. Pure: ranks and spans, never buffers.

The root starts with the whole vector and rank r ends with chunk r. Each rank takes from its parent
the chunks of its whole subtree (``binomial.py``) and hands each child those of its subtree. For
p = 4 and root 0: 0→2 with chunks 2 and 3, then 0→1 and 2→3 with one each.

**Cost.** In round i the messages hold 2**i chunks at most, the longest first, so for p a power of
two, on the root as on the critical path,

    T = lg p·α + n(p − 1)/p·β

and ⌈lg p⌉ rounds for every p. The root must send p − 1 chunks in any case, and no fewer
rounds can reach all ranks, so this is optimal in both. Each chunk takes as many hops as its
rank's number has bits, so all ranks together send up to lg p / 2 times the vector.

**Where chunks lie.** A chunk keeps its position in the vector on every rank that it passes. The
ranks of a subtree are consecutive numbers, which wrap around after rank p − 1; the message of the
one subtree that wraps is sent as two.

**No deadlock.** A rank waits for its parent only, as in ``broadcast.py``.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.schedules.binomial import Binomial
from psrt.collective.step import Step
from psrt.core.partition import Span, even_spans


def subtree_spans(place: Binomial, n: int) -> list[Span]:
    """Return the spans that the chunks of the ranks in the subtree of ``place`` tile: 1 or 2.

    >>> subtree_spans(Binomial(rank=3, size=4, root=1), 4)  # ranks 3 and 0
    [Span(start=3, stop=4), Span(start=0, stop=1)]
    """
    chunks, below = even_spans(n, place.size), place.descendants
    first, last = (below[0] + place.root) % place.size, (below[-1] + place.root) % place.size
    if first <= last:
        return [Span(chunks[first].start, chunks[last].stop)]
    return [Span(chunks[first].start, n), Span(0, chunks[last].stop)]


def scatter_steps(rank: int, size: int, n: int, root: int = 0) -> Iterator[Step]:
    """Yield this rank's steps of a binomial scatter from ``root``.

    Args:
        rank: this rank, in ``[0, size)``; it ends with chunk ``rank``.
        size: ranks in the tree, p ≥ 1.
        n: elements in the vector, ≥ 0.
        root: rank whose vector it is.

    Yields:
        One or two steps per edge of the tree at this rank, the longest way down first.

    >>> [(s.send_to, s.send) for s in scatter_steps(0, 4, 4)]
    [(2, Span(start=2, stop=4)), (1, Span(start=1, stop=2))]
    """
    place = Binomial(rank, size, root)
    if place.parent is not None:
        for span in subtree_spans(place, n):
            yield Step.receiving(place.parent, span, combine=False)
    for child in reversed(place.children):
        for span in subtree_spans(Binomial(child, size, root), n):
            yield Step.sending(child, span)
