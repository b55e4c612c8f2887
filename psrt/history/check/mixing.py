"""Who averages with whom, and by which weights: written down here anew, in formulas of its own.

Of a graph without a name, one that was drawn or a user's own, the header has the edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from psrt.errors import ConfigError
from psrt.history.check.table import Bools, Floats, Ints
from psrt.history.header import Header

#: (sender, receiver) → the weight, nan where it follows from the graph.
_Edges = dict[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class Mixing:
    """The matrices of a period of rounds, (W, W): row i has what worker i weighs the others by."""

    matrices: tuple[Floats, ...]
    push_sum: bool

    def of(self, clock: int) -> Floats:
        """Return the matrix of a round."""
        return self.matrices[clock % len(self.matrices)]

    @property
    def gap(self) -> float:
        """The spectral gap of a period: 1 less the modulus of what shrinks the slowest.

        Under push-sum by eigenvalues; else the root of the second one of MᵀM, that is of the worst
        differences there can be.
        """
        whole = np.eye(len(self.matrices[0]))
        for matrix in self.matrices:
            whole = matrix @ whole
        if len(whole) == 1:
            return 1.0
        if self.push_sum:
            return 1.0 - float(np.sort(np.abs(np.linalg.eigvals(whole)))[-2])
        square = np.linalg.eigvalsh(whole.T @ whole)[-2]
        return 1.0 - math.sqrt(max(float(square), 0.0))


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a run whose workers average inside, or each worker as a host of its own."""

    #: By worker, the number of its host, in the order of their first workers.
    host: Ints
    #: Of a period of rounds, (H, H): row a has what host a weighs the others by.
    matrices: tuple[Floats, ...]
    #: Whether these are by the numbers of workers that hosts have, which shrink as workers leave.
    by_ranks: bool


def mixing_of(header: Header) -> Mixing:
    """Return how the workers of a run mix.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    hosts = hosts_of(header)
    host, ranks = hosts.host, np.bincount(hosts.host)
    matrices = [(matrix / ranks)[np.ix_(host, host)] for matrix in hosts.matrices]
    return Mixing(tuple(matrices), bool(header.knob("push_sum")))


def hosts_of(header: Header) -> Hosts:
    """Return how the hosts of a run mix, or the workers where hosts do not.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    name, workers = str(header.knob("topology")), len(header.workers)
    push_sum = bool(header.knob("push_sum"))
    host = np.arange(workers)
    if header.knob("by_host"):
        if not header.hosts or max(header.workers) >= len(header.hosts):
            raise ConfigError("the history's header does not say which hosts its workers are on")
        places = [header.hosts[rank] for rank in header.workers]
        order = {place: number for number, place in enumerate(dict.fromkeys(places))}
        host = np.array([order[place] for place in places])
    nodes, ranks = int(host.max()) + 1, np.bincount(host)
    try:
        if header.edges:
            edges = read_edges(header.edges)
            graphs = [_graph_of(edges, nodes)]
            matrices = [_matrix_of(edges, nodes, push_sum, ranks)]
        else:
            edges, graphs = {}, named(name, nodes)
            matrices = [_matrix(graph, push_sum, ranks) for graph in graphs]
    except (KeyError, ValueError, IndexError):
        raise ConfigError(
            f"the history's header has a topology {name!r} that {nodes} workers or hosts cannot "
            "have, or edges that are none"
        ) from None
    weighted = any(not math.isnan(weight) for weight in edges.values())
    symmetric = all(bool((graph == graph.T).all()) for graph in graphs)
    return Hosts(host, tuple(matrices), by_ranks=symmetric and not weighted)


def named(name: str, nodes: int) -> list[Bools]:
    """Return the graph of each round of a period: (nodes, nodes), [i, j] where i sends to j.

    Raises:
        KeyError: if there is none of that name.
    """
    i, j = np.indices((nodes, nodes))
    hop = (j - i) % nodes
    hops = [1 << k for k in range(math.ceil(math.log2(nodes)))]
    rows = max(r for r in range(1, math.isqrt(nodes) + 1) if nodes % r == 0)
    columns = nodes // rows
    graphs: dict[str, Callable[[], list[Bools]]] = {
        "ring": lambda: [(hop == 1) | (hop == nodes - 1)],
        "exponential": lambda: [np.isin(hop, hops)],
        "one-peer-exponential": lambda: [hop == it for it in hops] or [hop < 0],
        "torus": lambda: [
            (i // columns == j // columns) & np.isin((j - i) % columns, (1, columns - 1))
            | (i % columns == j % columns)
            & np.isin((j // columns - i // columns) % rows, (1, rows - 1))
        ],
        "star": lambda: [(i == 0) | (j == 0)],
        "full": lambda: [hop > 0],
        "hypercube": lambda: [np.isin(i ^ j, hops)],
    }
    return [graph & (hop != 0) for graph in graphs[name]()]


def read_edges(text: str) -> _Edges:
    """Return the edges of a file: ``i j`` both ways, ``i > j`` one way, and their weights.

    Raises:
        ValueError: if there is something else in it.
    """
    edges: _Edges = {}
    for line in text.splitlines():
        words = line.split("#")[0].replace(">", " > ").split()
        if not words:
            continue
        one_way = words[1:2] == [">"]
        first, second, *weight = words[:1] + words[2:] if one_way else words
        i, j = int(first), int(second)
        if min(i, j) < 0 or len(weight) > 1:
            raise ValueError(line)
        edges[i, j] = float(weight[0]) if weight else math.nan
        if not one_way:
            edges[j, i] = edges[i, j]
    return edges


def _graph_of(edges: _Edges, nodes: int) -> Bools:
    graph = np.zeros((nodes, nodes), bool)
    for i, j in edges:
        graph[i, j] = True
    return graph


def _matrix_of(edges: _Edges, nodes: int, push_sum: bool, ranks: Ints) -> Floats:
    """Return the matrix of edges: of their weights, where they have any."""
    if any(map(math.isnan, edges.values())):
        return _matrix(_graph_of(edges, nodes), push_sum, ranks)
    matrix = np.zeros((nodes, nodes))
    for (i, j), weight in edges.items():
        matrix[j, i] = weight
    return _filled(matrix, push_sum)


def _matrix(graph: Bools, push_sum: bool, ranks: Sequence[int] | Ints) -> Floats:
    """Return the matrix of a graph without weights."""
    sends, takes = graph.sum(axis=1), graph.sum(axis=0)
    if push_sum:
        weights = 1.0 / (sends[:, None] + 1.0)
    elif (graph == graph.T).all():  # Metropolis–Hastings, by the ranks of each host
        size = np.asarray(ranks, np.float64)
        share = 1.0 / (sends + 1.0)
        weights = np.minimum(share[None, :], (size / (sends + 1.0))[:, None] / size[None, :])
    else:
        weights = 1.0 / (takes[None, :] + 1.0)
    return _filled(np.where(graph, weights, 0.0).T, push_sum)


def _filled(matrix: Floats, push_sum: bool) -> Floats:
    """Leave to each what its row lacks of 1: of what it takes, or, in push-sum, of what it has."""
    matrix = matrix.copy()
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=0 if push_sum else 1))
    return matrix
