"""Mixing matrices on graphs: (N, N) float64, M[i, j] is the weight of θ_j in the next θ_i."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from psrt.core.errors import ConfigError
from psrt.topology.graph import Graph

#: (N, N) weights: row i has the weights that rank i gives to the parameters of each rank.
Weights: TypeAlias = NDArray[np.float64]


def metropolis(graph: Graph, ranks: Sequence[int] = ()) -> Weights:
    """Return Metropolis–Hastings weights: symmetric and doubly stochastic on any undirected graph.

    M[i, j] = 1 / (1 + max(d_i, d_j)) for neighbours with d_i and d_j neighbours, and a rank's own
    weight is the rest. On a ring that is 1/3; where all have D neighbours, it is 1 / (D + 1).

    Args:
        graph: undirected.
        ranks: the number of ranks that each node stands for, such as those of a host; empty: one
            each. Then M is row-stochastic, and M[i, j]·ranks[i] = M[j, i]·ranks[j], so that the
            mean over all ranks stays.

    Source: N. Metropolis et al., J. Chem. Phys. 21, 1953; W. K. Hastings, Biometrika 57, 1970; as
    weights of averaging L. Xiao, S. Boyd and S. Lall, IPSN 2005.

    >>> metropolis(Graph.of(3, [(0, 1), (1, 2)])).round(3).tolist()
    [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.333, 0.667]]
    """
    degree = [len(it) for it in graph.senders]
    count = ranks or [1] * graph.size
    matrix = np.zeros((graph.size, graph.size))
    for j, i in graph.edges:
        matrix[i, j] = metropolis_weight(degree[i], degree[j], count[i], count[j])
    return _own(matrix)


def metropolis_weight(own: int, other: int, ranks: float = 1, others: float = 1) -> float:
    """Return the weight that a node gives a neighbour; see ``metropolis``.

    Args:
        own: its degree.
        other: the neighbour's.
        ranks: the number of ranks that the node stands for.
        others: the number of ranks that the neighbour stands for.
    """
    return min(1 / (own + 1), others / ranks / (other + 1))


def uniform(graph: Graph) -> Weights:
    """Return the matrix in which a rank weighs itself and each sender equally.

    It is doubly stochastic if all ranks have the same number of senders, and of receivers as well.

    >>> uniform(Graph.of(3, [(0, 1), (1, 2), (2, 0)], directed=True)).tolist()
    [[0.5, 0.0, 0.5], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    matrix = np.zeros((graph.size, graph.size))
    for j, i in graph.edges:
        matrix[i, j] = 1 / (len(graph.senders[i]) + 1)
    return _own(matrix)


def column_stochastic(graph: Graph) -> Weights:
    """Return the matrix of push-sum: each rank splits what it has evenly over itself and receivers.

    Columns add up to 1 on any graph, but rows need not: the values that ranks hold are off by a
    factor w_i, which they find by mixing a 1 as well.

    Source: D. Kempe, A. Dobra and J. Gehrke, FOCS 2003; M. Assran, N. Loizou, N. Ballas and
    M. Rabbat, ICML 2019 (arXiv:1811.10792).
    """
    return uniform(graph.reversed()).T.copy()


def two_level(between: Weights, hosts: Sequence[int]) -> Weights:
    """Return the matrix of ranks that average inside hosts, which mix with each other.

    Args:
        between: (H, H) the matrix of hosts: ``metropolis(graph, ranks)``, or any doubly stochastic
            matrix if all hosts have the same number of ranks.
        hosts: by rank, the number of its host; each of the H hosts has at least one rank.

    Returns:
        (N, N): a rank gives each of the n_b ranks of host b the weight between[a, b] / n_b.

    Raises:
        ConfigError: if the result would not be doubly stochastic.
    """
    host = np.asarray(hosts)
    sizes = np.bincount(host)
    if not np.allclose(sizes @ between, sizes, rtol=0, atol=1e-9 * sizes.sum()):
        raise ConfigError(
            f"hosts with {', '.join(map(str, sizes))} ranks cannot mix by these weights, which "
            "shift the mean over all ranks; expected Metropolis–Hastings weights by ranks on edges "
            "that go both ways, or as many ranks on each host"
        )
    mixed: Weights = (between / sizes)[np.ix_(host, host)]
    return mixed


def folded(matrix: Weights, gone: Collection[int]) -> Weights:
    """Return the matrix without some ranks, whose weights their neighbours add to their own.

    Each rank needs to know only its own neighbours, and no edge is new. A symmetric matrix stays
    symmetric and doubly stochastic. Ranks that were connected only through ``gone`` are not any
    more.

    Args:
        matrix: (N, N) symmetric and doubly stochastic.
        gone: ranks that have departed or died.

    Raises:
        ConfigError: if the matrix is not symmetric: its columns would not add up to 1.

    >>> folded(metropolis(Graph.of(3, [(0, 1), (1, 2)])), {2}).round(3).tolist()
    [[0.667, 0.333], [0.333, 0.667]]
    """
    if not np.allclose(matrix, matrix.T, rtol=0, atol=1e-12):
        raise ConfigError(
            "weights of edges that go one way cannot be kept by ranks that lose a neighbour, "
            "expected a symmetric matrix"
        )
    left = _left(matrix, gone)
    kept = matrix[np.ix_(left, left)].copy()
    np.fill_diagonal(kept, 0.0)
    return _own(kept)


def bridged(matrix: Weights, gone: Collection[int]) -> Weights:
    """Return the matrix without some ranks, bridging the gaps that they leave.

    M' = A + B (I − D)⁻¹ C, of the blocks of ``matrix``: the Markov chain watched only while it is
    at a remaining rank. It stays doubly stochastic, symmetric if it was, and connected. A neighbour
    of a removed rank gets the neighbours of that rank. A ring closes, and a matrix with one
    receiver per rank stays one.

    Args:
        matrix: (N, N) doubly stochastic and connected.
        gone: ranks that have departed or died, not all.

    Source: C. D. Meyer, SIAM Review 31(2), 1989, stochastic complementation.
    """
    left = _left(matrix, gone)
    away = sorted(gone)
    a, b = matrix[np.ix_(left, left)], matrix[np.ix_(left, away)]
    c, d = matrix[np.ix_(away, left)], matrix[np.ix_(away, away)]
    kept: Weights = a + b @ np.linalg.solve(np.eye(len(away)) - d, c)
    return np.where(kept < 1e-15, 0.0, kept)  # without what is only rounding


def _left(matrix: Weights, gone: Collection[int]) -> list[int]:
    return sorted(set(range(len(matrix))) - set(gone))


def _own(matrix: Weights) -> Weights:
    """Set each rank's own weight to what its row lacks to 1; the diagonal is 0 so far."""
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=1))
    return matrix
