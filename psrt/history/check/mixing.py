"""Who averages with whom, and by which weights: the topology that a header tells of.

Of a graph without a name, one that was drawn or a user's own, the header has the edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.errors import ConfigError
from psrt.history.check.table import Floats, Ints
from psrt.history.header import Header
from psrt.topology import Topology, topology_of


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a run whose workers average inside."""

    #: By worker, the number of its host, in the order of their first workers.
    host: Ints
    #: Of a period of rounds, (H, H): row a has what host a weighs the others by.
    matrices: tuple[Floats, ...]
    #: Whether these are by the numbers of workers that hosts have, which shrink as workers leave.
    by_ranks: bool


def mixing_of(header: Header) -> Topology:
    """Return how the workers of a run mix.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    hosts: list[int] = []
    if header.knob("by_host"):
        if not header.hosts or max(header.workers) >= len(header.hosts):
            raise ConfigError("the history's header does not say which hosts its workers are on")
        places = [header.hosts[rank] for rank in header.workers]
        order = {place: number for number, place in enumerate(dict.fromkeys(places))}
        hosts = [order[place] for place in places]
    return topology_of(
        "the header's edges" if header.edges else str(header.knob("topology")),
        len(header.workers),
        push_sum=bool(header.knob("push_sum")),
        hosts=hosts,
        edges=header.edges,
    )


def hosts_of(header: Header) -> Hosts:
    """Return how the hosts of a run mix, inside of which workers average.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    level = mixing_of(header).hosts
    if level is None:
        raise ConfigError("the history's header is of workers that do not average by host")
    first, host = np.unique(level.first, return_inverse=True)
    matrices = tuple(it[np.ix_(first, first)] for it in level.matrices)
    return Hosts(host, matrices, level.is_metropolis)
