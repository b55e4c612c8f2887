"""A topology explained: properties of its graph and weights, by bounds and in a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psrt.core.errors import ConfigError
from psrt.topology import Graph, Topology, topology_of
from psrt.topology.graph import merged, two_colours
from psrt.topology.names import TOPOLOGIES, Drawn

#: Most ranks whose matrices are computed quickly.
MOST_RANKS = 1024
#: Shares of the disagreement; rounds are counted until each is reached.
SHARES = (0.5, 1e-6)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds after which a share of the disagreement is left."""

    share: float
    #: At most, whatever the parameters; None if never. Under push-sum in the long run.
    by_gap: int | None
    #: Of random numbers; None if there is no end to it.
    simulated: int | None


@dataclass(frozen=True, slots=True)
class Explained:
    """A topology and its properties."""

    topology: Topology
    #: Ranks of each host; empty if the graph connects ranks.
    hosts: tuple[int, ...]
    #: Bytes of the parameters.
    nbytes: int
    rounds: tuple[Rounds, ...]
    #: Whether a period averages exactly.
    is_exact: bool
    #: By rank, or by host if there are hosts: 0 or 1, different at both ends of each edge; None if
    #: there is an odd cycle, or edges go one way.
    colours: tuple[int, ...] | None
    #: Why there are none; empty if there are.
    no_colours: str
    #: Of the simulation.
    seed: int

    @property
    def drawn(self) -> Drawn:
        """How it is drawn: as its row says, or on a circle if it comes from a file."""
        row = TOPOLOGIES.get(self.topology.name.partition(":")[0])
        return "circle" if row is None else row.drawn

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of each round, of hosts if there are any."""
        return graphs_of(self.topology, self.hosts)

    @property
    def sent(self) -> tuple[float, ...]:
        """By rank, or by host, the bytes that it sends in a round, on average over a period."""
        graphs = self.graphs
        return tuple(
            self.nbytes * sum(len(graph.receivers[i]) for graph in graphs) / len(graphs)
            for i in range(graphs[0].size)
        )

    @property
    def all_reduce(self) -> float:
        """Bytes that a rank, or a host, sends in a ring all-reduce: 2(p − 1)/p of them."""
        nodes = len(self.hosts) or self.topology.size
        return 2 * self.nbytes * (nodes - 1) / nodes


def explained(
    text: str,
    size: int,
    *,
    nbytes: int,
    push_sum: bool = False,
    seed: int = 0,
    hosts: Sequence[int] = (),
) -> Explained:
    """Build a topology, and count.

    Args:
        text: name or file, see ``psrt.topology``.
        size: number of ranks.
        nbytes: of the parameters.
        push_sum: whether a weight is mixed as well.
        seed: seed of random graphs and of the numbers of the simulation.
        hosts: number of ranks of each host; empty if ranks mix.

    Raises:
        ConfigError: if there is no such topology.
    """
    host = [i for i, count in enumerate(hosts) for _ in range(count)]
    found = topology_of(text, size, push_sum=push_sum, seed=seed, hosts=host)
    rounds = tuple(
        Rounds(share, found.rounds_to(share), found.simulated_rounds(share, seed=seed))
        for share in SHARES
    )
    colours, why = _colours(graphs_of(found, tuple(hosts)))
    is_exact = not push_sum and found.contraction == 0
    return Explained(found, tuple(hosts), nbytes, rounds, is_exact, colours, why, seed)


def graphs_of(found: Topology, hosts: tuple[int, ...]) -> tuple[Graph, ...]:
    """Return the graphs of a topology, of its hosts if there are any."""
    if not hosts:
        return found.graphs
    host = [i for i, count in enumerate(hosts) for _ in range(count)]
    return tuple(
        Graph.of(len(hosts), [(host[i], host[j]) for i, j in graph.edges], directed=True)
        for graph in found.graphs
    )


def _colours(graphs: Sequence[Graph]) -> tuple[tuple[int, ...] | None, str]:
    graph = merged(graphs)
    if graph.is_directed:
        return None, "edges go one way"
    try:
        return two_colours(graph), ""
    except ConfigError as error:
        return None, str(error).partition(", and ")[0]
