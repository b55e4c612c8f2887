"""Graph: which ranks send to which, without weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from psrt.core.errors import ConfigError


@dataclass(frozen=True)
class Graph:
    """Ranks and the edges between them; no rank has an edge to itself."""

    #: Number of ranks, N ≥ 1.
    size: int
    #: (i, j) where rank i sends to rank j.
    edges: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, size: int, edges: Iterable[tuple[int, int]], *, directed: bool = False) -> Graph:
        """Return the graph of these edges, without those from a rank to itself.

        Args:
            size: number of ranks, at least 1.
            edges: (i, j), from i to j.
            directed: whether an edge goes one way only.

        >>> sorted(Graph.of(3, [(0, 1), (1, 2)]).edges)
        [(0, 1), (1, 0), (1, 2), (2, 1)]

        Raises:
            ConfigError: if an edge is of a rank that does not exist.
        """
        found = {(i, j) for i, j in edges if i != j}
        for edge in found:
            if not all(0 <= rank < size for rank in edge):
                raise ConfigError(
                    f"the edge {edge[0]} {edge[1]} is of ranks that do not exist, expected ranks "
                    f"from 0 to {size - 1}"
                )
        if not directed:
            found |= {(j, i) for i, j in found}
        return cls(size, frozenset(found))

    @cached_property
    def receivers(self) -> tuple[tuple[int, ...], ...]:
        """By rank, the ranks that it sends to, ascending."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for i, j in sorted(self.edges):
            found[i].append(j)
        return tuple(map(tuple, found))

    @cached_property
    def senders(self) -> tuple[tuple[int, ...], ...]:
        """By rank, the ranks that it receives from, ascending."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for i, j in sorted(self.edges):
            found[j].append(i)
        return tuple(map(tuple, found))

    @property
    def is_directed(self) -> bool:
        """Whether some edge goes one way only."""
        return any((j, i) not in self.edges for i, j in self.edges)

    def reached(self, root: int = 0) -> set[int]:
        """Return the ranks that a message of ``root`` can reach by edges, including itself."""
        found, queue = {root}, deque([root])
        while queue:
            for j in self.receivers[queue.popleft()]:
                if j not in found:
                    found.add(j)
                    queue.append(j)
        return found

    def unreached(self) -> tuple[int, int] | None:
        """Return (i, j) if rank i cannot reach rank j by edges; None if all ranks reach all."""
        for graph in (self, self.reversed()):
            missing = set(range(self.size)) - graph.reached()
            if missing:
                pair = (0, min(missing))
                return pair if graph is self else pair[::-1]
        return None

    def reversed(self) -> Graph:
        """Return the graph whose edges go the other way."""
        return Graph(self.size, frozenset((j, i) for i, j in self.edges))

    def without(self, gone: Collection[int]) -> Graph:
        """Return the graph of the remaining ranks, renumbered in their order."""
        left = {rank: at for at, rank in enumerate(set(range(self.size)) - set(gone))}
        edges = ((left[i], left[j]) for i, j in self.edges if i in left and j in left)
        return Graph(len(left), frozenset(edges))


def merged(graphs: Iterable[Graph]) -> Graph:
    """Return the graph with the edges of all these graphs, which have the same ranks."""
    first, *rest = graphs
    return Graph(first.size, first.edges.union(*(graph.edges for graph in rest)))


def two_colours(graph: Graph) -> tuple[int, ...]:
    """Colour ranks 0 and 1 so that each edge is between two colours.

    If one colour only asks and the other only answers, pairs that average at any time cannot wait
    for each other in a circle.

    Args:
        graph: undirected; if it has several parts, each is coloured by itself.

    Returns:
        The colour of each rank; that of the lowest rank of a part is 0.

    Raises:
        ConfigError: if there is a cycle of an odd number of ranks, which it names.

    Source: X. Lian, W. Zhang, C. Zhang and J. Liu, ICML 2018 (arXiv:1710.06952).

    >>> two_colours(Graph.of(4, [(0, 1), (1, 2), (2, 3), (3, 0)]))
    (0, 1, 0, 1)
    """
    parent: dict[int, int] = {}
    colour: dict[int, int] = {}
    for root in range(graph.size):
        if root in colour:
            continue
        colour[root], parent[root] = 0, root
        queue = deque([root])
        while queue:
            i = queue.popleft()
            for j in graph.receivers[i]:
                if j not in colour:
                    colour[j], parent[j] = 1 - colour[i], i
                    queue.append(j)
                elif colour[j] == colour[i]:
                    cycle = _cycle(parent, i, j)
                    raise ConfigError(
                        f"ranks {', '.join(map(str, cycle))} are a cycle of {len(cycle)}, and "
                        "pairs without a barrier need a graph whose cycles are all even"
                    )
    return tuple(colour[rank] for rank in range(graph.size))


def _cycle(parent: dict[int, int], i: int, j: int) -> list[int]:
    """Return the ranks of the cycle that the edge (i, j) closes in a tree."""
    ways = []
    for rank in (i, j):
        way = [rank]
        while parent[way[-1]] != way[-1]:
            way.append(parent[way[-1]])
        ways.append(way)
    left, right = ways
    while len(left) > 1 and len(right) > 1 and left[-2] == right[-2]:
        left.pop()
        right.pop()
    return left + right[-2::-1]
