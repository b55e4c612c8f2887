r"""Two binary trees over the same ranks, each rank inner in at most one. Pure: numbers only.

In a binary tree half of the ranks are leaves and never pass anything on. Here each half of the
vector has its own tree, such that an inner rank of one tree is a leaf of the other, and all
wires are busy both ways.

**The trees.** Number the places of a binary tree from left to right, 1 to p: place i stands above
2**k − 1 others, where 2**k is the greatest power of two that divides i. Odd places are leaves, even
ones inner. In the first tree rank r has place r + 1. In the second, for p even, the order is turned
around, place p − r, and for p odd shifted by one, (r + 1) mod p + 1: both turn every even place
into an odd one. For p = 6:

.. code-block:: text

    place         4              rank, tree 0      3           tree 1      2
                /   \                            /   \                   /   \
              2       6                        1       5               4       0
             / \     /                        / \     /               / \     /
            1   3   5                        0   2   4               5   3   1

**When each edge works.** A rank receives from one parent in each tree, and sends to two children in
one tree only. So in the graph that has each rank once as a sender and once as a receiver, and the
edges of both trees, no node has more than two edges, and every cycle is even: its edges can be
coloured 0 and 1 such that both edges of a node differ. Edges of colour c work in the rounds of
parity c, and then no rank sends to two or receives from two at once. Upwards the arrows turn and
the same colours do.

An edge first works some rounds after the edges that it waits for: going down, the parent's; going
up, the children's. ``Edge`` says when, and later blocks follow every two rounds.

Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35(12), 2009. They find a colour in O(log p) steps from the number alone;
to walk through all edges takes O(p), once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

#: Rounds from the last fold that an edge waits for to its own message: the round in between is for
#: that fold, beside the message of another edge.
_FOLDED_AFTER = 2


class Edge(NamedTuple):
    """Parent and child in one of the two trees, and the rounds of their messages."""

    #: 0 or 1: also the half of the vector that it carries.
    tree: int
    parent: int
    child: int
    #: Round in which the first block goes up; the others follow every two rounds.
    up: int
    #: Round in which the first block goes down, counted from when both roots have the sum.
    down: int


@dataclass(frozen=True, slots=True)
class TwoTrees:
    """Both trees over p ranks."""

    #: For each rank, the edges of both trees that end there: at most four.
    edges: tuple[tuple[Edge, ...], ...]
    #: Rounds that the first blocks take all the way up, and down.
    up: int
    down: int


@lru_cache(maxsize=16)
def two_trees(size: int) -> TwoTrees:
    """Return the trees over ``size`` ≥ 1 ranks.

    >>> [(edge.tree, edge.parent, edge.child) for edge in two_trees(6).edges[1]]
    [(0, 1, 0), (0, 1, 2), (0, 3, 1), (1, 0, 1)]
    """
    parents = [_parents(size, tree) for tree in (0, 1)]
    colours = _colours(parents)
    edges = sorted(edge for tree in (0, 1) for edge in _timed(tree, parents[tree], colours))
    at: list[list[Edge]] = [[] for _ in range(size)]
    for edge in edges:
        at[edge.parent].append(edge)
        at[edge.child].append(edge)
    up = max((edge.up + 1 for edge in edges), default=0)
    down = max((edge.down + 1 for edge in edges), default=0)
    return TwoTrees(tuple(tuple(row) for row in at), up, down)


#: An edge by its lower end: (tree, child).
_Key = tuple[int, int]


def _parents(size: int, tree: int) -> list[int | None]:
    """Return each rank's parent in ``tree``; None at the root."""

    def place(rank: int) -> int:
        if tree == 0:
            return rank + 1
        return (rank + 1) % size + 1 if size % 2 else size - rank

    rank_at = {place(rank): rank for rank in range(size)}
    above = [_place_above(place(rank), size) for rank in range(size)]
    return [None if up is None else rank_at[up] for up in above]


def _place_above(place: int, size: int) -> int | None:
    low = place & -place
    if 2 * low > size and place == low:
        return None
    above = (place ^ low) | 2 * low
    # The right flank ends at p: there the parent is the place whose right subtree this one is in.
    return above if above <= size else place ^ low


def _children(parents: Sequence[int | None]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(child)
    return children


def _colours(parents: Sequence[Sequence[int | None]]) -> dict[_Key, int]:
    """Colour all edges 0 or 1 so that siblings differ, and the two edges into a rank differ."""
    children = [_children(row) for row in parents]
    colours: dict[_Key, int] = {}

    def neighbours(tree: int, child: int) -> Iterator[_Key]:
        parent = parents[tree][child]
        assert parent is not None
        yield from ((tree, other) for other in children[tree][parent] if other != child)
        if parents[1 - tree][child] is not None:
            yield 1 - tree, child

    everything = (
        (t, c) for t in (0, 1) for c, parent in enumerate(parents[t]) if parent is not None
    )
    for start in everything:
        pending = [] if start in colours else [(start, 0)]
        while pending:
            key, colour = pending.pop()
            if key not in colours:
                colours[key] = colour
                pending.extend((other, 1 - colour) for other in neighbours(*key))
            assert colours[key] == colour, "every circle is even"
    return colours


def _timed(tree: int, parents: Sequence[int | None], colours: dict[_Key, int]) -> Iterator[Edge]:
    """Yield the edges of ``tree``, each in the first round of its colour after those it needs."""
    children = _children(parents)
    order = [parents.index(None)]
    for rank in order:  # grows while it is walked: parents before children
        order.extend(children[rank])
    up, down = [0] * len(parents), [0] * len(parents)
    for rank in order[1:]:
        parent = parents[rank]
        assert parent is not None
        above = down[parent] + 1 if parents[parent] is not None else 0
        down[rank] = _first(above, colours[tree, rank])
    for rank in reversed(order[1:]):
        below = max((up[child] + _FOLDED_AFTER for child in children[rank]), default=0)
        up[rank] = _first(below, colours[tree, rank])
    for rank in order[1:]:
        parent = parents[rank]
        assert parent is not None
        yield Edge(tree, parent, rank, up[rank], down[rank])


def _first(earliest: int, parity: int) -> int:
    return earliest + (earliest + parity) % 2
