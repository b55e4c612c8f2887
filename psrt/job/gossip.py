"""A job with gossip: its topology, and which workers exchange messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from psrt.config import TrainConfig
from psrt.config.names import BY_HOST, GRADIENT_TRACKING, PAIRS, PUSH_SUM
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.core.units import plural
from psrt.job.result import Say
from psrt.runtime.strategies.builders import part_of
from psrt.runtime.strategies.by_host import LEADER_OFFERS, MEMBER_OFFERS
from psrt.topology import Topology, topology_of
from psrt.topology.files import read_edges
from psrt.topology.host_part import HostPart
from psrt.transport.port import RoleMap

#: Regions of a worker in rounds: the vector sent in one round may still be read in the next. With a
#: codec nothing is sent from them.
_OFFERS, _FRAMED_OFFERS = 2, 1


def topology_for(
    config: TrainConfig, hosts: Sequence[int], *, edges: str | None
) -> Topology | None:
    """Return the topology of a config; None in a mode without one.

    Args:
        config: resolved.
        hosts: number of the host of each worker.
        edges: the text of its file; None if it has a name.

    Raises:
        ConfigError: if it does not exist for that many workers, or the mode cannot average on it.
    """
    mode = config.scheme
    if mode.topology is None:
        return None
    # Hosts in the order of their first ranks, whatever their numbers.
    order = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    topology = topology_of(
        mode.topology,
        len(hosts),
        push_sum=mode.variant == PUSH_SUM,
        seed=config.seed,
        hosts=[order[host] for host in hosts] if mode.variant == BY_HOST else (),
        edges=edges,
    )
    if mode.variant == PAIRS:
        _check_pairs(topology, edges)
    if config.codec is not None:
        _check_framed(config.codec.name, topology)
    return topology


def _check_pairs(topology: Topology, edges: str | None) -> None:
    """Check that pairs can average on a graph without rounds.

    Raises:
        ConfigError: if not.
    """
    name, graph = topology.name, topology.graphs[0]
    if topology.period > 1:
        raise ConfigError(
            f"{name} has another graph in each of {topology.period} rounds, and variant={PAIRS} "
            "has no rounds"
        )
    if graph.is_directed:
        i, j = min((i, j) for i, j in graph.edges if (j, i) not in graph.edges)
        raise ConfigError(
            f"{name} has edges that go one way, such as {i} > {j}, and variant={PAIRS} "
            "averages pairs"
        )
    if edges is not None and read_edges(edges, graph.size)[1]:
        raise ConfigError(
            f"{name} has weights, and variant={PAIRS} averages by halves; leave them out"
        )
    try:
        _ = topology.colours
    except ConfigError as error:
        other = f"with variant={PAIRS} take another topology, such as star"
        raise ConfigError(f"{name}: {error}; {other}") from None


def _check_framed(codec: str, topology: Topology) -> None:
    """Check that neighbours can add up what they send each other by a codec.

    Raises:
        ConfigError: if neighbours differ between rounds, or weights are not symmetric.
    """
    name, matrix = topology.name, topology.matrices[0]
    if topology.period > 1:
        raise ConfigError(
            f"{name} has another graph in each of {topology.period} rounds, and --codec {codec} "
            "adds up what the same neighbours send in all of them"
        )
    if not np.array_equal(matrix, matrix.T):
        j, i = min(zip(*np.nonzero(matrix != matrix.T), strict=True))
        raise ConfigError(
            f"{name} gives {i} > {j} another weight than {j} > {i}, but --codec {codec} needs "
            "equal weights in both directions"
        )


def role_map_with_peers(
    config: TrainConfig, n: int, workers: tuple[int, ...], topology: Topology
) -> RoleMap:
    """Return by worker its peers: those that it sends to or receives from."""
    parts = [part_of(topology, worker) for worker in range(len(workers))]
    peers = tuple(part.peers for part in parts)
    usual = _FRAMED_OFFERS if config.codec is not None and config.codec_everywhere else _OFFERS
    offers = [
        (LEADER_OFFERS if it.leads else MEMBER_OFFERS) if isinstance(it, HostPart) else usual
        for it in parts
    ]
    # An asking worker has one offer at a time, an answering one an answer for each neighbour.
    if config.scheme.variant == PAIRS:
        offers = [
            len(of) if answers else 1 for of, answers in zip(peers, topology.colours, strict=True)
        ]
    width = 2 if config.scheme.variant == GRADIENT_TRACKING else 1  # θ, and what is tracked
    spans = (Span(0, width * n),)
    return RoleMap(n, workers=workers, spans=spans, peers=peers, offers=tuple(offers))


def say_hosts(topology: Topology | None, say: Say) -> None:
    """Print which hosts mix, if ranks average inside hosts."""
    if topology is None or topology.hosts is None:
        return
    ranks = list(Counter(topology.hosts.first).values())
    if len(ranks) == 1:
        say(f"hosts: all {plural(ranks[0], 'worker')} are on one, so each step averages them all")
        return
    least, most = min(ranks), max(ranks)
    each = str(most) if least == most else f"{least} to {most}"
    say(f"hosts: {len(ranks)} of {each} workers each, which average; hosts mix on {topology.name}")
