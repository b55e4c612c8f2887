"""A mode's timeline: when each worker computes, and what it waits for; its lesson.

A small job of the real roles runs in virtual time.

Nothing here depends on the mode: `psrt.job` trains with the same coroutines as on a cluster, and
the ports of a `RecordingWorld` record the calls.

- A worker *computes* while its port lets computing time pass.
- Between two steps it *waits*: in a mode with servers from its push until the last reply. A server
  replies as soon as the policy allows. Until the push that triggered the reply was sent, the worker
  waited for that push's sender; for the rest of the time it waited for messages.
- Without servers all workers wait in a sum for the last one to join it, and then for messages.
- In streaming local SGD several sums are under way at a time, so those of each fragment are taken
  from the events that a history would have: when each worker sent its part, and when it took the
  mean. A worker that computes passes nothing on: who waits for a mean is led back from message
  to message, to the worker whose computing was the last to hold one up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from psrt.arrays import Vector
from psrt.config import TrainConfig, resolve
from psrt.job.virtual import simulate
from psrt.partition import Span, even_spans
from psrt.simulation import SimulationCosts
from psrt.transport import RoleMap
from psrt.units import plural
from psrt.views.explain.recording import Log, Passage, RecordingWorld, SumLog, Transfer

#: The activities of a worker: computing, or one of the causes of ``WAITING``, as in a summary.
COMPUTE, WORKERS, MESSAGES = "compute", "workers", "messages"
WAITING = WORKERS, MESSAGES


@dataclass(frozen=True, slots=True)
class Stretch:
    """An interval of one worker's virtual time, in seconds."""

    start: float
    stop: float
    #: ``COMPUTE``; or what is waited for: of ``WORKERS``, ``waiting_for``; ``MESSAGES`` alone.
    what: str
    #: The worker that is waited for; of ``COMPUTE`` the step, from 0 on; of ``MESSAGES`` itself.
    waiting_for: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.stop - self.start


def stretches(logs: Sequence[Log], *, served: bool) -> list[list[Stretch]]:
    """Return each worker's stretches, from the start until it finished.

    Args:
        logs: the calls at the ports, by worker.
        served: whether there are servers.
    """
    return [_line(logs, worker, served) for worker in range(len(logs))]


def _line(logs: Sequence[Log], worker: int, served: bool) -> list[Stretch]:
    log = logs[worker]
    line: list[Stretch] = []
    starts = [start for start, _ in log.busy[1:]] + [log.done]
    for step, ((start, stop), resumed) in enumerate(zip(log.busy, starts, strict=True)):
        line.append(Stretch(start, stop, COMPUTE, step))
        for it in log.sums:
            if stop < it.taken <= resumed:
                line += _waits_for_mean(logs, worker, stop, it)
                stop = it.taken
        if resumed > stop:
            waiting_for, until = _cause(logs, worker, step, resumed, served)
            until = min(max(until, stop), resumed)
            if waiting_for != worker and until > stop and not log.sums:
                line.append(Stretch(stop, until, WORKERS, waiting_for))
                stop = until
            if resumed > stop:
                line.append(Stretch(stop, resumed, MESSAGES, worker))
    return line


def _waits_for_mean(
    logs: Sequence[Log], worker: int, start: float, it: Transfer
) -> Iterator[Stretch]:
    """Yield what a worker waits for from some time on until it takes a mean.

    The message that it took last was sent by a worker that had computed until then, or had taken a
    message at that very time, and so on back.
    """
    until, sender, computed = it.taken, worker, False
    while until > start and not computed:
        if until not in logs[sender].hops:  # nobody sees messages, as at a rendezvous
            until, sender = it.complete, it.last
            break
        until, sender = logs[sender].hops[until]
        computed = any(stop == until for _, stop in logs[sender].busy)
    if sender != worker and until > start:
        yield Stretch(start, until, WORKERS, sender)
        start = until
    if it.taken > start:
        yield Stretch(start, it.taken, MESSAGES, worker)


