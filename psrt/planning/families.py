"""Families of modes, whose ranks do the same to each other.

So one short run of any of them tells how far a prediction from single times is off for all.
"""

from __future__ import annotations

from typing import NamedTuple

from psrt.config import TrainConfig, resolve
from psrt.config.modes import EASGD, AllReduce, Async, Gossip, LocalSGD, Mode, Sync
from psrt.config.names import PAIRS
from psrt.core.errors import ConfigError
from psrt.job.gossip import topology_for


class Family(NamedTuple):
    """A family, and the job that stands for it."""

    name: str
    mode: Mode
    servers: int
    #: Of what is sent and of what comes back; None: uncompressed.
    codec: str | None = None
    reply: str | None = None
    #: The fewest steps that show its pace.
    steps: int = 16
    #: How the model is split, if it is that of ``psrt train``.
    parallel: str | None = None

    def is_possible(self, workers: int) -> bool:
        """Whether that many workers can run it: at least two, and not pairs on an odd ring."""
        try:
            asked = TrainConfig(mode=self.mode, servers=self.servers, parallel=self.parallel)
            topology_for(resolve(asked, ranks=workers + self.servers), range(workers), edges=None)
        except ConfigError:
            return False
        return workers > 1


#: The codecs that are planned, of what is sent and of what comes back: of words, of halves, of
#: places. Others count as the first ones.
CODECS = (("int8", "int8"), ("float16", "float16"), ("top-k", "int8"))
#: Not a family of modes: workers that hardly ever meet show how long a local step takes.
ALONE = "alone"
#: Workers that meet often.
MEANS = "means"
#: The family whose servers' work is recorded, too.
ROUNDS = Family("rounds", Sync(), 1)
#: Gossip with one neighbour at a time, in which a late message delays others, and so on: it takes
#: some rounds until that has spread.
PEERS, ONE_PEER = "one peer", "one-peer-exponential"
#: Split models: products of few rows or columns, and many messages.
STAGES, SLICES = "stages", "slices"
#: In the order in which they are tried on ranks.
FAMILIES = (
    Family(ALONE, LocalSGD(local_steps=64), 0),
    Family("sums", AllReduce(), 0),
    Family(MEANS, LocalSGD(local_steps=4), 0),
    ROUNDS,
    Family("stale", Async(), 1),
    Family("served means", LocalSGD(local_steps=4), 1),
    Family("elastic", EASGD(), 1),
    Family("neighbours", Gossip(), 0),
    Family(PEERS, Gossip(topology=ONE_PEER), 0, steps=48),
    Family("pairs", Gossip(variant=PAIRS), 0),
    Family(STAGES, AllReduce(), 0, parallel="pipeline:2"),
    Family(SLICES, AllReduce(), 0, parallel="tensor:2"),
    *(Family("sums", AllReduce(), 0, *it) for it in CODECS),
    *(Family("rounds", Sync(), 1, *it) for it in CODECS),
    *(Family("stale", Async(), 1, *it) for it in CODECS),
)
#: By family, that whose coded runs tell how long its codecs take.
CODED = {
    "sums": "sums",
    "means": "sums",
    "neighbours": "sums",
    PEERS: "sums",
    "pairs": "sums",
    "rounds": "rounds",
    "stale": "stale",
    "served means": "rounds",
    "elastic": "rounds",
}


def family_of(config: TrainConfig) -> str:
    """Return the name of the family of a config, which is resolved; empty for one process.

    >>> from psrt.config import resolve
    >>> [family_of(resolve(TrainConfig(mode=it), ranks=4)) for it in ("ssp", "sync", "gossip")]
    ['stale', 'rounds', 'neighbours']
    """
    mode = config.scheme
    if mode.single:
        return ""
    if config.parallel:
        return SLICES if config.axes.tensor > 1 else STAGES
    if mode.mixes:
        one = PEERS if mode.topology == ONE_PEER else "neighbours"
        return "pairs" if mode.asynchronous else one
    if mode.elastic is not None:
        return "elastic"
    if mode.averages:
        return "served means" if config.servers else MEANS
    if not config.servers:
        return "sums"
    return "rounds" if mode.rounds else "stale"
