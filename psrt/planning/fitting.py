"""Fits predictions to short runs of each family of modes.

Single times cannot know what ranks do to each other: to caches, to cores, to the bandwidth of
memory. So the time of everything but gradients is scaled until the simulation of a run is as fast
as the run was; what that cannot explain scales gradients, too.
"""

from __future__ import annotations

import math
from dataclasses import replace

from psrt.config import TrainConfig, resolve
from psrt.planning.candidates import Candidate
from psrt.planning.families import ALONE, FAMILIES, MEANS, Family
from psrt.planning.known import Known, ShortRun
from psrt.planning.prediction import simulated_speed

#: Periods between two averages that are simulated; the least and the greatest factor, and how many
#: times the range between them is halved.
_PERIODS, _LEAST, _MOST, _HALVINGS = 24, 0.1, 30.0, 8


def fitted(known: Known, config: TrainConfig) -> Known:
    """Return what is known, with the factors that its short runs tell.

    Args:
        known: with short runs; without any it is returned as it is.
        config: of the user, of which mode, servers and batches do not matter.
    """
    config = replace(config, batch_size=known.workload.batch_size)
    runs = {(it.family, it.codec): it for it in known.runs}
    known = known.without_factors()
    for family in FAMILIES:
        run = runs.get((family.name, family.codec))
        if run is None:
            continue
        if family == ALONE:
            found = {"local_s": _local(known, run, runs.get((MEANS.name, None), run))}
        else:
            found = _factors(known, family, run, config)
        known = replace(known, details=known.details | found)
    return known


def _local(known: Known, run: ShortRun, other: ShortRun) -> float:
    """Return the seconds of a local step on a core of its own, without the averages of a run.

    A step takes c + a/H; two runs with other H tell both.
    """
    each, site = known.workload.batch_size * run.workers, known.site
    seldom, often = each / run.samples_per_s, each / other.samples_per_s
    many, few = ALONE.mode.local_steps, MEANS.mode.local_steps
    found = (many * seldom - few * often) / (many - few)
    return (found if 0 < found < seldom else seldom) / site.crowding(site.of(run.workers))


def _factors(known: Known, family: Family, run: ShortRun, config: TrainConfig) -> dict[str, float]:
    """Return the factors with which a run is as fast when it is simulated, with its choices."""
    asked = family.job(
        config, steps=1, epochs=None, allreduce=None if family.parallel else run.algorithm,
        shards_per_server=run.shards_per_server, machine_costs=None,
    )  # fmt: skip
    resolved = resolve(asked, ranks=run.workers + family.servers)
    job = Candidate(resolved, family.servers, run.workers, known)
    name = f"{family.name} {family.codec or ''}".strip()

    def off(factor: float) -> float:
        there = replace(known, details=known.details | {f"rest {name}": factor})
        return math.log(simulated_speed(there, job, _PERIODS) / run.samples_per_s)

    low, high = _LEAST, _MOST
    if family.parallel:  # products, in which gradients are computed, are what is off
        low = high = 1.0
    elif off(low) <= 0:
        high = low
    elif off(high) >= 0:
        low = high
    else:
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if off(middle) > 0 else (low, middle)
    factor = math.sqrt(low * high)
    return {f"rest {name}": factor, f"slow {name}": math.exp(off(factor))}
