"""Simulate some steps of a candidate, and say what its steady state is, and how sure that is.

The roles are those of a real run; only gradients are not computed. The first steps do not count:
all workers begin together. The rest is divided into spans of time, whose speeds say how far off
their mean may be; and how much longer a second simulation must be, if they vary too much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from psrt.collective import ALGORITHMS
from psrt.collective.registry import AUTO, by_hosts
from psrt.config import TrainConfig
from psrt.config.dealing import IID
from psrt.config.names import BUCKET_BYTES
from psrt.core.arrays import ITEMSIZE
from psrt.job.session import run_job
from psrt.job.setup import Setup
from psrt.job.shards import ServedJob
from psrt.job.virtual import VirtualLauncher
from psrt.planning.candidates import Candidate
from psrt.planning.closed import priced, steady, sum_of_hosts
from psrt.planning.costs import costs_for
from psrt.planning.known import GIVEN, Known
from psrt.planning.ranking import Prediction, is_pipedream
from psrt.report import Summary
from psrt.simulation import SimulationCosts
from psrt.transport import RoleMap
from psrt.transport.port import Port

#: Of all that is drawn: the same is known, the same is planned.
_SEED = 0
#: What a prediction may cost, in events of the scheduler; 100,000 take about a second.
_MOST_COST = 400_000
#: What a step of a worker costs beside the events of its messages; and those of a message.
_STEP, _MESSAGE = 8, 5
#: An interval of this half-width, as a share, is narrow enough.
_NARROW = 0.01
#: Periods between two averages that are simulated: the fewest, the most at first, and the most. A
#: fifth of them is left out at the beginning; the others are that many spans of time.
_LEAST, _FIRST, _MOST, _WARM, _SPANS = 5, 40, 960, 5, 8
#: The factor on the standard error of their mean: the 0.975 quantile of Student's t.
_T = 2.36


class PlannedLauncher(VirtualLauncher):
    """A simulated job with the costs that planning knows, on the hosts that it knows."""

    def __init__(self, candidate: Candidate) -> None:
        work, is_cut = candidate.known.workload, candidate.config.parallel is not None
        super().__init__(
            candidate.workers, seed=_SEED, costs=self._costs, numerics=False,
            parameters=None if is_cut else work.n, parts=work.parts, matrices=work.matrices,
        )  # fmt: skip
        self._candidate = candidate
        #: By rank, when each of its gradients began, in virtual seconds.
        self.starts: list[list[float]] = [[] for _ in range(candidate.ranks)]

    def hosts(self, config: TrainConfig) -> Sequence[int]:
        """Return the known hosts."""
        return self._candidate.known.site.of(self._candidate.ranks)

    def has_network(self, hosts: Sequence[int], everywhere: bool | None) -> bool:
        """Return whether there are several hosts, as on real ranks."""
        return len(set(hosts)) > 1

    def priced(self, job: ServedJob) -> ServedJob:
        """Return a job with the costs that are known."""
        own = priced(self._candidate)
        return replace(job, costs=own.costs, compute_s=own.compute_s)

    def ports(self, setup: Setup) -> Mapping[int, Port]:
        """Make the simulator, in which all-reduces cost what they cost here."""
        site = self._candidate.known.site
        self._planned = setup.config
        machine = replace(site.costs, cores=max(site.cores))
        return super().ports(replace(setup, plan=replace(setup.plan, machine=machine)))

    def _costs(self, role_map: RoleMap) -> SimulationCosts:
        costs = costs_for(self._candidate.known, self._planned, role_map)
        known, seconds = self._candidate.known, sum_of_hosts(self._candidate)
        if self._planned.parallel:  # each part is summed by messages, and updated by itself
            costs = replace(costs, reduce=None, worker_apply=known.apply_rate(self._planned))
            if costs.hosts is None:  # what goes inside a host takes no time on its link
                wire = 1 / known.site.costs.between.beta
                costs = replace(costs, hosts=known.site.of(role_map.size), bandwidth=wire)
        elif costs.reduce is None and seconds is not None:
            costs = replace(costs, reduce=lambda rng: seconds)

        def compute(rank: int, rng: np.random.Generator) -> float:
            self.starts[rank].append(self.world.time)
            return costs.compute(rank, rng)

        return replace(costs, compute=compute)


def cost_of(it: Candidate) -> int:
    """Return about what the shortest simulation of a candidate costs, see ``_MOST_COST``."""
    config, mode, work = it.config, it.config.scheme, it.known.workload
    each = config.shards_per_server if isinstance(config.shards_per_server, int) else 1
    messages, step, name = max(4, 2 * it.servers * each), _STEP, config.allreduce or AUTO
    if config.parallel:  # of each micro-batch: its passes, and messages to neighbours
        step += _MESSAGE * 4 * (config.micro_batches or 4 * config.axes.pipeline)
    if mode.sums and not it.servers and it.known.site.is_several and not by_hosts(name):
        hops = 2 * it.copies  # where each owns a chunk
        if name in ALGORITHMS:
            hops = len([*ALGORITHMS[name](0, it.copies, 1 << 20)])
        buckets = -(-ITEMSIZE * work.n // (mode.bucket_bytes or BUCKET_BYTES))
        messages += hops * max(1, min(len(work.parts), buckets) * mode.sums_gradients)
    return _LEAST * it.workers * (mode.local_steps * step + _MESSAGE * messages)


def predict_job(candidate: Candidate, most: int) -> tuple[Prediction, float | None]:
    """Predict a candidate; also return the bytes of a worker's vectors, if they are counted.

    Args:
        candidate: a config.
        most: what it may cost, unless its shortest simulation costs more.

    Raises:
        ConfigError: if such a job is impossible.
    """
    most = min(most, _MOST_COST)
    periods = int(np.clip(_LEAST * most // (2 * cost_of(candidate)), _LEAST, _FIRST))
    found = _Steady(candidate, periods)
    more = min((found.half_width / _NARROW) ** 2, (most - found.cost) / found.cost, _MOST / periods)
    if more > 1:
        found = _Steady(candidate, math.ceil(more * periods))
    memory = found.summary.memory
    nbytes = None if memory is None else memory.total - memory.activations
    return _prediction(candidate, found), nbytes


def simulated_speed(known: Known, candidate: Candidate, periods: int) -> float:
    """Return the samples per second of a job in steady state, by one simulation."""
    return _Steady(candidate._replace(known=known), periods).samples_per_s


class _Steady:
    """What a simulation says about its steady state."""

    def __init__(self, candidate: Candidate, periods: int) -> None:
        config, mode = candidate.config, candidate.config.scheme
        if mode.post_local_epoch:
            mode = replace(mode, post_local_epoch=0)  # type: ignore[call-arg]
        self.steps = periods * mode.local_steps
        config = replace(
            config, mode=mode, epochs=None, steps=self.steps, seed=_SEED, partition=IID,
            last_events=0, inject=steady(config.inject),
            allreduce=config.allreduce if sum_of_hosts(candidate) is None else AUTO,
        )  # fmt: skip
        launcher = PlannedLauncher(candidate)
        run = run_job(launcher, config)
        assert run is not None, "the only process has the result"
        world, its = launcher.world, candidate.known.workload.gradient_s
        self.summary, self.seconds = run.summary, world.time
        self.cost = world.events + self.steps * candidate.workers * _STEP
        starts = [np.asarray(launcher.starts[rank]) for rank in world.role_map.workers]
        rates = config.batch_size * _rates(starts, mode.local_steps) / config.axes.cells
        self.samples_per_s = float(rates.mean())
        #: Of the interval of the mean, as a share of it.
        self.half_width = 0.0
        if config.inject or any(len({*one}) > 1 for one in its):
            self.half_width = _T * float(rates.std(ddof=1)) / math.sqrt(_SPANS) / rates.mean()


def _rates(starts: Sequence[np.ndarray], every: int) -> np.ndarray:
    """Return by span of time the steps per second of all workers, while all of them trained.

    Args:
        starts: by worker, when each of its steps began.
        every: steps between two averages; between their first steps all are as fast as each other.
    """
    firsts = [it[::every] for it in starts]
    until = min(it[-1] for it in firsts)
    # Unless one is so slow that it hardly begins a second step.
    begin = min(max(it[it.size // _WARM] for it in firsts), until / 2)
    edges = np.linspace(begin, until, _SPANS + 1)
    done = sum(np.interp(edges, it, np.arange(it.size)) for it in firsts)
    return every * np.diff(done) / np.diff(edges)


def _measured_error(known: Known) -> float:
    """Return the standard error of the mean of measured gradients, as a share of it."""
    lists = [np.asarray(its) for its in known.workload.gradient_s]
    errors = [its.var(ddof=1) / its.size for its in lists if its.size > 1]
    is_given = known.source == GIVEN
    return 0.0 if is_given else math.sqrt(sum(errors)) / len(lists) / known.workload.mean_s


def _prediction(candidate: Candidate, found: _Steady) -> Prediction:
    mode, summary, samples = candidate.config.scheme, found.summary, found.samples_per_s
    half = math.hypot(found.half_width, 1.96 * _measured_error(candidate.known))
    staleness, pushed = summary.staleness, found.steps * candidate.workers
    is_stale = mode.is_stale or mode.asynchronous or is_pipedream(candidate.config)
    waits, waiting_for = _waits(summary)
    return Prediction(
        step_s=candidate.copies * candidate.config.batch_size / samples,
        samples_per_s=samples,
        low=samples / (1 + half),
        high=samples * (1 + half),
        sent_per_step=(summary.bytes_sent + summary.cut_bytes_sent) / found.steps / candidate.ranks,
        staleness_mean=staleness.mean if is_stale else None,
        staleness_max=staleness.max if is_stale else None,
        waits=waits,
        waiting_for=waiting_for,
        steps=found.steps,
        seconds=found.seconds,
        dropped=summary.dropped / pushed / max(1, len(staleness.by_shard)),
    )


def _waits(summary: Summary) -> tuple[dict[str, float], dict[int, dict[int, float]]]:
    """Return the share of a worker's time that it waits: by cause; and by pair of workers."""
    causes = dict.fromkeys(("workers", "server", "messages", "reduce"), 0.0)
    pairs: dict[int, dict[int, float]] = {}
    for it in summary.waiting:
        whole = it.seconds / it.share if it.share else math.inf
        for cause in causes:
            causes[cause] += getattr(it, f"for_{cause}") / whole / len(summary.waiting)
        pairs[it.worker] = {other: s / whole for other, s in it.waiting_for.items()}
    return causes, pairs
