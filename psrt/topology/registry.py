"""Topologies, verified: from the rows in ``names``, or a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.files import read_text
from psrt.core.units import plural
from psrt.topology.files import read_edges, weighted, written_edges
from psrt.topology.graph import Graph, two_colours
from psrt.topology.mixing import Weights, column_stochastic, metropolis, two_level, uniform
from psrt.topology.names import forms, row_of
from psrt.topology.spectrum import contraction, rounds_to, simulated_rounds
from psrt.topology.verify import verify


@dataclass(frozen=True)
class HostLevel:
    """The hosts of a topology, within which ranks average; the first rank of each host mixes."""

    #: By rank, the first rank of its host.
    first: tuple[int, ...]
    #: Of each round of the period, with edges and weights between first ranks only. Rows add up to
    #: 1, columns need not where hosts have unequal ranks.
    graphs: tuple[Graph, ...]
    matrices: tuple[Weights, ...]
    #: Whether those are Metropolis–Hastings weights, which follow from the ranks that are left.
    is_metropolis: bool


@dataclass(frozen=True)
class Topology:
    """A verified period of rounds, each with a graph and a mixing matrix."""

    #: As the user wrote it.
    name: str
    #: Of each round of the period.
    graphs: tuple[Graph, ...]
    matrices: tuple[Weights, ...]
    #: Whether ranks also mix a weight, and divide by it.
    push_sum: bool
    #: Its edges, as a file has them; empty where they follow from its name.
    edges: str = ""
    #: The hosts that mix; None where ranks do.
    hosts: HostLevel | None = None

    @property
    def size(self) -> int:
        """Number of ranks, N."""
        return self.graphs[0].size

    @property
    def period(self) -> int:
        """Number of rounds after which it begins again."""
        return len(self.graphs)

    def of(self, clock: int) -> Weights:
        """Return the matrix of a round."""
        return self.matrices[clock % self.period]

    @cached_property
    def contraction(self) -> float:
        """The factor by which a period shrinks disagreement, see ``spectrum``."""
        return contraction(self.matrices, push_sum=self.push_sum)

    @cached_property
    def colours(self) -> tuple[int, ...]:
        """The colour of each rank, see ``two_colours``; of a graph that is always the same."""
        return two_colours(self.graphs[0])

    @property
    def gap(self) -> float:
        """The spectral gap of a period."""
        return 1.0 - self.contraction

    def rounds_to(self, share: float) -> int | None:
        """Return the rounds after which this share of disagreement is left at most; None if never.

        It is by the gap, for any θ; see ``spectrum``.
        """
        return rounds_to(self.contraction, self.period, share)

    def simulated_rounds(self, share: float, *, seed: int = 0) -> int | None:
        """Return the rounds that random numbers take to it."""
        return simulated_rounds(self.matrices, share, push_sum=self.push_sum, seed=seed)

    def sent(self, rank: int) -> float:
        """Return the number of vectors that a rank sends in a round, on average over a period."""
        return sum(len(graph.receivers[rank]) for graph in self.graphs) / self.period


def topology_of(
    text: str,
    size: int,
    *,
    push_sum: bool = False,
    seed: int = 0,
    hosts: Sequence[int] = (),
    edges: str | None = None,
) -> Topology:
    """Return a verified topology by its name, or from a file.

    Args:
        text: one of ``forms()``; what is none of the names is the path of a file, see ``files``.
        size: number of ranks, N, at least 1.
        push_sum: whether a weight is mixed along, so that only columns need to add up to 1.
        seed: of random graphs.
        hosts: by rank, the number of its host, in the order of their first ranks: then the graph is
            one of hosts, within which ranks average. Without any, it is one of ranks.
        edges: the text of the file, where it has been read; None reads it.

    Raises:
        ConfigError: one line, if there is no such graph, it is not connected, its edges go one way
            without push-sum where columns then do not add up to 1, or a file is invalid.
    """
    if size < 1 or (hosts and len(hosts) != size):
        raise ConfigError(f"{text}: no graph has {size} ranks on hosts of {len(hosts)}")
    if push_sum and hosts:
        raise ConfigError(f"{text}: push-sum mixes ranks, not hosts")
    count = list(Counter(sorted(hosts)).values())
    nodes = len(count) or size
    edges = edges_of(text) if edges is None else edges
    level: HostLevel | None = None
    try:
        graphs, given = _graphs(text, nodes, seed, edges)
        row = row_of(text)
        if row is not None and row.number:
            edges = written_edges(graphs[0])
        matrices = tuple(
            weighted(nodes, given, push_sum=push_sum) if given else _weights(graph, push_sum, count)
            for graph in graphs
        )
        if hosts:
            level = _host_level(graphs, matrices, hosts, is_given=bool(given))
            matrices = tuple(two_level(matrix, hosts) for matrix in matrices)
            graphs = tuple(_of_ranks(graph, hosts) for graph in graphs)
        verify(graphs, matrices, push_sum=push_sum)
    except ConfigError as error:
        where = f" of {nodes} hosts" if hosts else ""
        raise type(error)(f"{text}{where}: {error}") from None
    return Topology(text, graphs, matrices, push_sum, edges or "", level)


def edges_of(text: str) -> str | None:
    """Return the text of the file that a topology is in; None if it has a name.

    Raises:
        ConfigError: if it can be neither.
    """
    if row_of(text) is not None:
        return None
    try:
        return read_text(text)
    except ConfigError as error:
        why = str(error).removeprefix(f"{text}: ")
        raise ConfigError(f"{text}: {why}; known are {', '.join(forms())}") from None


def _graphs(
    text: str, size: int, seed: int, edges: str | None
) -> tuple[tuple[Graph, ...], dict[tuple[int, int], float]]:
    """Return the graphs of a period, and the weights by edge that a file has."""
    if (row := row_of(text)) is not None:
        return row.graphs(size, text.partition(":")[2], seed), {}
    graph, given = read_edges(edges or "", size)
    return (graph,), given


def _weights(graph: Graph, push_sum: bool, ranks: Sequence[int]) -> Weights:
    if push_sum:
        return column_stochastic(graph)
    if not graph.is_directed:
        return metropolis(graph, ranks)
    for rank, (senders, receivers) in enumerate(zip(graph.senders, graph.receivers, strict=True)):
        if len(senders) != len(receivers):
            raise ConfigError(
                f"edges go one way, and rank {rank} has {plural(len(senders), 'sender')} "
                f"and {plural(len(receivers), 'receiver')}, so the mean would shift: expected "
                "push-sum, weights that add up to 1 for each sender, too, or edges both ways"
            )
    return uniform(graph)


def _host_level(
    graphs: Sequence[Graph], matrices: Sequence[Weights], hosts: Sequence[int], *, is_given: bool
) -> HostLevel:
    """Return the graphs and matrices of hosts as those of their first ranks among all ranks."""
    size, first = len(hosts), [hosts.index(host) for host in hosts]
    leads = sorted(set(first))
    wide = []
    for matrix in matrices:
        found = np.eye(size)
        found[np.ix_(leads, leads)] = matrix
        wide.append(found)
    return HostLevel(
        tuple(first),
        tuple(
            Graph.of(size, [(leads[i], leads[j]) for i, j in graph.edges], directed=True)
            for graph in graphs
        ),
        tuple(wide),
        is_metropolis=not is_given and not any(graph.is_directed for graph in graphs),
    )


def _of_ranks(graph: Graph, hosts: Sequence[int]) -> Graph:
    """Return the graph of ranks whose hosts are those of ``graph``, all of a host connected."""
    ranks: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    pairs = {*graph.edges, *((host, host) for host in ranks)}
    return Graph.of(
        len(hosts), [(i, j) for a, b in pairs for i in ranks[a] for j in ranks[b]], directed=True
    )
