"""The named graphs: each a period of rounds, for a given number of ranks."""

from __future__ import annotations

import math

import numpy as np

from psrt.core.errors import ConfigError
from psrt.topology.graph import Graph

#: Swaps of two edges tried, per edge, before a random graph is tested for connectedness.
_SWAPS = 10


def ring(size: int) -> tuple[Graph, ...]:
    """Rank i and rank i + 1, and the last and the first."""
    return (Graph.of(size, [(i, (i + 1) % size) for i in range(size)]),)


def exponential(size: int) -> tuple[Graph, ...]:
    """Rank i sends to i + 1, i + 2, i + 4, …, modulo N: ⌈lg N⌉ messages each.

    Source: B. Ying, K. Yuan, Y. Chen, H. Hu, P. Pan and W. Yin, NeurIPS 2021 (arXiv:2110.13363).
    """
    hops = [1 << k for k in range(_hops(size))]
    edges = [(i, (i + hop) % size) for i in range(size) for hop in hops]
    return (Graph.of(size, edges, directed=True),)


def one_peer_exponential(size: int) -> tuple[Graph, ...]:
    """In round t rank i sends to i + 2^t only; after ⌈lg N⌉ rounds it begins again.

    Where N is a power of two, a period averages exactly.

    Source: that of ``exponential``.
    """
    return tuple(
        Graph.of(size, [(i, (i + (1 << k)) % size) for i in range(size)], directed=True)
        for k in range(max(1, _hops(size)))
    )


def torus(size: int) -> tuple[Graph, ...]:
    """A grid of rows and columns, as square as N allows, whose ends meet."""
    rows = max(r for r in range(1, math.isqrt(size) + 1) if size % r == 0)
    columns = size // rows
    if rows == 1 and size > 1:
        raise ConfigError(
            f"a torus has rows × columns of at least two each, got {size} ranks; "
            f"{_next_composite(size)} would do"
        )
    edges = []
    for row in range(rows):
        for column in range(columns):
            at = row * columns + column
            edges += [(at, row * columns + (column + 1) % columns)]
            edges += [(at, (row + 1) % rows * columns + column)]
    return (Graph.of(size, edges),)


def star(size: int) -> tuple[Graph, ...]:
    """Rank 0 and every other rank."""
    return (Graph.of(size, [(0, i) for i in range(1, size)]),)


def full(size: int) -> tuple[Graph, ...]:
    """Every rank and every other rank."""
    return (Graph.of(size, [(i, j) for i in range(size) for j in range(i)]),)


def hypercube(size: int) -> tuple[Graph, ...]:
    """Ranks whose numbers differ in one binary digit; N is a power of two."""
    if size & (size - 1):
        below = 1 << (size.bit_length() - 1)
        raise ConfigError(
            f"a hypercube has a power of two of ranks, got {size}; {below} or {2 * below} would do"
        )
    return (Graph.of(size, [(i, i ^ (1 << k)) for i in range(size) for k in range(_hops(size))]),)


def random_regular(size: int, degree: int, seed: int) -> tuple[Graph, ...]:
    """Each rank and ``degree`` others, drawn at random among the connected graphs.

    It starts from a ring whose ranks have the nearest others, and swaps the ends of edge pairs.

    Args:
        size: number of ranks, N.
        degree: D, below N; N·D is even, and D at least 2 if N is above 2.
        seed: of the draws.

    Raises:
        ConfigError: if there is no such graph.
    """
    least = min(2, size - 1)
    if not least <= degree < size or size * degree % 2:
        raise ConfigError(
            f"no connected graph of {size} ranks has {degree} neighbours for each, expected "
            f"{'an even number from ' if size % 2 else ''}{least} to {size - 1}"
        )
    rng = np.random.default_rng((seed, size, degree))
    near = [(i, (i + hop) % size) for i in range(size) for hop in range(1, degree // 2 + 1)]
    if degree % 2:
        near += [(i, i + size // 2) for i in range(size // 2)]
    edges = [(min(edge), max(edge)) for edge in near]
    while True:
        known = set(edges)
        for first, second, flip in zip(
            rng.integers(0, max(1, len(edges)), _SWAPS * len(edges)).tolist(),
            rng.integers(0, max(1, len(edges)), _SWAPS * len(edges)).tolist(),
            rng.integers(0, 2, _SWAPS * len(edges)).tolist(),
            strict=True,
        ):
            (a, b), (c, d) = edges[first], edges[second]
            if flip:
                c, d = d, c
            swapped = [(min(a, d), max(a, d)), (min(c, b), max(c, b))]
            if len({a, b, c, d}) < 4 or known.intersection(swapped):
                continue
            known -= {edges[first], edges[second]}
            known |= set(swapped)
            edges[first], edges[second] = swapped
        graph = Graph.of(size, edges)
        if graph.unreached() is None:
            return (graph,)


def _hops(size: int) -> int:
    """Return ⌈lg N⌉."""
    return (size - 1).bit_length()


def _next_composite(size: int) -> int:
    while all(size % factor for factor in range(2, math.isqrt(size) + 1)):
        size += 1
    return size
