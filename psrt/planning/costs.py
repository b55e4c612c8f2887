"""The costs of a simulated job from what planning knows: the only place that maps one to the other.
"""

from __future__ import annotations

import math

import numpy as np

from psrt.config import TrainConfig
from psrt.planning.known import DEFAULT_APPLY, Known
from psrt.simulation import SimulationCosts
from psrt.transport import RoleMap


def costs_for(known: Known, config: TrainConfig, role_map: RoleMap) -> SimulationCosts:
    """Return the costs of a job.

    Args:
        known: what was measured, or given.
        config: of the job, resolved.
        role_map: its workers and servers.
    """
    work, site = known.workload, known.site
    rate = known.apply.get(config.optimizer.name, DEFAULT_APPLY)
    lists = [np.asarray(its) for its in work.gradient_s]
    several = len(set(site.hosts)) > 1

    def compute(rank: int, rng: np.random.Generator) -> float:
        its = lists[rank % len(lists)]
        return float(its[rng.integers(its.size)])

    return SimulationCosts(
        compute=compute,
        latency=lambda rng: site.costs.between.alpha if several else site.costs.inside.alpha,
        bandwidth=1 / site.costs.between.beta if several else math.inf,
        apply=lambda shard, nbytes, rng: nbytes / rate,
        worker_apply=rate,
        codec_speed=known.codec_speed,
    )
