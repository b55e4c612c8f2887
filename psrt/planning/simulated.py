"""Simulates a job from what is known of it, for its speed in steady state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from psrt.config import TrainConfig, resolve
from psrt.history import Kind
from psrt.history.log import Events
from psrt.history.ring import EventRing
from psrt.job.session import run_job
from psrt.job.shards import ServedJob
from psrt.job.virtual import SimulatedRun, VirtualLauncher
from psrt.planning.costs import costs_for
from psrt.planning.families import ALONE, FAMILIES, Family
from psrt.planning.known import Known, Site
from psrt.planning.steady import speed_of

#: Events of a simulation that are kept: the last ones.
_KEPT = 1 << 18
#: Steps that are simulated to find factors, the least and the greatest factor, and how many times
#: the range between them is halved.
_STEPS, _LEAST, _MOST, _HALVINGS = 96, 0.1, 30.0, 8


class _OnSite(VirtualLauncher):
    """A simulation that makes every choice as the real job does, by its real hosts."""

    def __init__(self, site: Site, workers: int, **more: Any) -> None:
        super().__init__(workers, **more)
        self._site = site

    def hosts(self, config: TrainConfig) -> Sequence[int]:
        """Return the host of each rank."""
        return self._site.of(self._workers + (config.servers or 0))

    def has_network(self, hosts: Sequence[int], everywhere: bool | None) -> bool:
        """Return whether messages between these hosts are worth a codec."""
        return bool(everywhere) or len(set(hosts)) > 1

    def priced(self, job: ServedJob) -> ServedJob:
        """Return the job: a real one knows no more of its costs."""
        return job


def simulated(
    known: Known, config: TrainConfig, *, workers: int, seed: int = 0
) -> tuple[SimulatedRun, tuple[Events, ...]]:
    """Simulate a job without numerics; return its result, and by worker its steps."""
    work = known.workload
    config = replace(
        config, out=None, record=False, overwrite=False, batch_size=work.batch_size, epochs=None
    )
    log = EventRing(_KEPT)
    launcher = _OnSite(
        known.site,
        workers,
        seed=seed,
        costs=lambda role_map: costs_for(known, config, role_map),
        numerics=False,
        parameters=work.n,
        parts=work.parts,
        matrices=work.matrices,
    )
    run = run_job(launcher, config, None, say=None, log=log)
    assert run is not None
    events = log.last()
    steps = events[(events["kind"] == Kind.STEP) | (events["kind"] == Kind.PUSH)]
    return launcher.result(run), tuple(steps[steps["worker"] == it] for it in range(workers))


def simulated_speed(known: Known, config: TrainConfig, *, workers: int, seed: int = 0) -> float:
    """Return the samples per second of a job in steady state."""
    _, steps = simulated(known, config, workers=workers, seed=seed)
    return speed_of(steps, period=config.scheme.local_steps)


def fitted(known: Known, config: TrainConfig, workers: int | None = None) -> Known:
    """Return what is known, with the factors by which short runs took longer than simulated.

    The time of everything but gradients is scaled until the simulation is as fast as the run; if
    it cannot be, so is the rest.

    Args:
        known: with the speeds of short runs; without any, it is returned as it is.
        config: of the user, of which mode and servers do not matter.
        workers: of the short runs; None: all ranks that are no servers.
    """
    details, work = dict(known.details), known.workload
    for family in FAMILIES:
        speed = details.get(family.speed)
        if speed is None:
            continue
        count = known.site.ranks - family.servers if workers is None else workers
        if family.name == ALONE:
            step_s = work.batch_size * count / speed
            details["local_s"] = step_s / _crowding(known.site, count)
        else:
            job = resolve(
                replace(
                    config,
                    mode=family.mode,
                    servers=family.servers,
                    steps=_STEPS,
                    epochs=None,
                    codec=family.codec,
                    codec_reply=family.codec,
                ),
                ranks=count + family.servers,
            )
            details |= _factors(replace(known, details=details), job, family, count, speed)
    return replace(known, details=details)


def _crowding(site: Site, workers: int) -> float:
    """Return how many times as long workers take to compute because they share cores."""
    there = Counter(site.machines[host] for host in site.hosts[:workers])
    return max(1.0, *(number / site.cores[it] for it, number in there.items()))


def _factors(
    known: Known, job: TrainConfig, family: Family, workers: int, speed: float
) -> dict[str, float]:
    """Return the factors with which a simulated job is as fast as the real one."""
    name = f"code {family.name} {family.codec}" if family.codec else f"rest {family.name}"

    def off(factor: float) -> float:
        there = replace(known, details={**known.details, name: factor})
        return math.log(simulated_speed(there, job, workers=workers) / speed)

    low, high = _LEAST, _MOST
    if off(low) <= 0:
        high = low
    elif off(high) >= 0:
        low = high
    else:
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if off(middle) > 0 else (low, middle)
    factor = math.sqrt(low * high)
    if family.codec:
        return {name: factor}
    return {name: factor, f"slow {family.name}": math.exp(off(factor))}
