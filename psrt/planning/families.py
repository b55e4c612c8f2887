"""Families of modes, whose ranks do the same to each other, so that one short run tells of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

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

    def job(self, config: TrainConfig, **knobs: Any) -> TrainConfig:
        """Return the config of its job, with the model of another one, and these knobs."""
        return replace(
            config, mode=self.mode, servers=self.servers, codec=self.codec, codec_reply=self.reply,
            parallel=self.parallel, **knobs,
        )  # fmt: skip

    def is_possible(self, workers: int) -> bool:
        """Whether that many workers can run it: at least two, and not pairs on an odd ring."""
        try:
            asked = resolve(self.job(TrainConfig()), ranks=workers + self.servers)
            topology_for(asked, range(workers), edges=None)
        except ConfigError:
            return False
        return workers > 1


#: The codecs that are planned, of what is sent and of what comes back: of words, of halves, of
#: places. Others count as the first ones.
CODECS = (("int8", "int8"), ("float16", "float16"), ("top-k", "int8"))
#: Not a family of modes: workers that hardly ever meet show how long a local step takes.
ALONE = Family("alone", LocalSGD(local_steps=64), 0, steps=192)
#: Workers that meet often.
MEANS = Family("means", LocalSGD(local_steps=4), 0)
#: The family whose servers' work is recorded, too.
ROUNDS = Family("rounds", Sync(), 1)
#: Gossip with one neighbour at a time, in which a late message delays others, and so on: it takes
#: some rounds until that has spread.
PEERS = Family("one peer", Gossip(topology="one-peer-exponential"), 0, steps=48)
#: Split models: products of few rows or columns, and many messages.
STAGES, SLICES = "stages", "slices"
#: In the order in which they are tried on ranks.
FAMILIES = (
    ALONE,
    Family("sums", AllReduce(), 0),
    MEANS,
    ROUNDS,
    Family("stale", Async(), 1),
    Family("served means", LocalSGD(local_steps=4), 1),
    Family("elastic", EASGD(), 1, steps=30),
    Family("neighbours", Gossip(), 0),
    PEERS,
    Family("pairs", Gossip(variant=PAIRS), 0),
    Family(STAGES, AllReduce(), 0, parallel="pipeline:2"),
    Family(SLICES, AllReduce(), 0, parallel="tensor:2"),
    *(Family("sums", AllReduce(), 0, *it) for it in CODECS),
    *(Family("rounds", Sync(), 1, *it) for it in CODECS),
    *(Family("stale", Async(), 1, *it) for it in CODECS),
)
#: By family without coded runs, that whose runs tell how long its codecs take.
CODED = {
    **dict.fromkeys((MEANS.name, "neighbours", PEERS.name, "pairs"), "sums"),
    **dict.fromkeys(("served means", "elastic"), ROUNDS.name),
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
        if mode.asynchronous:
            return "pairs"
        return PEERS.name if mode.topology == PEERS.mode.topology else "neighbours"
    if mode.elastic is not None:
        return "elastic"
    if mode.averages:
        return "served means" if config.servers else MEANS.name
    if not config.servers:
        return "sums"
    return "rounds" if mode.rounds else "stale"
