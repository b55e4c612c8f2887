"""Simulate some steps of a candidate, and say what its steady state is, and how sure that is.

The roles are those of a real run; only gradients are not computed. The first steps do not count:
all workers begin together. The rest is divided into batches of steps, whose means say how far off
the whole may be; the draws of other seeds are further batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from psrt.collective import ALGORITHMS
from psrt.collective.registry import AUTO
from psrt.config import TrainConfig
from psrt.config.dealing import IID
from psrt.job.session import run_job
from psrt.job.setup import Setup
from psrt.job.shards import ServedJob
from psrt.job.virtual import VirtualLauncher
from psrt.planning.candidates import Candidate
from psrt.planning.closed import priced, steady, sum_of_hosts
from psrt.planning.costs import costs_for
from psrt.planning.known import GIVEN, Known
from psrt.planning.ranking import Prediction
from psrt.report import Summary
from psrt.simulation import SimulationCosts
from psrt.transport import RoleMap
from psrt.transport.port import Port

#: What a prediction may cost, in events of the scheduler; 100,000 take about a second.
MOST_COST = 400_000
#: What a step of a worker costs beside the events of its messages; and those of a message.
_STEP, _MESSAGE = 8, 5
#: An interval of this half-width, as a share, is narrow enough.
_NARROW = 0.01
#: Periods between two averages that are simulated with a seed: the fewest, the most with the first
#: one, and the most; those left out at the beginning; batches of the others; and the most seeds.
_LEAST, _FIRST, _MOST, _WARM, _BATCHES, _SEEDS = 5, 24, 240, 1, 4, 4
#: By degrees of freedom from 1, the factor on a standard error: 0.975 quantiles of Student's t.
_T = (12.7, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.2, 2.18, 2.16, 2.14, 2.13)


class PlannedLauncher(VirtualLauncher):
    """A simulated job with the costs that planning knows, on the hosts that it knows."""

    def __init__(self, known: Known, candidate: Candidate, seed: int) -> None:
        work = known.workload
        super().__init__(
            candidate.workers, seed=seed, costs=self._costs, numerics=False,
            parameters=work.n, parts=work.parts, matrices=work.matrices,
        )  # fmt: skip
        self._known, self._candidate = known, candidate
        #: By rank, when each of its gradients began, in virtual seconds.
        self.starts: list[list[float]] = [[] for _ in range(candidate.ranks)]

    def hosts(self, config: TrainConfig) -> Sequence[int]:
        """Return the known hosts."""
        return self._known.site.of(self._candidate.ranks)

    def has_network(self, hosts: Sequence[int], everywhere: bool | None) -> bool:
        """Return whether there are several hosts, as on real ranks."""
        return len(set(hosts)) > 1

    def priced(self, job: ServedJob) -> ServedJob:
        """Return a job with the costs that are known."""
        own = priced(self._candidate, self._known)
        return replace(job, costs=own.costs, compute_s=own.compute_s)

    def ports(self, setup: Setup) -> Mapping[int, Port]:
        """Make the simulator, in which all-reduces cost what they cost here."""
        machine = replace(self._known.site.costs, cores=max(self._known.site.cores))
        self._planned = setup.config
        return super().ports(replace(setup, plan=replace(setup.plan, machine=machine)))

    def _costs(self, role_map: RoleMap) -> SimulationCosts:
        costs = costs_for(self._known, self._planned, role_map)
        seconds = sum_of_hosts(self._candidate, self._known)
        if costs.reduce is None and seconds is not None:
            costs = replace(costs, reduce=lambda rng: seconds)

        def compute(rank: int, rng: np.random.Generator) -> float:
            self.starts[rank].append(self.world.time)
            return costs.compute(rank, rng)

        return replace(costs, compute=compute)


def cost_of(candidate: Candidate) -> int:
    """Return about what the shortest simulation of a candidate costs, see ``MOST_COST``."""
    config, servers = candidate.config, candidate.servers
    each = config.shards_per_server if isinstance(config.shards_per_server, int) else 1
    messages, name = max(4, 2 * servers * each), config.allreduce or ""
    if name in ALGORITHMS and not servers:
        messages = len([*ALGORITHMS[name](0, candidate.workers, 1 << 20)])
    period = config.scheme.local_steps * _STEP + _MESSAGE * messages
    return _LEAST * candidate.workers * period


def predict_job(
    candidate: Candidate, known: Known, most: int = MOST_COST
) -> tuple[Prediction, float | None]:
    """Predict a candidate; also return the bytes of a worker's vectors, if they are counted.

    Args:
        candidate: a config.
        known: with a site of its ranks.
        most: what it may cost.

    Raises:
        ConfigError: if such a job is impossible.
    """
    found, cost, half = list[_Steady](), 0.0, math.inf
    periods = int(np.clip(_LEAST * most // (2 * cost_of(candidate)), _LEAST, _FIRST))
    varies = any(len(set(its)) > 1 for its in known.workload.gradient_s)
    varies |= bool(candidate.config.inject)
    while half > _NARROW and len(found) < _SEEDS and (not found or 2 * found[-1].cost < most):
        found.append(_Steady(candidate, known, len(found), periods))
        cost += found[-1].cost
        half = _half_width(found) if varies else 0.0
        if len(found) == 1:  # it says how much the others may do
            more = periods * (most - cost) / (_SEEDS - 1) / cost
            periods, half = int(np.clip(more, _LEAST, _MOST)), math.inf if varies else 0.0
    half = _half_width(found) if varies else 0.0
    return _merged(candidate, known, found, half), found[0].memory


def simulated_speed(known: Known, candidate: Candidate, periods: int) -> float:
    """Return the samples per second of a job in steady state, by one simulation."""
    found = _Steady(candidate, known, 0, periods)
    return float(found.rates.mean()) * known.workload.batch_size


class _Steady:
    """What one simulation says about its steady state."""

    def __init__(self, candidate: Candidate, known: Known, seed: int, periods: int) -> None:
        config, mode = candidate.config, candidate.config.scheme
        if mode.post_local_epoch:
            mode = replace(mode, post_local_epoch=0)  # type: ignore[call-arg]
        self.steps = periods * mode.local_steps
        config = replace(
            config, mode=mode, epochs=None, steps=self.steps, seed=seed, partition=IID,
            last_events=0, inject=steady(config.inject),
            allreduce=config.allreduce if sum_of_hosts(candidate, known) is None else AUTO,
        )  # fmt: skip
        launcher = PlannedLauncher(known, candidate, seed)
        run = run_job(launcher, config)
        assert run is not None, "the only process has the result"
        self.summary, world = run.summary, launcher.world
        self.cost = world.events + self.steps * candidate.workers * _STEP
        self.memory = None if run.summary.memory is None else run.summary.memory.total
        starts = [np.asarray(launcher.starts[rank]) for rank in world.role_map.workers]
        #: By batch, the steps per second of all workers.
        self.rates, self.seconds = _rates(starts, mode.local_steps), world.time


def _rates(starts: Sequence[np.ndarray], every: int) -> np.ndarray:
    """Return by batch the steps per second of all workers, while all of them trained.

    Args:
        starts: by worker, when each of its steps began.
        every: steps between two averages; a batch is made of whole periods.
    """
    until = min(its[-1] for its in starts)
    # The last step of a worker that counts; each counts from the end of the first period on.
    lasts = [max(_WARM + 1, int(np.searchsorted(it[::every], until, "right")) - 1) for it in starts]
    rates = np.zeros(min(_BATCHES, max(lasts) - _WARM))
    for its, last in zip(starts, lasts, strict=True):
        edges = np.linspace(_WARM, last, rates.size + 1).round().astype(int)
        if edges.size > last - _WARM + 1:  # a slow one: all batches are alike
            edges = np.array([_WARM, last])
        rates += every * np.diff(edges) / np.maximum(np.diff(its[::every][edges]), 1e-300)
    return rates


def _half_width(found: Sequence[_Steady]) -> float:
    """Return the half-width of the interval of the mean rate, as a share of it."""
    rates = np.concatenate([it.rates for it in found])
    error = float(rates.std(ddof=1) / math.sqrt(rates.size) / rates.mean())
    return _T[min(rates.size - 1, len(_T)) - 1] * error


def _measured_error(known: Known) -> float:
    """Return the standard error of the mean of measured gradients, as a share of it."""
    lists = [np.asarray(its) for its in known.workload.gradient_s]
    errors = [its.var(ddof=1) / its.size for its in lists if its.size > 1]
    is_given = known.source == GIVEN
    return 0.0 if is_given else math.sqrt(sum(errors)) / len(lists) / known.workload.mean_s


def _merged(
    candidate: Candidate, known: Known, found: Sequence[_Steady], half: float
) -> Prediction:
    half, mode = math.hypot(half, 1.96 * _measured_error(known)), candidate.config.scheme
    rate = float(np.concatenate([it.rates for it in found]).mean())
    samples, summaries = rate * candidate.config.batch_size, [it.summary for it in found]
    steps, staleness = sum(it.steps for it in found), [it.staleness for it in summaries]
    pushed = steps * candidate.workers * max(1, len(staleness[0].by_shard))
    is_stale = mode.is_stale or mode.asynchronous
    waits, waiting_for = _waits(summaries)
    return Prediction(
        step_s=candidate.workers / rate,
        samples_per_s=samples,
        low=samples / (1 + half),
        high=samples * (1 + half),
        sent_per_step=sum(it.bytes_sent for it in summaries) / steps / candidate.ranks,
        staleness_mean=float(np.mean([it.mean for it in staleness])) if is_stale else None,
        staleness_max=max(it.max for it in staleness) if is_stale else None,
        waits=waits,
        waiting_for=waiting_for,
        steps=steps,
        seconds=sum(it.seconds for it in found),
        dropped=sum(it.dropped for it in summaries) / pushed,
    )


def _waits(
    summaries: Sequence[Summary],
) -> tuple[dict[str, float], dict[int, dict[int, float]]]:
    """Return the share of a worker's time that it waits: by cause; and by pair of workers."""
    causes = dict.fromkeys(("workers", "server", "messages", "reduce"), 0.0)
    pairs: dict[int, dict[int, float]] = {}
    for it in (it for summary in summaries for it in summary.waiting):
        whole = len(summaries) * it.seconds / it.share if it.share else math.inf
        for cause in causes:
            causes[cause] += getattr(it, f"for_{cause}") / whole / len(summaries[0].waiting)
        own = pairs.setdefault(it.worker, {})
        for other, seconds in it.waiting_for.items():
            own[other] = own.get(other, 0.0) + seconds / whole
    return causes, pairs
