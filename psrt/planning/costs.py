"""The costs of a simulated job from what planning knows: the only place that maps one to another.

The names in ``Known.details``, of which none needs to be there:

=======================  =========================================================================
``local_s``              seconds of a local step: a gradient, and an update by its own worker
``wake_up``, ``reply``   seconds of a message to an idle server, and of its reply, on one host
``turnaround``           the same of a message to a busy server
``rest FAMILY [CODEC]``  factor on the time of everything but gradients, see ``fitting``
``slow FAMILY [CODEC]``  factor on the time of gradients, where that is not enough
=======================  =========================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from psrt.codec.times import CodecTimes, Line
from psrt.collective.analysis.choose import predict
from psrt.collective.registry import NODE, by_hosts
from psrt.config import TrainConfig
from psrt.config.names import AUTO
from psrt.core.arrays import ITEMSIZE
from psrt.core.messages import Message, Mix, Params
from psrt.planning.families import CODECS, CODED, family_of
from psrt.planning.known import Known
from psrt.simulation import SimulationCosts
from psrt.transport import RoleMap

#: Bytes per second of a link that no message takes: on one host they stay in memory.
_NO_WIRE = 1e12
#: Ranks above which each has a link of its own, on which messages take turns.
_MOST_SHARED = 16
#: What the times of codecs are multiplied by, as each frame finds other numbers in the caches; and
#: the seconds of sending or receiving it, without the wire: 2 cores of a shared Intel Xeon.
_COLD_FACTOR, _FRAME = 2.0, Line(1e-4, 0.0)
#: The least share of its measured time that a sum takes.
_LEAST = 0.1


def costs_for(known: Known, config: TrainConfig, role_map: RoleMap) -> SimulationCosts:
    """Return the costs of a job.

    Args:
        known: what was measured, or given.
        config: of the job, resolved.
        role_map: its workers and servers.
    """
    work, site, details = known.workload, known.site, known.details
    family = family_of(config)
    slow, rest = (_factor(details, it, family, config) for it in ("slow", "rest"))
    hosts, wire = site.of(role_map.size), site.costs.between
    rate = own = known.apply_rate(config)
    if "local_s" in details:  # a local step is a gradient and its update
        own = ITEMSIZE * work.n / max(1e-9, details["local_s"] - work.mean_s)
    counts, sums = Counter(hosts).values(), config.allreduce or AUTO
    several = len(counts) > 1
    if config.scheme.sums_gradients and config.scheme.shard is None and config.codec is None:
        # Ranks of a host that sum in its memory share an update.
        own *= min(counts) if by_hosts(sums) or (sums == AUTO and not several) else 1
    replies, shards = [0] * role_map.size, max(1, len(role_map.servers))
    lists = [np.asarray(its) for its in work.gradient_s]
    # Sharing a link costs time in proportion to the ranks that use it; of many ranks, each has its
    # part of it where all send at a time.
    own_links = several and role_map.size > _MOST_SHARED
    crowd = max(counts) if own_links and not role_map.servers else 1

    def compute(rank: int, rng: np.random.Generator) -> float:
        its = lists[rank % len(lists)]
        return slow * float(its[rng.integers(its.size)])

    def receive(rank: int, message: Message, idle: bool, rng: np.random.Generator) -> float:
        if isinstance(message, Mix):  # a neighbour's vector is added to one's own
            return rest * ITEMSIZE * work.n / rate
        if several:  # latency is a part of the wire's
            return 0.0
        if isinstance(message, Params):
            replies[rank] += 1  # a worker continues at the last one
            return 0.0 if replies[rank] % shards else rest * details.get("reply", 0.0)
        return rest * details.get("wake_up" if idle else "turnaround", 0.0)

    return SimulationCosts(
        compute=compute,
        latency=lambda rng: rest * wire.alpha if several else 0.0,
        bandwidth=1 / (rest * crowd * wire.beta) if several else _NO_WIRE,
        hosts=None if own_links else hosts,
        cores=[(it, site.cores[it]) for it in (site.machines[host] for host in hosts)],
        receive=receive if role_map.peers or (role_map.servers and not several) else None,
        apply=lambda shard, nbytes, rng: rest * nbytes / rate,
        worker_apply=own / slow,
        codecs={it.name: _in_a_job(CodecTimes.of(it.name)) for it in config.codecs.values()},
        codec_speed=details.get(f"rest {family}", 1.0) / rest if config.codec else 1.0,
        reduce=_reduce(known, config, [hosts[rank] for rank in role_map.workers], rest),
    )


def _in_a_job(times: CodecTimes) -> CodecTimes:
    """Return the times of a codec whose frames are sent, from those of the codec alone."""
    lines = (times.encode, times.decode)
    return CodecTimes(*(it.times(_COLD_FACTOR).and_then(_FRAME) for it in lines))


def _factor(details: Mapping[str, float], name: str, family: str, config: TrainConfig) -> float:
    """Return a factor of a family; with a codec that of its own runs, or of a family like it."""
    plain = details.get(f"{name} {family}", 1.0)
    if config.codec is None:
        return plain
    like = CODED.get(family, family)
    usual = details.get(f"{name} {like}", 1.0)
    found = (details.get(f"{name} {like} {it}") for it in (config.codec.name, CODECS[0][0]))
    return plain * next((it / usual for it in found if it is not None), 1.0)


def _reduce(
    known: Known, config: TrainConfig, hosts: Sequence[int], factor: float
) -> Callable[[np.random.Generator], float] | None:
    """Return the time of a sum as it was measured; None where its messages are simulated."""
    counts = tuple(Counter(hosts).values())
    if config.servers or config.scheme.mixes or (len(counts) > 1 and max(counts) == 1):
        return None
    # What was measured under its own name is what ``auto`` chose.
    usual = next((it.algorithm for it in known.runs if it.algorithm and not it.codec), AUTO)
    name = usual if config.allreduce in (None, AUTO) else config.allreduce
    nbytes, costs = ITEMSIZE * known.workload.n, known.site.costs
    found = costs.measured_seconds(name, counts, nbytes)
    if found is None:
        found = predict(NODE, counts, nbytes, ITEMSIZE, costs)  # None on several hosts
    if found is None:
        return None
    # What a step takes beside its sum is the same for all algorithms, and not a factor on each.
    beside = (factor - 1) * (costs.measured_seconds(usual, counts, nbytes) or found)
    seconds = max(_LEAST * found, found + beside)
    return lambda rng: seconds
