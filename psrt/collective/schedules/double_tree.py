"""All-reduce over two binary trees at once, pipelined, as a schedule. Pure: ranks and spans.

Each half of the vector is reduced to the root of its own tree and broadcast from there, in k
blocks that follow each other. ``two_trees.py`` has the trees, their
picture, and the colouring by which a rank sends at most one block and receives at most one in
every round. What rank 1 of 6, inner in tree 0 and leaf in tree 1, does with the blocks x₀ x₁ … of
half 0 and y₀ y₁ … of half 1 while blocks are on their way up:

.. code-block:: text

    round         t       t+1      t+2      t+3      t+4      t+5
    receives      x₁      x₁       x₂       x₂       x₃       x₃       from its two children
    sends         y₁      x₀       y₂       x₁       y₃       x₂       to its two parents

**Cost.** m = n/(2k) elements to a block. The last of k blocks passes an edge 2(k − 1) rounds after
the first, and the first need U rounds up and D down, U ≤ 3⌊lg p⌋ and D ≤ 2⌊lg p⌋, since an edge
waits for its colour by one round at most and upwards for a fold by one more. With mγ ≤ α + mβ and
an executor that folds beside the messages, one round more is for the last fold at the roots:

    T ≤ (4(k − 1) + U + D + 1)(α + mβ)  →  2nβ + O(lg p)α   for long vectors and many blocks

and about nγ more where it does one thing at a time. A rank sends at most 2n elements: half a
vector up in each tree, and down in the tree where it is inner half a vector to each of two
children. All ranks together send 2n(p − 1), the least there can be.

That is p/(p − 1) times the ring's bandwidth term, in O(lg p) rounds instead of 2(p − 1): for long
vectors on many ranks, where a ring's 2(p − 1)α shows. In the model halving-doubling beats it for p
a power of two; the trees keep their price for every p.

Elsewhere one finds 2⌈lg p⌉ + 2k rounds. With k counted over the whole vector and not per half, 2k
is the 4k above. But ⌈lg p⌉ rounds each way would need every edge to be served the moment its block
is there; the colours, which keep a rank from being in two messages at once, cost up to as much
again, and the fold comes on top. Counted from these steps:

==  ==  ==  =================  =====  =====  ===========================================
p   U   D   rounds with k = 1  k = 2  k = 8  4(k − 1) + U + D for k = 8, with U made even
==  ==  ==  =================  =====  =====  ===========================================
4   5   3   6                  11     35     37
8   8   6   11                 16     40     42
16  11  7   14                 21     45     47
64  17  11  22                 31     55     57
==  ==  ==  =================  =====  =====  ===========================================

**How many blocks.** With c = U + D about 4⌈lg p⌉, (4k + c)(α + mβ) is least where
k² = c·nβ/(8α) = ⌈lg p⌉·n/(2α/β).

**Same bits.** Each element is summed by one root, along one tree, and copied by the rest.

**No deadlock.** Rounds are the same on all ranks, and both ends of a message do it in the same
one; so by induction over the rounds every send meets its receive.

Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35(12), 2009. They have one root for both trees. An all-reduce does not
need one, so here all p ranks are in both trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import isqrt
from operator import attrgetter
from typing import NamedTuple

from psrt.collective.costs import LinkCosts
from psrt.collective.schedules.two_trees import Edge, two_trees
from psrt.collective.step import NOTHING, Step
from psrt.core.partition import Span, even_spans

#: α/β in elements: the number of float32 that travel while a message starts. 10 µs and 6 GB/s,
#: between the shared memory of a host and a fast network; the time is flat around the best k.
STARTING = 16_384


def default_blocks(size: int, n: int) -> int:
    """Return the blocks per half that suit ``n`` elements on ``size`` ranks.

    >>> default_blocks(8, 1000), default_blocks(8, 10_000_000)
    (1, 30)
    """
    return max(1, isqrt((size - 1).bit_length() * n // (2 * STARTING)))


class _Half(NamedTuple):
    """A send or a receive of one rank in one round."""

    round: int
    sends: bool
    peer: int
    span: Span
    combine: bool


def double_tree_steps(rank: int, size: int, n: int, *, blocks: int | None = None) -> Iterator[Step]:
    """Yield this rank's steps of an all-reduce over two pipelined binary trees.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks in both trees, p ≥ 1.
        n: elements in the vector, ≥ 0; some blocks are empty where it is small.
        blocks: number of blocks of each half of the vector, k ≥ 1; the same on all ranks.

    Yields:
        A step for each round in which this rank sends or receives, sending at most ``2 * n``
        elements in all.

    >>> [(s.send_to, s.receive_from, s.combine) for s in double_tree_steps(0, 2, 10, blocks=1)]
    [(1, 1, True), (1, 1, False)]
    """
    blocks = default_blocks(size, n) if blocks is None else blocks
    trains = [_blocks(half, blocks) for half in even_spans(n, 2)]
    begin_down = two_trees(size).up + 2 * (blocks - 1)  # when the last block is up
    halves: list[_Half] = []
    for edge in two_trees(size).edges[rank]:
        for i, span in enumerate(trains[edge.tree]):
            halves += _both_ways(rank, edge, span, edge.up + 2 * i, begin_down + edge.down + 2 * i)
    halves.sort()
    for _, raise_on_all in groupby(halves, attrgetter("round")):
        yield _step(list(raise_on_all))


def _both_ways(rank: int, edge: Edge, span: Span, up: int, down: int) -> tuple[_Half, _Half]:
    """Return what ``rank``, an end of ``edge``, does with one block: one way, and back."""
    if rank == edge.child:
        return (
            _Half(up, True, edge.parent, span, False),
            _Half(down, False, edge.parent, span, False),
        )
    return _Half(up, False, edge.child, span, True), _Half(down, True, edge.child, span, False)


def _step(halves: list[_Half]) -> Step:
    """Join a rank's halves of one round: at most one send and one receive."""
    to: int | None = None
    source: int | None = None
    send, receive, combine = NOTHING, NOTHING, False
    for half in halves:
        if half.sends:
            assert to is None, "the colours keep sends apart"
            to, send = half.peer, half.span
        else:
            assert source is None, "the colours keep receives apart"
            source, receive, combine = half.peer, half.span, half.combine
    return Step(to, send, source, receive, combine)


def _blocks(half: Span, blocks: int) -> list[Span]:
    cuts = even_spans(half.size, blocks)
    return [Span(half.start + cut.start, half.start + cut.stop) for cut in cuts]


def double_tree_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return an upper bound of the cost of the default number of blocks.

    The first blocks take U rounds up and D down, the last ones follow 2(k − 1) rounds later both
    ways; U is rounded up to be even, as the plan does. On the way up a round is as long as the
    longer of a message and the fold beside it, a last fold may be left over, and down nothing is
    folded. By induction no step ends later than its round. It is a bound, since ranks do not wait
    for a round to end, and are mostly through a little earlier. Two ranks need not take turns on
    their one edge: k rounds up and k down.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    blocks = default_blocks(p, int(nbytes / itemsize))
    m, trees = nbytes / (2 * blocks), two_trees(p)
    up = down = blocks
    if p > 2:
        up = 2 * (blocks - 1) + trees.up + trees.up % 2
        down = 2 * (blocks - 1) + trees.down
    message, fold = costs.message(m), m * costs.gamma
    return up * max(message, fold) + fold + down * message
