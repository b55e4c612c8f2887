"""Collectives whose messages travel along one tree, or along two at once: places that show them.

The trees are read off the messages, so a schedule need not say that it has any. One tree is drawn
with its root at the top. Of two, the ranks that are inside the first stand above the middle and
those that are inside the second below it, each the further out the nearer it is to its root::

    inside the first               3
                           1               5
    inside the second  0               4
                               2

Pure: columns and levels, no pixels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from psrt.views.explain.explanation import Explanation

#: A line between two ranks, the lower number first.
Line = tuple[int, int]
#: By rank its children; parents come before their children.
_Below = Mapping[int, list[int]]
_RIGHT, _UNDER = (1.0, 0.0), (0.0, 1.0)


class Spot(NamedTuple):
    """Where a rank is."""

    #: From the left.
    column: float
    #: From the top.
    level: int
    #: Where from there no line is: a direction of length 1.
    free: tuple[float, float]


def trees_of(explanation: Explanation) -> list[frozenset[Line]]:
    """Return the one or two trees that all messages follow, or none."""
    size, trace = explanation.size, explanation.trace
    by_cell: list[set[Line]] = [set() for _ in range(trace.cells.in_vector)]
    for hop in trace.hops:
        for cell in hop.send:
            if not hop.local and cell < len(by_cell):
                by_cell[cell].add((min(hop.source, hop.target), max(hop.source, hop.target)))
    every = set[Line]().union(*by_cell)
    # All cells together follow one tree, or each cell follows one of two.
    found = [every] if len(every) == size - 1 else by_cell
    trees = list(dict.fromkeys(map(frozenset, found)))
    if size < 3 or len(trees) > 2 or not all(_is_tree(it, size) for it in trees):
        return []
    return trees


def spots_of(explanation: Explanation, trees: Collection[frozenset[Line]]) -> list[Spot]:
    """Return by rank where it is in a picture of one or two trees.

    Of two that is nowhere if a rank is inside both.
    """
    roots = [_root(explanation, tree) for tree in trees]
    below = [_children(tree, root) for tree, root in zip(trees, roots, strict=True)]
    ranks = range(explanation.size)
    if len(below) == 1:
        columns, depths = _columns(below[0], roots[0]), _depths(below[0])
        free = [_RIGHT if below[0][rank] else _UNDER for rank in ranks]
        return [Spot(columns[rank], depths[rank], free[rank]) for rank in ranks]
    first, second = map(_heights, below)
    if any(first[rank] and second[rank] for rank in ranks):
        return []
    levels = [second[rank] - first[rank] for rank in ranks]
    known = sorted(set(levels))  # the middle has nobody where no rank is a leaf of both
    return [Spot(rank, known.index(level), _RIGHT) for rank, level in enumerate(levels)]


def _is_tree(lines: Collection[Line], size: int) -> bool:
    return len(lines) == size - 1 and len(_children(lines, 0)) == size


def _root(explanation: Explanation, tree: Collection[Line]) -> int:
    """Return the root of a collective that has one, else who first has the sum of all."""
    if explanation.root is not None:
        return explanation.root
    for hop in explanation.trace.hops:
        whole = any(it and it.whose.bit_count() == explanation.size for it in hop.after)
        if whole and (min(hop.source, hop.target), max(hop.source, hop.target)) in tree:
            return hop.target
    return 0


def _children(lines: Collection[Line], root: int) -> _Below:
    near: dict[int, list[int]] = {}
    for a, b in sorted(lines):
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    below: dict[int, list[int]] = {}
    pending = [root]
    for rank in pending:  # grows while it is walked
        below[rank] = sorted(it for it in near.get(rank, ()) if it not in below)
        pending += below[rank]
    return below


def _depths(below: _Below) -> dict[int, int]:
    """Return by rank how far it is from the root."""
    depths = {next(iter(below)): 0}
    for rank, children in below.items():
        depths |= dict.fromkeys(children, depths[rank] + 1)
    return depths


def _heights(below: _Below) -> dict[int, int]:
    """Return by rank how far it is from the furthest leaf below it."""
    heights: dict[int, int] = {}
    for rank in reversed(list(below)):
        heights[rank] = max((heights[it] + 1 for it in below[rank]), default=0)
    return heights


def _columns(below: _Below, root: int) -> dict[int, float]:
    """Return by rank its column: leaves side by side, others amid their children."""
    leaves = (rank for rank in _walk(below, root) if not below[rank])
    columns = {rank: float(i) for i, rank in enumerate(leaves)}
    for rank in reversed(list(below)):
        if below[rank]:
            columns[rank] = sum(columns[it] for it in below[rank]) / len(below[rank])
    return columns


def _walk(below: _Below, rank: int) -> Iterator[int]:
    yield rank
    for child in below[rank]:
        yield from _walk(below, child)
