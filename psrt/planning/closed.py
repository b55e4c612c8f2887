"""A step's time by closed forms, to leave out what cannot win before anything is simulated. Pure.

They take what the simulation takes, and know means only: queues, gates and stragglers that change
from step to step are for the simulation. So they prune, and never rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from psrt.codec.times import NO_FRAMES, FrameTimes
from psrt.collective.analysis.choose import choose, predict
from psrt.collective.registry import AUTO, by_hosts
from psrt.config import TrainConfig
from psrt.config.injection import Injection
from psrt.core.arrays import ITEMSIZE
from psrt.core.partition import Span
from psrt.job.roles import assign_roles
from psrt.job.shards import ServedJob, choose_shards, most_shards, served_job, step_seconds
from psrt.planning.candidates import Candidate
from psrt.planning.known import DEFAULT_APPLY, Known
from psrt.runtime.delays import Delays
from psrt.runtime.job_codec import JobCodec, job_codec
from psrt.topology.names import row_of

#: Gradients that are drawn of each worker.
_DRAWS = 200
#: Shards of a server that are tried to see what a job can reach.
_SHARDS = (1, 4, 16)
#: The share of a gradient's time after which a first bucket can be summed: the forward pass's.
_FORWARD = 1 / 3


def steady(injections: tuple[Injection, ...]) -> tuple[Injection, ...]:
    """Return the slow-downs of a job that has run for a while: all began, and pauses are over."""
    kept = (it for it in injections if it.kind != "pause")
    return tuple(it._replace(numbers=it.numbers[:1]) if it.kind == "slow" else it for it in kept)


@lru_cache(maxsize=64)
def _drawn(
    gradient_s: tuple[tuple[float, ...], ...],
    slow: tuple[Injection, ...],
    workers: int,
    first: int,
) -> np.ndarray:
    """Draw gradients of each worker, with their slow-downs: (draws, W) seconds."""
    rng = np.random.default_rng(0)
    lists = [np.asarray(gradient_s[(first + it) % len(gradient_s)]) for it in range(workers)]
    seconds = np.stack([rng.choice(its, _DRAWS) for its in lists], axis=1)
    for worker in range(workers if slow else 0):
        delays = Delays((it.kind, it.numbers) for it in slow if it.worker in (None, worker))
        seconds[:, worker] += [delays.seconds(0, it, rng) for it in seconds[:, worker]]
    return seconds


@dataclass(frozen=True, slots=True)
class Gradients:
    """The seconds of gradients of each worker, drawn: (draws, W)."""

    seconds: np.ndarray

    @classmethod
    def of(cls, known: Known, candidate: Candidate) -> Gradients:
        """Draw those of a candidate, whose workers follow after its servers."""
        first, workers, site = candidate.servers, candidate.workers, known.site
        slow = steady(candidate.config.inject)
        seconds = _drawn(known.workload.gradient_s, slow, workers, first)
        machines = Counter(site.machines[host] for host in site.hosts[first : first + workers])
        return cls(seconds * max(1.0, *(n / site.cores[it] for it, n in machines.items())))

    def slowest(self, steps: int = 1, backup: int = 0) -> float:
        """Return the mean seconds of a step until all but ``backup`` workers have taken ``steps``.

        Args:
            steps: that each takes without waiting for others.
            backup: workers that nobody waits for.
        """
        each = min(steps, _DRAWS)
        whole = self.seconds[: _DRAWS - _DRAWS % each]
        means = whole.reshape(-1, each, whole.shape[1]).mean(axis=1)
        return float(np.sort(means, axis=1)[:, -1 - backup].mean())

    def alone(self) -> float:
        """Return the mean seconds of a step where no worker waits for another."""
        return float(1 / (1 / self.seconds.mean(axis=0)).mean())


class Frames(NamedTuple):
    """What a codec makes of the numbers that are sent."""

    #: Bytes of what is sent and of what comes back, over those of the numbers.
    push: float = 1.0
    reply: float = 1.0
    times: FrameTimes = NO_FRAMES


@lru_cache(maxsize=256)
def _frames(codec: JobCodec, n: int, speed: float) -> Frames:
    reply = 1.0 if codec.reply is None else codec.reply.share(n)
    return Frames(codec.share(n), reply, codec.times({}, speed))


def _frames_of(candidate: Candidate, known: Known) -> Frames:
    config, several = candidate.config, len(set(known.site.hosts)) > 1
    if config.codec is None or not (several or config.codec_everywhere):
        return Frames()
    codec = job_codec(replace(config, codec_everywhere=True), known.workload.matrices)
    return Frames() if codec is None else _frames(codec, known.workload.n, known.codec_speed)


def closed_form(candidate: Candidate, known: Known) -> float:
    """Return the seconds of a worker's step by the closed form of its kind of job.

    Args:
        candidate: the config; it fits its ranks.
        known: with a site of these ranks.
    """
    config, mode = candidate.config, candidate.config.scheme
    frames = _frames_of(candidate, known)
    if candidate.servers:
        return _served(candidate, known, frames)
    draws = Gradients.of(known, candidate)
    every = mode.local_steps
    apply_s = _apply(known, config)
    if mode.single or candidate.workers == 1:
        return draws.alone() + apply_s
    if mode.mixes:
        return _mixed(candidate, known, frames, draws) + apply_s
    sum_s = _sum(candidate, known, frames)
    if mode.averages:
        return draws.slowest(every) + apply_s + sum_s / every
    compute = draws.slowest()
    parts = max(1, len(known.workload.parts))
    last = sum_s / parts if mode.overlap is not False else sum_s
    return max(compute + last, _FORWARD * compute + sum_s) + apply_s


def _apply(known: Known, config: TrainConfig) -> float:
    """Return the seconds of an update of all parameters."""
    return ITEMSIZE * known.workload.n / known.apply.get(config.optimizer.name, DEFAULT_APPLY)


def _served(candidate: Candidate, known: Known, frames: Frames) -> float:
    mode, asked = candidate.config.scheme, candidate.config.shards_per_server
    job = priced(candidate, known, frames)
    least = [it for it in _SHARDS if it <= most_shards(job)]
    tried = [asked] if isinstance(asked, int) else least
    seconds = min(step_seconds(job, it) for it in tried) / mode.local_steps
    return seconds + (_apply(known, candidate.config) if mode.averages else 0.0)


def with_shards(candidate: Candidate, known: Known) -> Candidate:
    """Return a candidate whose servers have as many shards as the closed form takes."""
    config = candidate.config
    if not candidate.servers or config.scheme.fragments > 1 or config.shards_per_server:
        return candidate
    choice = choose_shards(priced(candidate, known, _frames_of(candidate, known)))
    return candidate._replace(config=replace(config, shards_per_server=choice.shards))


def priced(candidate: Candidate, known: Known, frames: Frames = Frames()) -> ServedJob:  # noqa: B008
    """Return the job with servers, with the costs that are known."""
    config, site, work, mode = candidate.config, known.site, known.workload, candidate.config.scheme
    rate = known.apply.get(config.optimizer.name, DEFAULT_APPLY)
    ranks = assign_roles(site.hosts, candidate.servers, config.placement or "first")
    servers, workers = ([site.hosts[rank] for rank in its] for its in ranks)
    parts = work.parts or (Span(0, work.n),)
    job = served_job(config, work.n, parts, servers, workers, costs=site.costs)
    node = replace(site.costs.node, byte_s=1 / rate)
    costs = replace(site.costs, node=node, cores=max(site.cores))
    draws = Gradients.of(known, candidate)
    step_s = draws.alone()
    if mode.rounds:
        step_s = draws.slowest(mode.local_steps, mode.backup)
    elif mode.lead < math.inf:  # the slowest sets the pace
        step_s = float(draws.seconds.mean(axis=0).max())
    compute_s = mode.local_steps * step_s
    return replace(job, costs=costs, compute_s=compute_s, **frames._asdict())


def _sum(candidate: Candidate, known: Known, frames: Frames) -> float:
    """Return the seconds of an all-reduce of all parameters."""
    site, n = known.site, known.workload.n
    hosts = [*Counter(site.hosts[: candidate.workers]).values()]
    nbytes = frames.push * ITEMSIZE * n
    more = frames.times.encode.at(n) + frames.times.decode.at(n)
    name = candidate.config.allreduce or AUTO
    found = None if name == AUTO else predict(name, hosts, int(nbytes), ITEMSIZE, site.costs)
    if found is None:
        found = choose(hosts, int(nbytes), ITEMSIZE, site.costs).seconds
    return found + more


def sum_of_hosts(candidate: Candidate, known: Known) -> float | None:
    """Return the seconds of an all-reduce that folds inside several hosts first; None for others.

    Its messages are not simulated.
    """
    name, several = candidate.config.allreduce, len(set(known.site.hosts)) > 1
    return _sum(candidate, known, Frames()) if by_hosts(name) and several else None


def _mixed(candidate: Candidate, known: Known, frames: Frames, draws: Gradients) -> float:
    """Return the seconds of a step beside averages with neighbours."""
    mode, site, workers = candidate.config.scheme, known.site, candidate.workers
    row = row_of(mode.topology or "")
    graphs = [] if row is None else row.graphs(workers, (mode.topology or "").partition(":")[2], 0)
    sends = [max(map(len, graph.receivers)) for graph in graphs] or [2]
    nbytes = frames.push * ITEMSIZE * known.workload.n * sum(sends) / len(sends)
    link = site.costs.between if len(set(site.hosts)) > 1 else site.costs.inside
    crowd = max(Counter(site.hosts[:workers]).values())
    wire = link.alpha + crowd * nbytes * link.beta
    own = draws.alone() if mode.asynchronous else draws.slowest()
    return max(own, wire)


def memory_of(candidate: Candidate, known: Known, worker: float | None) -> Mapping[str, int]:
    """Return by role the bytes of a rank's vectors; activations are not known.

    Args:
        candidate: the config.
        known: with a site of its ranks.
        worker: of a worker, as the simulated job counts them; None: the parameters, a gradient
            and the optimizer's state.
    """
    n, vectors = known.workload.n, candidate.config.optimizer.vectors
    own = (2 + vectors) * ITEMSIZE * n if worker is None else worker
    found = {"worker": round(own)}
    if candidate.servers:
        # A version in use, the next one and one that is being read, and gradients from elsewhere.
        job = priced(candidate, known)
        vectors += 3 + max(len(job.workers) - job.workers.count(it) for it in job.servers)
        found["server"] = vectors * ITEMSIZE * -(-n // candidate.servers)
    return found
