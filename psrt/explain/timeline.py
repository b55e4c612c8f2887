"""A mode's timeline: a small job of the real roles in virtual time, and its lesson."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from psrt.arrays import Vector
from psrt.config import TrainConfig, resolve
from psrt.explain.waiting import COMPUTE, WAIT, RecordingWorld, Stretch, stretches
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts
from psrt.transport import RoleMap
from psrt.units import plural

#: Number of parameters: nothing depends on it, but each server must own at least one.
_PARAMETERS = 64
#: A normal step takes 1 unit of time, give or take this fraction; a message takes this long.
_SPREAD, _LATENCY = 0.1, 0.03


class _Bowl:
    """The simplest problem that can be trained: |θ|²/2, whose gradient is θ.

    It starts at its minimum, so it does not diverge at any learning rate or staleness.
    """

    def initial(self) -> Vector:
        """Return the initial parameters, the minimum."""
        return np.zeros(_PARAMETERS, np.float32)

    def batches(self, worker: int, workers: int, epoch: int) -> list[list[int]]:
        """Return four batches of one sample; a list, so that an epoch's length is known."""
        return [[0]] * 4

    def loss_and_grad(self, theta: Vector, batch: object, out: Vector) -> float:
        """Return the loss at θ."""
        np.copyto(out, theta)
        return float(theta @ theta) / 2

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Return the loss."""
        return {"loss": float(theta @ theta) / 2}


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened to each worker."""

    #: Resolved.
    config: TrainConfig
    #: By worker, the factor by which its steps take longer.
    slow: tuple[float, ...]
    #: By worker, in order of time.
    lines: tuple[tuple[Stretch, ...], ...]
    #: Time at which the last worker finished, in units of a normal step.
    seconds: float
    #: Mean and largest staleness τ of the gradients that were applied; None without servers.
    staleness: tuple[float, int] | None

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.lines)

    def share(self, worker: int, what: str, waiting_for: int | None = None) -> float:
        """Return the fraction of its own time that a worker spent on something.

        Args:
            worker: its number.
            what: ``COMPUTE``, ``WAIT`` or ``MESSAGE``.
            waiting_for: counts only waits for this worker; None counts all.
        """
        line = self.lines[worker]
        whole = sum(stretch.seconds for stretch in line)
        spent = sum(
            stretch.seconds
            for stretch in line
            if stretch.what == what and waiting_for in (None, stretch.waiting_for)
        )
        return spent / whole if whole else 0.0


def run(config: TrainConfig, *, workers: int, slow: Mapping[int, float]) -> Timeline:
    """Train the small job and return its timeline.

    Args:
        config: of the mode, with ``steps``; its seed also seeds the delays.
        workers: number of workers, ≥ 1.
        slow: worker → factor by which its steps take longer; 1 for all others.

    Raises:
        ConfigError: if the config does not fit the number of workers.
    """
    factors = tuple(slow.get(worker, 1.0) for worker in range(workers))
    worlds: list[RecordingWorld] = []

    class World(RecordingWorld):
        """Keeps itself, because ``simulate`` hands out results only."""

        def __init__(self, role_map: RoleMap, **rest: Any) -> None:
            rest["costs"] = _costs(role_map, factors)
            super().__init__(role_map, **rest)
            worlds.append(self)

    found = simulate(config, _Bowl(), workers=workers, seed=config.seed, world=World)
    world = worlds[0]
    histograms = [server.shard.stats.histogram for server in found.servers]
    lines = stretches(world.logs, served=bool(found.servers))
    return Timeline(
        config=resolve(config, ranks=world.role_map.size),
        slow=factors,
        lines=tuple(map(tuple, lines)),
        seconds=max(log.done for log in world.logs),
        staleness=None if config.scheme.averages else _staleness(histograms),
    )


def lesson(timeline: Timeline) -> str:
    """Return the one line to remember."""
    waits = [
        (timeline.share(worker, WAIT, waiting_for), worker, waiting_for)
        for worker in range(timeline.workers)
        for waiting_for in range(timeline.workers)
        if waiting_for != worker
    ]
    share, worker, waiting_for = max(waits, default=(0.0, 0, 0))
    busy = sum(timeline.share(i, COMPUTE) for i in range(timeline.workers)) / timeline.workers
    if share < 0.005:
        text = "no worker waited for another"
    else:
        text = f"worker {worker} waited {share:.0%} of its time for worker {waiting_for}"
    text += f"; on average a worker computed {busy:.0%} of its time"
    if timeline.staleness is not None:
        mean, most = timeline.staleness
        if most:
            text += f"; a gradient was {mean:.1f} versions old when applied, at most {most}"
        else:
            text += "; no gradient was stale"
    return text


def _costs(role_map: RoleMap, factors: tuple[float, ...]) -> SimulationCosts:
    """Return the job's costs: steps by worker, a small latency, no cost per byte."""

    def step(rank: int, rng: np.random.Generator) -> float:
        worker = role_map.worker_of(rank)
        factor = 1.0 if worker is None else factors[worker]
        return factor * float(rng.uniform(1 - _SPREAD, 1 + _SPREAD))

    return SimulationCosts(
        compute=step, latency=lambda rng: _LATENCY * float(rng.uniform(0.8, 1.2))
    )


def _staleness(histograms: Sequence[Sequence[int]]) -> tuple[float, int] | None:
    """Return mean and maximum of τ, given each server's histogram of τ."""
    counts = [(tau, count) for found in histograms for tau, count in enumerate(found) if count]
    total = sum(count for _, count in counts)
    if not total:
        return None
    return sum(tau * count for tau, count in counts) / total, max(tau for tau, _ in counts)


def described(timeline: Timeline) -> Iterator[str]:
    """Yield a description of the job, in parts of a sentence."""
    config = timeline.config
    yield config.scheme.described(partial(getattr, config))
    servers = config.servers or 0
    count = plural(timeline.workers, "worker")
    yield f"{count}, {plural(servers, 'server')}" if servers else count
    yield f"{config.steps} steps each"
    for worker, factor in enumerate(timeline.slow):
        if factor != 1.0:
            yield f"worker {worker} takes {factor:g} × as long"
