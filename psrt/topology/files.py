"""Files of edges: graphs of the user, with weights if wanted.

One edge per line, and ``#`` begins a comment::

    0 1          # between ranks 0 and 1, both ways
    1 > 2        # from rank 1 to rank 2 only
    0 1 0.25     # each weighs the other's parameters by a quarter
    1 > 2 0.5    # rank 2 weighs rank 1's parameters by a half

Either all edges have a weight or none. The remainder to 1 is a rank's own weight: of the average
that it takes, or, under push-sum, where a weight is the share that is sent, of what it has. Without
weights, Metropolis–Hastings weights are used if all edges go both ways. Otherwise a rank weighs all
senders and itself equally or, under push-sum, sends equal shares to all receivers and itself.
"""

from __future__ import annotations

import math
import re

import numpy as np

from psrt.core.errors import ConfigError
from psrt.topology.graph import Graph
from psrt.topology.mixing import Weights

_LINE = re.compile(r"(\d{1,9})\s*(?:\s|(>))\s*(\d{1,9})(?:\s+(\S+))?", re.ASCII)


def read_edges(text: str, size: int) -> tuple[Graph, dict[tuple[int, int], float]]:
    """Return the graph of a file, and its weights by (sender, receiver), if it has any.

    Args:
        text: of the file.
        size: number of ranks, N.

    Raises:
        ConfigError: naming the invalid line, or an edge of a rank that does not exist; or if there
            is no edge.
    """
    weights: dict[tuple[int, int], float | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        weight = None if match is None or match[4] is None else _weight(match[4])
        if match is None or weight == 0:
            raise ConfigError(
                f"line {number}: expected two ranks such as 0 1, or 0 > 1 if it goes one way, and "
                f"a weight above 0 and below 1 if all have one, got {line!r}"
            )
        i, j = int(match[1]), int(match[3])
        if max(i, j) >= size:
            raise ConfigError(
                f"line {number}: the edge {line!r} is of ranks that do not exist, expected ranks "
                f"from 0 to {size - 1}"
            )
        if i == j:
            raise ConfigError(f"line {number}: an edge is between two ranks, got {line!r}")
        for edge in ((i, j),) if match[2] else ((i, j), (j, i)):
            if edge in weights:
                raise ConfigError(
                    f"line {number}: from rank {edge[0]} to rank {edge[1]} there is an edge already"
                )
            weights[edge] = weight
    if not weights:
        raise ConfigError("has no edges; one is a line of two ranks such as 0 1")
    given = {edge: weight for edge, weight in weights.items() if weight is not None}
    if given and len(given) < len(weights):
        i, j = min(weights.keys() - given.keys())
        raise ConfigError(
            f"the edge from rank {i} to rank {j} has no weight, and others have: expected one for "
            "each, or for none"
        )
    return Graph(size, frozenset(weights)), given


def written_edges(graph: Graph) -> str:
    r"""Return the text of a file of an undirected graph's edges.

    >>> written_edges(Graph.of(3, [(0, 1), (1, 2)]))
    '0 1\n1 2\n'
    """
    return "".join(f"{i} {j}\n" for i, j in sorted(graph.edges) if i < j)


def weighted(size: int, weights: dict[tuple[int, int], float], *, push_sum: bool) -> Weights:
    """Return the matrix of these weights, by (sender, receiver); a rank keeps the rest to 1."""
    matrix = np.zeros((size, size))
    for (i, j), weight in weights.items():
        matrix[j, i] = weight
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=0 if push_sum else 1))
    # A remainder that is only rounding.
    matrix[np.abs(matrix) < 1e-12] = 0.0
    return matrix


def _weight(text: str) -> float:
    """Return a weight in (0, 1); 0 if the text is not one."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and 0 < value < 1 else 0.0
