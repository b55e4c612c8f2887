"""Simulate some steps of a candidate, and say what its steady state is, and how sure that is.

The roles are those of a real run; only gradients are not computed. The first steps are left out:
all workers begin together, and it takes some steps until they are as far apart as they will be.
The rest is cut into batches of steps, and their means say how far off the whole may be; the draws
of a second seed count as further batches.
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
from psrt.job.result import Run
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

#: What a prediction may cost at least and at most, and all together, in events of the scheduler;
#: 100,000 take about a second.
_COST, _MOST_COST, _WHOLE_COST = 40_000, 400_000, 8_000_000
#: What a step of a worker costs beside the events of its messages; and those of a message.
_STEP, _MESSAGE = 8, 5
#: An interval of this half-width, as a share, is narrow enough.
_NARROW = 0.01
#: Periods between two averages that are simulated with a seed: the fewest, the most with the first
#: one, and the most; those left out at the beginning; batches that the others are cut into.
_LEAST, _FIRST, _MOST, _WARM, _BATCHES = 3, 24, 240, 1, 4
#: The most seeds.
_SEEDS = 4
#: By degrees of freedom from 1, the factor on a standard error: 0.975 quantiles of Student's t.
_T = (12.7, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.2, 2.18, 2.16, 2.14, 2.13)


class PlannedLauncher(VirtualLauncher):
    """A simulated job with the costs that planning knows, on the hosts that it knows."""

    def __init__(self, known: Known, candidate: Candidate, seed: int) -> None:
        work = known.workload
        super().__init__(
            candidate.workers,
            seed=seed,
            costs=self._costs,
            numerics=False,
            parameters=work.n,
            parts=work.parts,
            matrices=work.matrices,
        )
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


def cost_of_each(candidates: int) -> int:
    """Return what each of some predictions may cost, so that all take about a minute."""
    return min(_MOST_COST, max(_COST, _WHOLE_COST // max(1, candidates)))


def least_cost(candidate: Candidate) -> int:
    """Return about what the shortest simulation of a candidate costs."""
    return _LEAST * _cost_of_period(candidate)


def _cost_of_period(candidate: Candidate) -> int:
    each = candidate.config.shards_per_server
    pushes = 2 * candidate.servers * (each if isinstance(each, int) else 1)
    steps, name = candidate.config.scheme.local_steps, candidate.config.allreduce
    if name is not None and name in ALGORITHMS and not candidate.servers:
        pushes = len([*ALGORITHMS[name](0, candidate.workers, 1 << 20)])
    return candidate.workers * (steps * _STEP + _MESSAGE * max(4, pushes))


def predict_job(
    candidate: Candidate, known: Known, most: int = _MOST_COST
) -> tuple[Prediction, float | None]:
    """Predict a candidate; also return the bytes of a worker's vectors, if they are counted.

    Args:
        candidate: the config.
        known: with a site of its ranks.
        most: what it may cost; see ``cost_of_each``.

    Raises:
        ConfigError: if such a job is impossible.
    """
    every, found = candidate.config.scheme.local_steps, list[_Steady]()
    periods = int(np.clip(most // (2 * _cost_of_period(candidate)), _LEAST, _FIRST))
    cost = 0.0
    while True:
        found.append(_Steady(candidate, known, len(found), periods * every, every))
        cost += found[-1].cost
        spread = _spread(found)
        is_enough = spread <= _NARROW and (len(found) > 1 or not found[0].varies)
        if is_enough or len(found) == _SEEDS or cost + found[-1].cost > most:
            break
        if len(found) == 1:  # it says how much the others may do
            more = periods * (most - cost) / (_SEEDS - 1) / cost
            periods = int(np.clip(more, _LEAST, _MOST))
    return _merged(candidate, known, found, spread), found[0].memory


class _Steady:
    """What one simulation says about its steady state."""

    def __init__(
        self, candidate: Candidate, known: Known, seed: int, steps: int, every: int
    ) -> None:
        launcher = PlannedLauncher(known, candidate, seed)
        config = _in_steady_state(candidate.config, steps, seed)
        if sum_of_hosts(candidate, known) is not None:  # its messages are not simulated
            config = replace(config, allreduce=AUTO)
        run = run_job(launcher, config)
        assert run is not None, "the only process has the result"
        self.run, self.steps = run, steps
        self.cost = launcher.world.events + steps * candidate.workers * _STEP
        memory = run.summary.memory
        self.memory = None if memory is None else memory.total
        starts = [np.asarray(launcher.starts[rank]) for rank in launcher.world.role_map.workers]
        self.rates, self.seconds = _rates(starts, every)
        #: Whether another seed says something else.
        self.varies = any(len(set(its)) > 1 for its in known.workload.gradient_s) or bool(
            candidate.config.inject
        )


def simulated_speed(known: Known, candidate: Candidate, periods: int, seed: int = 0) -> float:
    """Return the samples per second of a job in steady state, by one simulation."""
    every = candidate.config.scheme.local_steps
    found = _Steady(candidate, known, seed, periods * every, every)
    return float(found.rates.mean()) * known.workload.batch_size


def _in_steady_state(config: TrainConfig, steps: int, seed: int) -> TrainConfig:
    """Return the config of some steps of a job that has run for a while."""
    mode = config.scheme
    if mode.post_local_epoch:
        mode = replace(mode, post_local_epoch=0)  # type: ignore[call-arg]
    return replace(
        config, mode=mode, epochs=None, steps=steps, seed=seed, partition=IID, last_events=0,
        inject=steady(config.inject), out=None, checkpoint_every=None,
    )  # fmt: skip


def _rates(starts: Sequence[np.ndarray], every: int) -> tuple[np.ndarray, float]:
    """Return by batch the steps per second of all workers; and the seconds of all batches.

    Only times count at which all workers were training: the slowest one ends alone.

    Args:
        starts: by worker, when each of its steps began.
        every: steps between two averages; each worker's batches are whole periods.
    """
    until = min(its[-1] for its in starts)
    rates, seconds = np.zeros(_BATCHES), 0.0
    for its in starts:
        its = its[::every] if every > 1 else its
        first = min(_WARM, its.size - 2)
        last = max(int(np.searchsorted(its, until, "right")) - 1, first + 1)
        edges = np.linspace(first, last, _BATCHES + 1).round().astype(int)
        counts, took = np.diff(edges), np.diff(its[edges])
        usual = (last - first) / max(its[last] - its[first], 1e-300)
        with np.errstate(divide="ignore", invalid="ignore"):
            rates += every * np.where(counts > 0, counts / took, usual)
        seconds = max(seconds, float(its[last] - its[first]))
    return rates, seconds


def _spread(found: Sequence[_Steady]) -> float:
    """Return the half-width of the interval of the mean rate that was drawn, as a share of it."""
    rates = np.concatenate([it.rates for it in found])
    if not any(it.varies for it in found):
        return 0.0
    error = float(rates.std(ddof=1) / math.sqrt(rates.size) / rates.mean())
    return _T[min(rates.size - 1, len(_T)) - 1] * error


def measured_error(known: Known) -> float:
    """Return the standard error of the mean of measured gradients, as a share of it."""
    if known.source == GIVEN:
        return 0.0
    lists = [np.asarray(its) for its in known.workload.gradient_s]
    errors = [its.var(ddof=1) / its.size for its in lists if its.size > 1]
    return math.sqrt(sum(errors)) / len(lists) / known.workload.mean_s


def _merged(
    candidate: Candidate, known: Known, found: Sequence[_Steady], spread: float
) -> Prediction:
    rate = float(np.concatenate([it.rates for it in found]).mean())
    samples = rate * candidate.config.batch_size
    summaries = [it.run.summary for it in found]
    steps = sum(it.steps for it in found)
    half = math.hypot(spread, 1.96 * measured_error(known))
    mode = candidate.config.scheme
    is_stale = mode.is_stale or mode.asynchronous
    staleness = [it.staleness for it in summaries]
    return Prediction(
        step_s=candidate.workers / rate,
        samples_per_s=samples,
        low=samples / (1 + half),
        high=samples * (1 + half),
        sent_per_step=sum(it.bytes_sent for it in summaries) / steps / candidate.ranks,
        staleness_mean=float(np.mean([it.mean for it in staleness])) if is_stale else None,
        staleness_max=max(it.max for it in staleness) if is_stale else None,
        waits=_waits([it.run for it in found]),
        waiting_for=_waiting_for([it.run for it in found]),
        dropped=_dropped(candidate, summaries),
        steps=steps,
        seconds=sum(it.seconds for it in found),
    )


def _dropped(candidate: Candidate, summaries: Sequence[Summary]) -> float:
    """Return the share of the gradients that no update uses."""
    shards = candidate.servers * (summaries[0].shards_per_server or 1)
    pushed = sum(it.steps for it in summaries) * candidate.workers * max(1, shards)
    return sum(it.dropped for it in summaries) / pushed


def _waits(runs: Sequence[Run]) -> dict[str, float]:
    """Return by cause the share of a worker's time that it waits."""
    found = dict.fromkeys(("workers", "server", "messages", "reduce"), 0.0)
    all_of_them = [it for run in runs for it in run.summary.waiting]
    for it in all_of_them:
        whole = it.seconds / it.share if it.share else 0.0
        for cause in found if whole else ():
            own: float = getattr(it, f"for_{cause}")
            found[cause] += own / whole / len(all_of_them)
    return found


def _waiting_for(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Return by worker, and by the worker that it waits for, the share of its time."""
    found: dict[str, dict[str, float]] = {}
    for run in runs:
        for it in run.summary.waiting:
            own = found.setdefault(f"worker {it.worker}", {})
            for other, seconds in it.waiting_for.items() if it.share else ():
                share = seconds * it.share / it.seconds / len(runs)
                own[f"worker {other}"] = own.get(f"worker {other}", 0.0) + share
    return found
