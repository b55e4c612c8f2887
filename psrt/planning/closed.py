"""A step's time by closed forms, to leave out what cannot win before anything is simulated. Pure.

They know means only: queues, gates and stragglers that change are for the simulation. So they
prune, and never rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from psrt.codec.times import NO_FRAMES, FrameTimes
from psrt.collective.analysis.choose import choose, predict
from psrt.collective.registry import AUTO, by_hosts
from psrt.config.injection import Injection
from psrt.core.arrays import ITEMSIZE
from psrt.core.partition import Span
from psrt.job.roles import assign_roles
from psrt.job.shards import ServedJob, choose_shards, most_shards, served_job, step_seconds
from psrt.planning.candidates import Candidate
from psrt.planning.known import Known
from psrt.runtime.delays import Delays
from psrt.runtime.job_codec import JobCodec, job_codec
from psrt.topology.names import row_of

#: Gradients that are drawn of each worker.
_DRAWS = 200
#: Shards of a server that are tried to see what a job can reach.
_SHARDS = (1, 4, 16)
#: The share of a gradient's time after which a first bucket can be summed: the forward pass's.
_FORWARD = 1 / 3


def closed_form(candidate: Candidate, known: Known) -> float:
    """Return the seconds of a worker's step.

    Args:
        candidate: a config.
        known: with a site of its ranks.
    """
    config, mode, frames = candidate.config, candidate.config.scheme, _frames_of(candidate, known)
    apply_s = ITEMSIZE * known.workload.n / known.apply_rate(config)
    if candidate.servers:
        job, asked = priced(candidate, known), config.shards_per_server
        least = [it for it in _SHARDS if it <= most_shards(job)]
        tried = [asked] if isinstance(asked, int) else least
        seconds = min(step_seconds(job, it) for it in tried) / mode.local_steps
        return seconds + (apply_s if mode.averages else 0.0)
    compute = _compute_s(candidate, known)
    if mode.single:
        return compute + apply_s
    if mode.mixes:
        return max(compute, _mix_s(candidate, known, frames)) + apply_s
    sum_s = _sum_s(candidate, known, frames)
    if mode.averages or mode.overlap is False:
        return compute + sum_s / mode.local_steps + apply_s
    last = sum_s / max(1, len(known.workload.parts))
    return max(compute + last, _FORWARD * compute + sum_s) + apply_s


def steady(injections: tuple[Injection, ...]) -> tuple[Injection, ...]:
    """Return the slow-downs of a job that has run for a while: all began, and pauses are over."""
    kept = (it for it in injections if it.kind != "pause")
    return tuple(it._replace(numbers=it.numbers[:1]) if it.kind == "slow" else it for it in kept)


def _compute_s(candidate: Candidate, known: Known) -> float:
    """Return the seconds of a gradient, until all that a step waits for have computed theirs."""
    mode, site, first = candidate.config.scheme, known.site, candidate.servers
    slow = steady(candidate.config.inject)
    seconds = _drawn(known.workload.gradient_s, slow, candidate.workers, first)
    crowd = site.crowding(site.hosts[first:])
    if mode.asynchronous or (mode.is_stale and mode.lead == math.inf):
        return crowd * float(1 / (1 / seconds.mean(axis=0)).mean())
    if mode.is_stale:  # the slowest sets the pace
        return crowd * float(seconds.mean(axis=0).max())
    each = min(mode.local_steps, _DRAWS)
    means = seconds[: _DRAWS - _DRAWS % each].reshape(-1, each, candidate.workers).mean(axis=1)
    return crowd * float(np.sort(means, axis=1)[:, -1 - mode.backup].mean())


@lru_cache(maxsize=64)
def _drawn(
    gradient_s: tuple[tuple[float, ...], ...], slow: tuple[Injection, ...], workers: int, first: int
) -> np.ndarray:
    """Draw gradients of each worker, with their slow-downs: (draws, W) seconds."""
    rng = np.random.default_rng(0)
    lists = [np.asarray(gradient_s[(first + it) % len(gradient_s)]) for it in range(workers)]
    seconds = np.stack([rng.choice(its, _DRAWS) for its in lists], axis=1)
    for worker in range(workers if slow else 0):
        delays = Delays((it.kind, it.numbers) for it in slow if it.worker in (None, worker))
        seconds[:, worker] += [delays.seconds(0, it, rng) for it in seconds[:, worker]]
    return seconds


class _Frames(NamedTuple):
    """Bytes of a push and a reply, over those of their numbers, and the times of frames."""

    push: float = 1.0
    reply: float = 1.0
    times: FrameTimes = NO_FRAMES


def _frames_of(candidate: Candidate, known: Known) -> _Frames:
    config = candidate.config
    if config.codec is None or not (known.site.is_several or config.codec_everywhere):
        return _Frames()
    codec = job_codec(replace(config, codec_everywhere=True), known.workload.matrices)
    assert codec is not None, "it is in effect"
    return _frames(codec, known.workload.n)


@lru_cache(maxsize=256)
def _frames(codec: JobCodec, n: int) -> _Frames:
    reply = 1.0 if codec.reply is None else codec.reply.share(n)
    return _Frames(codec.share(n), reply, codec.times({}, 1.0))


def with_shards(candidate: Candidate, known: Known) -> Candidate:
    """Return a candidate whose servers have as many shards as make its step shortest."""
    config = candidate.config
    if not candidate.servers or config.scheme.fragments > 1 or config.shards_per_server:
        return candidate
    shards = choose_shards(priced(candidate, known)).shards
    return candidate._replace(config=replace(config, shards_per_server=shards))


def priced(candidate: Candidate, known: Known) -> ServedJob:
    """Return a job with servers, with the costs that are known."""
    config, site, work = candidate.config, known.site, known.workload
    ranks = assign_roles(site.hosts, candidate.servers, config.placement or "first")
    servers, workers = ([site.hosts[rank] for rank in its] for its in ranks)
    parts = work.parts or (Span(0, work.n),)
    job = served_job(config, work.n, parts, servers, workers, costs=site.costs)
    node = replace(site.costs.node, byte_s=1 / known.apply_rate(config))
    costs = replace(site.costs, node=node, cores=max(site.cores))
    compute_s = config.scheme.local_steps * _compute_s(candidate, known)
    frames = _frames_of(candidate, known)._asdict()
    return replace(job, costs=costs, compute_s=compute_s, **frames)


def _sum_s(candidate: Candidate, known: Known, frames: _Frames) -> float:
    """Return the seconds of an all-reduce of all parameters."""
    site, n, name = known.site, known.workload.n, candidate.config.allreduce or AUTO
    hosts, nbytes = [*Counter(site.hosts).values()], int(frames.push * ITEMSIZE * n)
    found = None if name == AUTO else predict(name, hosts, nbytes, ITEMSIZE, site.costs)
    if found is None:
        found = choose(hosts, nbytes, ITEMSIZE, site.costs).seconds
    return found + frames.times.encode.at(n) + frames.times.decode.at(n)


def sum_of_hosts(candidate: Candidate, known: Known) -> float | None:
    """Return the seconds of a sum that folds inside several hosts first, which is not simulated."""
    is_one = by_hosts(candidate.config.allreduce) and known.site.is_several
    return _sum_s(candidate, known, _Frames()) if is_one else None


def _mix_s(candidate: Candidate, known: Known, frames: _Frames) -> float:
    """Return the seconds of messages to and from neighbours."""
    site, topology = known.site, candidate.config.scheme.topology or ""
    row, number = row_of(topology), topology.partition(":")[2]
    graphs = row.graphs(candidate.workers, number, 0) if row else ()
    sends = [max(map(len, graph.receivers)) for graph in graphs] or [2]
    nbytes = frames.push * ITEMSIZE * known.workload.n * sum(sends) / len(sends)
    counts = Counter(site.hosts).values()
    link = site.costs.between if len(counts) > 1 else site.costs.inside
    return link.message(max(counts) * nbytes)


def memory_of(candidate: Candidate, known: Known, worker: float | None) -> Mapping[str, int]:
    """Return by role the bytes of a rank's vectors, without activations, which are not known.

    Args:
        candidate: a config.
        known: with a site of its ranks.
        worker: of a worker, as a simulated job counts them; None if it does not.
    """
    n, vectors = known.workload.n, candidate.config.optimizer.vectors
    found = {"worker": round((2 + vectors) * ITEMSIZE * n if worker is None else worker)}
    if candidate.servers:
        # A version in use, the next one and one that is being read, and gradients from elsewhere.
        job = priced(candidate, known)
        vectors += 3 + max(len(job.workers) - job.workers.count(it) for it in job.servers)
        found["server"] = vectors * ITEMSIZE * -(-n // candidate.servers)
    return found
