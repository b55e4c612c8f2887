"""Every topology by name: a new one is a function in ``graphs``, a row here and in ``names``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final

from psrt.errors import ConfigError
from psrt.files import read_text
from psrt.topology import graphs as build
from psrt.topology.files import read_edges, weighted
from psrt.topology.graph import Graph
from psrt.topology.mixing import Weights, column_stochastic, metropolis, two_level, uniform
from psrt.topology.names import FORMS, RANDOM
from psrt.topology.spectrum import contraction, rounds_to, simulated_rounds
from psrt.topology.verify import verify

#: By name, number of ranks → the graph of each round of a period.
GRAPHS: Final[dict[str, Callable[[int], tuple[Graph, ...]]]] = {
    "ring": build.ring,
    "exponential": build.exponential,
    "one-peer-exponential": build.one_peer_exponential,
    "torus": build.torus,
    "star": build.star,
    "full": build.full,
    "hypercube": build.hypercube,
}


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

    @property
    def size(self) -> int:
        """Number of ranks, N."""
        return self.graphs[0].size

    @property
    def period(self) -> int:
        """Number of rounds after which it begins again."""
        return len(self.graphs)

    @cached_property
    def contraction(self) -> float:
        """The factor by which a period shrinks disagreement, see ``spectrum``."""
        return contraction(self.matrices, push_sum=self.push_sum)

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
    ranks: Sequence[int] = (),
) -> Topology:
    """Return a verified topology by its name, or from a file.

    Args:
        text: one of ``FORMS``; what is none of the names is the path of a file, see ``files``.
        size: number of ranks, N, at least 1.
        push_sum: whether a weight is mixed along, so that only columns need to add up to 1.
        seed: of random graphs.
        ranks: the number of ranks of each host, N in all: then the graph is one of hosts, inside of
            which ranks average. Without any, it is one of ranks.

    Raises:
        ConfigError: one line, if there is no such graph, it is not connected, its edges go one way
            without push-sum where columns then do not add up to 1, or a file is invalid.
    """
    nodes = len(ranks) or size
    if size < 1 or (ranks and (sum(ranks) != size or min(ranks) < 1)):
        raise ConfigError(f"{text}: no graph has {size} ranks on hosts of {list(ranks)}")
    if push_sum and ranks:
        raise ConfigError(f"{text}: push-sum mixes ranks, not hosts")
    try:
        graphs, given = _graphs(text, nodes, seed)
        matrices = tuple(
            weighted(nodes, given, push_sum=push_sum) if given else _weights(graph, push_sum, ranks)
            for graph in graphs
        )
        if ranks:
            matrices = tuple(two_level(matrix, ranks) for matrix in matrices)
            graphs = tuple(_of_ranks(graph, ranks) for graph in graphs)
        verify(graphs, matrices, push_sum=push_sum)
    except ConfigError as error:
        raise type(error)(f"{text}: {error}") from None
    return Topology(text, graphs, matrices, push_sum)


def _graphs(
    text: str, size: int, seed: int
) -> tuple[tuple[Graph, ...], dict[tuple[int, int], float]]:
    """Return the graphs of a period, and the weights by edge that a file has."""
    name, _, number = text.partition(":")
    if text in GRAPHS:
        return GRAPHS[text](size), {}
    if name == RANDOM:
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise ConfigError(f"expected {RANDOM}:D with the number of neighbours, like {RANDOM}:4")
        return build.random_regular(size, int(number), seed), {}
    try:
        content = read_text(text)
    except ConfigError as error:
        why = str(error).removeprefix(f"{text}: ")
        raise ConfigError(f"{why}; known are {', '.join(FORMS)}") from None
    graph, given = read_edges(content, size)
    return (graph,), given


def _weights(graph: Graph, push_sum: bool, ranks: Sequence[int]) -> Weights:
    if push_sum:
        return column_stochastic(graph)
    if not graph.is_directed:
        return metropolis(graph, ranks)
    for rank, (senders, receivers) in enumerate(zip(graph.senders, graph.receivers, strict=True)):
        if len(senders) != len(receivers):
            raise ConfigError(
                f"edges go one way, and rank {rank} has {len(senders)} senders and "
                f"{len(receivers)} receivers, so the mean would shift: expected push-sum, weights "
                "that add up to 1 for whoever sends, too, or edges that go both ways"
            )
    return uniform(graph)


def _of_ranks(graph: Graph, ranks: Sequence[int]) -> Graph:
    """Return the graph of ranks whose hosts are those of ``graph``, all of a host connected."""
    starts = [0, *accumulate(ranks)]
    of = [range(a, b) for a, b in pairwise(starts)]
    pairs = {*graph.edges, *((host, host) for host in range(len(ranks)))}
    return Graph.of(
        starts[-1],
        [(i, j) for a, b in pairs for i in of[a] for j in of[b]],
        directed=True,
    )
