"""Segmented ring all-reduce as a schedule: a ring that folds while it sends. Pure: never buffers.

In a ring (``ring.py``) a rank must fold its own part into a chunk before it sends the chunk on, so
wire and processor alternate. Here each chunk is split into S segments that follow each other
through every hop. While segment i + 1 is on its way, segment i, which came before it, is folded.
When the next hop begins with segment 0, that is long finished. For S = 2, wire and processor of a
rank:

.. code-block:: text

    step    hop 1, seg 0   hop 1, seg 1   hop 2, seg 0   hop 2, seg 1   hop 3, seg 0
    wire    [  receive  ]  [  receive  ]  [  receive  ]  [  receive  ]  …
    fold                   [ 1, 0 ]       [ 1, 1 ]       [ 2, 0 ]       [ 2, 1 ]

**Cost.** m = n/(pS) elements to a segment, 2(p − 1)S steps. With an executor that folds beside
the next step, S ≥ 2 and mγ ≤ α + mβ, no fold is ever waited for, not even the last ones, beside
which the all-gather begins:

    T = 2(p − 1)Sα + 2n(p − 1)/p·β

against the ring's T: (p − 1)/p·nγ is saved for 2(p − 1)(S − 1)α. It pays where a chunk takes
longer to fold than 2(S − 1) messages to start. It sends and folds what the ring
does, which is the minimum. With an executor that does one thing at a time it is a ring with more
messages.

**Same bits** and **no deadlock** as in ``ring.py``: it is S rings that take turns on the same
wires.

Source: the same interleaving is in Gloo's ``allreduce_ring_chunked`` and Open MPI's
``allreduce_intra_ring_segmented``.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.costs import LinkCosts
from psrt.collective.schedules.ring import Ring, ring_seconds
from psrt.collective.step import Step
from psrt.core.partition import Span, even_spans

#: A chunk of at least this many elements is split, and no segment has more. As float32 that is
#: 256 KB: a segment is still in a core's own cache when it is folded. On a wire of 8 GB/s it takes
#: 30 µs, several times the start of a message; a shorter fold would save less than a message costs.
SEGMENT = 65_536


def default_segments(size: int, n: int) -> int:
    """Return the segments per chunk that suit ``n`` elements: between half and all of ``SEGMENT``.

    >>> default_segments(4, 100), default_segments(4, 4 * 65_536), default_segments(4, 1_000_000)
    (1, 2, 4)
    """
    return 1 + n // size // SEGMENT


def segmented_ring_steps(
    rank: int, size: int, n: int, *, segments: int | None = None
) -> Iterator[Step]:
    """Yield this rank's steps of a segmented ring all-reduce over ``n`` elements.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks on the ring, p ≥ 1.
        n: elements in the vector, ≥ 0; some chunks and segments are empty where it is small.
        segments: number of segments of each chunk, ≥ 1; the same on all ranks.

    Yields:
        ``2 * (p - 1) * segments`` steps, sending what a ring sends.

    >>> [(s.send.start, s.receive.start) for s in segmented_ring_steps(0, 2, 4, segments=2)]
    [(0, 2), (1, 3), (2, 0), (3, 1)]
    """
    segments = default_segments(size, n) if segments is None else segments
    pieces, ring = [_cut(chunk, segments) for chunk in even_spans(n, size)], Ring.of(rank, size)
    for first, combine in ((rank, True), (rank + 1, False)):
        for send, receive in ring.hops(first):
            for leaving, coming in zip(pieces[send], pieces[receive], strict=True):
                yield Step(ring.right, leaving, ring.left, coming, combine)


def _cut(chunk: Span, segments: int) -> list[Span]:
    cuts = even_spans(chunk.size, segments)
    return [Span(chunk.start + cut.start, chunk.start + cut.stop) for cut in cuts]


def segmented_ring_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return the cost of the default number of segments, with folds beside the next step.

    Let a = α + mβ be a message and g = mγ a fold. The first step takes a; each of the next
    (p − 1)S, among them the first one of the all-gather, takes max(a, g), as the fold of the step
    before runs beside it; the (p − 1)S − 1 that are left have no fold beside them and take a.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    segments = default_segments(p, int(nbytes / itemsize))
    if segments == 1:
        return ring_seconds(p, nbytes, costs, itemsize)
    m, steps = nbytes / (p * segments), (p - 1) * segments
    message = costs.message(m)
    return steps * (message + max(message, m * costs.gamma))
