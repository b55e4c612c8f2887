"""A job whose workers mix with neighbours: its topology, who talks to whom, its strategy.

Like ``build`` this knows both the config and the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from psrt.config import TrainConfig
from psrt.config.names import ADAPT_THEN_COMBINE
from psrt.errors import ConfigError
from psrt.job.codecs import JobCodec
from psrt.job.result import Say
from psrt.partition import Span
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.by_host import LEADER_OFFERS, MEMBER_OFFERS, Leader, Member
from psrt.runtime.strategies.choco import Choco
from psrt.runtime.strategies.gossip import Gossip
from psrt.runtime.strategies.neighbours import Neighbours
from psrt.runtime.strategies.pair_gossip import PairGossip, Turns
from psrt.runtime.strategies.pairs import Pairs
from psrt.runtime.strategies.push_sum import PushSum
from psrt.runtime.strategies.tracking import Tracking
from psrt.runtime.updater import Updater
from psrt.topology import Topology, topology_of
from psrt.topology.files import read_edges
from psrt.topology.host_part import HostPart
from psrt.topology.part import Part
from psrt.transport.port import Port, RoleMap
from psrt.units import plural

#: Colour of who asks, without rounds; 1 of who answers.
ASKS = 0
#: Regions of a worker in rounds: what was sent for one may still be read in the next. With a codec
#: nothing is sent from them.
_OFFERS, _FRAMED_OFFERS = 2, 1


def topology_for(
    config: TrainConfig, hosts: Sequence[int], *, edges: str | None
) -> Topology | None:
    """Return the topology of a config; None in a mode without one.

    Args:
        config: resolved.
        hosts: number of the host of each worker.
        edges: the text of the file that it is in; None if it has a name.

    Raises:
        ConfigError: if there is none for that many workers, or the mode cannot average on it.
    """
    if config.topology is None:
        return None
    # In the order of their first ranks, whatever their numbers are.
    order = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    topology = topology_of(
        config.topology,
        len(hosts),
        push_sum=bool(config.push_sum),
        seed=config.seed,
        hosts=[order[host] for host in hosts] if config.by_host else (),
        edges=edges,
    )
    if config.asynchronous:
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
            f"{name} has another graph in each of {topology.period} rounds, and --asynchronous has "
            "no rounds"
        )
    if graph.is_directed:
        i, j = min((i, j) for i, j in graph.edges if (j, i) not in graph.edges)
        raise ConfigError(
            f"{name} has edges that go one way, such as {i} > {j}, and --asynchronous averages "
            "pairs"
        )
    if edges is not None and read_edges(edges, graph.size)[1]:
        raise ConfigError(
            f"{name} has weights, and --asynchronous averages pairs by halves; leave them out"
        )
    try:
        _ = topology.colours
    except ConfigError as error:
        other = "with --asynchronous take another --topology, such as star"
        raise ConfigError(f"{name}: {error}; {other}") from None


def _check_framed(codec: str, topology: Topology) -> None:
    """Check that neighbours can add up what they send each other by a codec.

    Raises:
        ConfigError: if those of a round are not those of all, or do not weigh each other alike.
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
            f"{name} does not weigh {i} > {j} as {j} > {i}, and --codec {codec} draws both ends of "
            "an edge alike"
        )


def role_map_with_peers(
    config: TrainConfig, n: int, workers: tuple[int, ...], topology: Topology
) -> RoleMap:
    """Return who talks to whom: each worker to those that it sends to or receives from."""
    parts = [part_of(topology, worker) for worker in range(len(workers))]
    peers = tuple(part.peers for part in parts)
    usual = _FRAMED_OFFERS if config.codec is not None and config.codec_everywhere else _OFFERS
    offers = [
        (LEADER_OFFERS if it.leads else MEMBER_OFFERS) if isinstance(it, HostPart) else usual
        for it in parts
    ]
    if config.asynchronous:  # who asks has one offer at a time, who answers an answer for each
        offers = [
            len(of) if answers else 1 for of, answers in zip(peers, topology.colours, strict=True)
        ]
    width = 2 if config.gradient_tracking else 1  # θ, and what is tracked
    spans = (Span(0, width * n),)
    return RoleMap(n, workers=workers, spans=spans, peers=peers, offers=tuple(offers))


def say_hosts(topology: Topology | None, say: Say) -> None:
    """Print which hosts mix, where ranks average inside."""
    if topology is None or topology.hosts is None:
        return
    ranks = list(Counter(topology.hosts.first).values())
    if len(ranks) == 1:
        say(f"hosts: all {plural(ranks[0], 'worker')} are on one, so each step averages them all")
        return
    least, most = min(ranks), max(ranks)
    each = str(most) if least == most else f"{least} to {most}"
    say(f"hosts: {len(ranks)} with {each} workers each, who average; hosts mix on {topology.name}")


def part_of(topology: Topology, worker: int) -> Part:
    """Return a worker's part in the rounds of a topology, of ranks or of hosts."""
    return (Part if topology.hosts is None else HostPart)(topology, worker)


def gossip(
    port: Port,
    config: TrainConfig,
    topology: Topology,
    updater: Updater,
    codec: JobCodec | None,
    events: WorkerEventRecorder | None,
    turns: Turns | None = None,
) -> Gossip | PairGossip:
    """Build the strategy of the worker at ``port``.

    Args:
        port: at a worker's rank.
        config: resolved.
        topology: whom workers mix with.
        updater: takes the steps.
        codec: of what is sent; None where it is sent as it is.
        events: records events for the history; None keeps none.
        turns: what a worker without rounds does when, in a replay.
    """
    worker = port.role_map.worker_of(port.rank)
    assert worker is not None, "a worker's strategy is made at a worker's rank"
    if config.asynchronous:
        neighbours = Part(topology, worker).peers
        asks = topology.colours[worker] == ASKS
        pairs = Pairs(worker, neighbours, asks=asks, seed=config.seed)
        return PairGossip(port, updater, pairs, turns=turns, events=events)
    part = part_of(topology, worker)
    strategy: Callable[..., Gossip] = Gossip
    if isinstance(part, HostPart):
        strategy = Leader if part.leads else Member
    elif config.push_sum:
        strategy = PushSum
    elif config.gradient_tracking:
        strategy = Tracking
    elif codec is not None:
        span, rate = port.role_map.spans[0], config.consensus_rate
        assert rate is not None, "a resolved config has one where there is a codec"
        encoder = codec.sender(span) if port.theta.size else codec.lengths(span)
        strategy = partial(Choco, codec=encoder, seed=codec.seed, rate=rate)
    return strategy(
        port,
        updater,
        Neighbours(port, part, framed=codec is not None),
        adapts_first=config.order == ADAPT_THEN_COMBINE,
        events=events,
    )