def _cause(
    logs: Sequence[Log], worker: int, step: int, resumed: float, served: bool
) -> tuple[int, float]:
    """Return the worker that a worker waited for after a step, and the end of that wait."""
    if served:
        answers = [a for a in logs[worker].answers if logs[worker].busy[step][1] < a[0] <= resumed]
        return (answers[-1][1], answers[-1][2]) if answers else (worker, 0.0)
    there = [i for i, log in enumerate(logs) if len(log.busy) > step]
    last = max(there, key=lambda i: logs[i].busy[step][1])
    return last, logs[last].busy[step][1]


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


class _Layered(_Bowl):
    """As many layers as fragments may be asked for."""

    def gradient_spans(self) -> Sequence[Span]:
        """Return a layer for each parameter, the last one first."""
        return even_spans(_PARAMETERS, _PARAMETERS)[::-1]

    def loss_and_grad(
        self,
        theta: Vector,
        batch: object,
        out: Vector,
        ready: Callable[[int], None] | None = None,
    ) -> float:
        """Return the loss at θ."""
        return super().loss_and_grad(theta, batch, out)


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
    #: Of streaming local SGD, by worker: the sums that it took part in, in order.
    sums: tuple[tuple[Transfer, ...], ...] = ()
    #: In order of their arrival; workers count as ranks, then servers.
    passages: tuple[Passage, ...] = ()

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.lines)

    def share(self, worker: int, *what: str, waiting_for: int | None = None) -> float:
        """Return the fraction of its own time that a worker spent on something.

        Args:
            worker: its number.
            what: activities: ``COMPUTE``, ``*WAITING``, ``WORKERS`` or ``MESSAGES``.
            waiting_for: counts only waits for this worker; None counts all.
        """
        line = self.lines[worker]
        whole = sum(stretch.seconds for stretch in line)
        spent = sum(
            stretch.seconds
            for stretch in line
            if stretch.what in what and waiting_for in (None, stretch.waiting_for)
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

    problem = _Layered() if config.streams else _Bowl()
    log = SumLog() if config.streams else None
    found = simulate(config, problem, workers=workers, seed=config.seed, world=World, log=log)
    world = worlds[0]
    sums = [] if log is None else log.transfers(workers)
    for kept, of_worker in zip(world.logs, sums, strict=False):
        kept.sums = of_worker
    histograms = [server.shard.stats.histogram for server in found.servers]
    lines = stretches(world.logs, served=bool(found.servers))
    return Timeline(
        config=resolve(config, ranks=world.role_map.size),
        slow=factors,
        lines=tuple(map(tuple, lines)),
        seconds=max(log.done for log in world.logs),
        staleness=None
        if config.scheme.averages and config.scheme.rounds
        else _staleness(histograms),
        sums=tuple(map(tuple, sums)),
        passages=tuple(_numbered(world.passages, world.role_map)),
    )


def _numbered(passages: Sequence[Passage], role_map: RoleMap) -> Iterator[Passage]:
    """Yield passages with workers and servers, counted in this order, in place of ranks."""
    numbers = {rank: i for i, rank in enumerate((*role_map.workers, *role_map.server_ranks))}
    for it in passages:
        yield it._replace(source=numbers[it.source], target=numbers[it.target])


def lesson(timeline: Timeline) -> str:
    """Return the one line to remember."""
    waits = [
        (timeline.share(worker, WORKERS, waiting_for=waiting_for), worker, waiting_for)
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
        if timeline.config.scheme.averages:
            text += f"; the centre was {mean:.1f} updates further when a worker met it again"
            text += f", at most {most}"
        elif most:
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
    if (config.fragments or 1) > 1:
        yield f"{config.fragments} fragments"
    if config.sync_delay:
        yield f"averages taken {plural(config.sync_delay, 'step')} later"
    if config.eager:
        yield "eager"
    for worker, factor in enumerate(timeline.slow):
        if factor != 1.0:
            yield f"worker {worker} takes {factor:g} × as long"
