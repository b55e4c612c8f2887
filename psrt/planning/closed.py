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

import numpy as np

from psrt.collective.analysis.choose import choose, predict
from psrt.collective.registry import AUTO, by_hosts
from psrt.config.injection import Injection
from psrt.core.arrays import ITEMSIZE
from psrt.core.partition import Span
from psrt.job.roles import assign_roles
from psrt.job.shards import ServedJob, choose_shards, most_shards, served_job, step_seconds
from psrt.pipeline.balance import balanced, imbalance
from psrt.planning.candidates import Candidate
from psrt.runtime.delays import Delays
from psrt.runtime.job_codec import JobCodec, job_codec
from psrt.topology.names import row_of

#: Gradients that are drawn of each worker.
_DRAWS = 200
#: Shards of a server that are tried to see what a job can reach.
_SHARDS = (1, 4, 16)
#: The share of a gradient's time after which a first bucket can be summed: the forward pass's.
_FORWARD = 1 / 3


def closed_form(it: Candidate) -> float:
    """Return the seconds of a worker's step.

    Raises:
        ConfigError: if such a job is impossible.
    """
    mode, work, axes = it.config.scheme, it.known.workload, it.config.axes
    apply_s = ITEMSIZE * work.n / it.known.apply_rate(it.config) / axes.cells
    if it.servers:
        job, asked = priced(it), it.config.shards_per_server
        tried = [asked] if isinstance(asked, int) else [n for n in _SHARDS if n <= most_shards(job)]
        seconds = min(step_seconds(job, each) for each in tried) / mode.local_steps
        return seconds + (apply_s if mode.averages else 0.0)
    compute = _compute_s(it) / axes.cells
    if it.config.parallel:  # stages wait at both ends of a batch, slices for each other's sums
        parts = it.config.micro_batches or min(4 * axes.pipeline, it.config.batch_size)
        uses = [part.size * 3 for part in reversed(work.parts)]
        uses[0] -= uses[0] // 3  # nobody needs the gradient of the inputs
        slowest = imbalance(uses, balanced(uses, axes.pipeline))
        compute = compute * slowest * (1 + (axes.pipeline - 1) / parts) + _slices_s(it)
    if mode.single:
        return compute + apply_s
    if mode.mixes:
        return max(compute, _mix_s(it)) + apply_s
    sum_s = _sum_s(it)
    if mode.averages or mode.overlap is False or it.config.parallel:
        return compute + sum_s / mode.local_steps + apply_s
    last = sum_s / max(1, len(work.parts))
    return max(compute + last, _FORWARD * compute + sum_s) + apply_s


def steady(injections: tuple[Injection, ...]) -> tuple[Injection, ...]:
    """Return the slow-downs of a job that has run for a while: all began, and pauses are over."""
    kept = (it for it in injections if it.kind != "pause")
    return tuple(it._replace(numbers=it.numbers[:1]) if it.kind == "slow" else it for it in kept)


def _compute_s(it: Candidate) -> float:
    """Return the seconds of a gradient, until all that a step waits for have computed theirs."""
    mode, site, slow = it.config.scheme, it.known.site, steady(it.config.inject)
    seconds = _drawn(it.known.workload.gradient_s, slow, it.workers, it.servers)
    crowd = site.crowding(site.hosts[it.servers :])
    if mode.asynchronous or (mode.is_stale and mode.lead == math.inf):
        return crowd * float(1 / (1 / seconds.mean(axis=0)).mean())
    # Where workers wait for each other seldom, the slowest sets the pace, by its mean.
    each = _DRAWS if mode.is_stale else min(mode.local_steps, _DRAWS)
    means = seconds[: _DRAWS - _DRAWS % each].reshape(-1, each, it.workers).mean(axis=1)
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


def _codec(it: Candidate) -> JobCodec | None:
    """Return the codec of a job, if it has an effect on its hosts."""
    if it.config.codec is None or not (it.known.site.is_several or it.config.codec_everywhere):
        return None
    return job_codec(replace(it.config, codec_everywhere=True), it.known.workload.matrices)


