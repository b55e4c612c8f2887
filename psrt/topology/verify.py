"""An independent checker of mixing matrices: it checks the rules entry by entry.

==================  ==========================================================================
non-negative        every weight is in [0, 1]
on the graph        a weight that is not 0 is a rank's own, or of an edge; every edge has one
rows add up to 1    equal parameters do not change, as in an average; not under push-sum
columns to 1        Σθ, and so the mean over all ranks, stays
symmetric           where claimed: the weight of j at i is that of i at j
connected           over a period, every rank's values reach every other rank
==================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.core.errors import ConfigError
from psrt.topology.graph import Graph
from psrt.topology.mixing import Weights

#: The largest allowed difference of a sum of weights from 1.
TOLERANCE = 1e-9


class MixingError(ConfigError):
    """A mixing matrix, or a period of them, breaks a rule."""


def verify(
    graphs: Sequence[Graph],
    matrices: Sequence[Weights],
    *,
    push_sum: bool = False,
    symmetric: bool = False,
) -> None:
    """Check a period of graphs and matrices.

    Args:
        graphs: of each round, all of N ranks.
        matrices: (N, N) of each round.
        push_sum: whether only columns add up to 1.
        symmetric: whether the matrices are claimed to be symmetric.

    Raises:
        MixingError: naming the first rank that breaks a rule, and its value.
    """
    if not graphs or len(graphs) != len(matrices):
        raise MixingError(f"{len(matrices)} matrices for {len(graphs)} graphs")
    size = graphs[0].size
    for turn, (graph, matrix) in enumerate(zip(graphs, matrices, strict=True)):
        where = f" in round {turn}" if len(graphs) > 1 else ""
        if graph.size != size or matrix.shape != (size, size):
            raise MixingError(
                f"a graph of {graph.size} ranks and a matrix of {matrix.shape}{where}, expected "
                f"{size} ranks"
            )
        _check_entries(graph, matrix, where)
        if not push_sum:
            _check_sums(matrix.sum(axis=1), "row", where)
        _check_sums(matrix.sum(axis=0), "column", where)
        if symmetric:
            _check_symmetric(matrix, where)
    _check_connected(matrices)


def _check_entries(graph: Graph, matrix: Weights, where: str) -> None:
    for i, j in np.argwhere(~((matrix >= 0) & (matrix <= 1 + TOLERANCE))).tolist():
        raise MixingError(
            f"rank {i} weighs what rank {j} has by {matrix[i, j]:g}{where}, expected 0 to 1"
        )
    allowed = np.eye(graph.size, dtype=bool)
    for sender, receiver in graph.edges:
        allowed[receiver, sender] = True
    for i, j in np.argwhere((matrix > 0) & ~allowed).tolist():
        raise MixingError(f"rank {i} weighs what rank {j} has{where}, which has no edge to it")
    np.fill_diagonal(allowed, False)
    for i, j in np.argwhere((matrix == 0) & allowed).tolist():
        raise MixingError(f"rank {i} does not weigh what rank {j} sends to it{where}")


def _check_sums(sums: Weights, what: str, where: str) -> None:
    wrong = np.flatnonzero(~(np.abs(sums - 1) <= TOLERANCE))
    if wrong.size:
        of = "that rank {} takes" if what == "row" else "of what rank {} has"
        raise MixingError(
            f"the matrix is not doubly stochastic: the weights {of.format(wrong[0])} add up to "
            f"{sums[wrong[0]]:.6g}{where}, expected 1"
        )


def _check_symmetric(matrix: Weights, where: str) -> None:
    for i, j in np.argwhere(np.abs(matrix - matrix.T) > TOLERANCE).tolist():
        raise MixingError(
            f"rank {i} weighs what rank {j} has by {matrix[i, j]:g}{where}, and rank {j} what rank "
            f"{i} has by {matrix[j, i]:g}, expected the same"
        )


def _check_connected(matrices: Sequence[Weights]) -> None:
    """Check that each rank gets a part of every other rank's numbers after enough periods."""
    size = len(matrices[0])
    once = np.eye(size, dtype=bool)
    for matrix in matrices:
        once = _after(once, matrix > 0)
    # Values that arrive within size periods also arrive within twice as many: squaring suffices.
    reach, periods = once, 1
    while periods < size:
        reach, periods = _after(reach, reach), 2 * periods
    for i, j in np.argwhere(~reach).tolist():
        raise MixingError(
            f"the graph is not connected: no value of rank {j} ever reaches rank {i}, expected a "
            "path between any two ranks"
        )


def _after(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return (i, j): whether rank i has values of rank j if ``second`` follows ``first``."""
    found: np.ndarray = second.astype(np.float32) @ first.astype(np.float32) > 0
    return found