def with_shards(it: Candidate) -> Candidate:
    """Return a candidate whose servers have as many shards as make its step shortest."""
    if not it.servers or it.config.scheme.fragments > 1 or it.config.shards_per_server:
        return it
    shards = choose_shards(priced(it)).shards
    return it._replace(config=replace(it.config, shards_per_server=shards))


def priced(it: Candidate) -> ServedJob:
    """Return a job with servers, with the costs that are known."""
    config, site, work = it.config, it.known.site, it.known.workload
    ranks = assign_roles(site.hosts, it.servers, config.placement or "first")
    servers, workers = ([site.hosts[rank] for rank in its] for its in ranks)
    parts, codec = work.parts or (Span(0, work.n),), _codec(it)
    job = served_job(config, work.n, parts, servers, workers, costs=site.costs, codec=codec)
    node = replace(site.costs.node, byte_s=1 / it.known.apply_rate(config))
    costs = replace(site.costs, node=node, cores=max(site.cores))
    return replace(job, costs=costs, compute_s=config.scheme.local_steps * _compute_s(it))


def _sum_s(it: Candidate) -> float:
    """Return the seconds of an all-reduce of all parameters, or of all parts of them at a time."""
    site, n, name, codec = it.known.site, it.known.workload.n, it.config.allreduce, _codec(it)
    hosts = [*Counter(site.hosts[: it.workers : it.config.axes.cells]).values()]
    nbytes, frames_s = ITEMSIZE * n, 0.0
    if codec is not None:
        times, nbytes = codec.times({}, 1.0), int(codec.share(n) * nbytes)
        frames_s = times.encode.at(n) + times.decode.at(n)
    asked = None if name in (None, AUTO) else predict(name, hosts, nbytes, ITEMSIZE, site.costs)
    if asked is None:
        asked = choose(hosts, nbytes, ITEMSIZE, site.costs).seconds
    return asked + frames_s


def _slices_s(it: Candidate) -> float:
    """Return the seconds in which slices sum activations and their gradients, by pair of layers."""
    slices, site, widths = it.config.axes.tensor, it.known.site, it.config.hidden or (1,)
    link = site.costs.inside if len({*site.hosts[:slices]}) == 1 else site.costs.between
    each = link.message(ITEMSIZE * it.config.batch_size * max(widths))
    return 2 * (1 + len(widths) // 2) * each if slices > 1 else 0.0


def sum_of_hosts(it: Candidate) -> float | None:
    """Return the seconds of a sum that folds inside several hosts first, which is not simulated."""
    return _sum_s(it) if by_hosts(it.config.allreduce) and it.known.site.is_several else None


def _mix_s(it: Candidate) -> float:
    """Return the seconds of messages to and from neighbours."""
    site, topology, codec = it.known.site, it.config.scheme.topology or "", _codec(it)
    row, number = row_of(topology), topology.partition(":")[2]
    graphs = row.graphs(it.workers, number, 0) if row else ()
    sends = [max(map(len, graph.receivers)) for graph in graphs] or [2]
    nbytes = ITEMSIZE * it.known.workload.n * sum(sends) / len(sends)
    nbytes *= 1.0 if codec is None else codec.share(it.known.workload.n)
    link = site.costs.between if site.is_several else site.costs.inside
    return link.message(max(Counter(site.hosts).values()) * nbytes)


def memory_of(it: Candidate, worker: float | None) -> Mapping[str, int]:
    """Return by role the bytes of a rank's vectors, without activations, which are not known.

    Args:
        it: a config.
        worker: of a worker, as a simulated job counts them; None if it does not.
    """
    n, vectors = it.known.workload.n, it.config.optimizer.vectors
    own = vectors if it.config.scheme.averages or not it.servers else 0
    found = {"worker": round((2 + own) * ITEMSIZE * n if worker is None else worker)}
    if it.servers:
        # A version in use, the next one and one that is being read, and gradients from elsewhere.
        job = priced(it)
        vectors += 3 + max(len(job.workers) - job.workers.count(host) for host in job.servers)
        found["server"] = vectors * ITEMSIZE * -(-n // it.servers)
    return found
