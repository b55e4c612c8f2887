"""Measures a job on the ranks that will train it: gradients, sums, links, and short runs.

Nothing is trained for good: the parameters of the short runs are thrown away. What one rank
computes is timed alone; what ranks do to each other shows in a short run of each family of modes,
see ``fitting``.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psrt.bench.fit import Readings, fit_machine
from psrt.bench.probes import exchange_times, medians
from psrt.bench.race import Layout
from psrt.bench.ranks import run_on, wait
from psrt.collective.analysis.choose import predicted
from psrt.collective.analysis.machine import DEFAULT_COSTS, Measured
from psrt.collective.costs import LinkCosts
from psrt.collective.registry import ALL_REDUCES, AUTO
from psrt.config import TrainConfig
from psrt.core.arrays import ITEMSIZE, Vector
from psrt.core.errors import ConfigError
from psrt.doctor.local import local_facts
from psrt.history import read_history
from psrt.job.mpi import run_over_mpi
from psrt.job.problems import initial_parameters, supervised_problem
from psrt.job.result import Run, silent
from psrt.mpi.agreement import bcast_text, gather_texts, raise_on_all
from psrt.mpi.communicator import Communicator
from psrt.mpi.hosts import split_hosts
from psrt.planning.families import FAMILIES, ROUNDS, Family
from psrt.planning.known import Known, ShortRun, Site, Workload
from psrt.planning.like import known_of
from psrt.runtime.problem import Problem, Supervised, gradient_spans, matrices_of
from psrt.runtime.problem_rules import sample_counter

if TYPE_CHECKING:
    from mpi4py import MPI

#: Seconds of gradients and of a short run; lines of metrics that it writes; turns of calls; short
#: runs of each family that count, since one differs from the next by some percent.
_GRADIENTS_S, _RUN_S, _LINES, _TURNS, _RUNS = 1.0, 0.8, 12, 10, 3
#: Batches that gradients are taken of, in turn; recorded steps, and the most of a short run.
_BATCHES, _RECORDED, _MOST_STEPS = 16, 64, 2000
#: Times of a rank that are kept, and the share of a core below which something else had the rest.
_TIMES, _CORE = 200, 0.95
#: All-reduces that are timed at the length of the model: that of ``auto``, and the next best.
_SUMS = 4
#: Bytes of exchanges between hosts.
_EXCHANGES = (64, 16 << 10, 256 << 10, 1 << 20, 4 << 20)
#: Knobs that a short run has from the config.
_KEPT = (
    "dataset", "hidden", "activation", "loss", "batch_size", "optimizer", "lr", "weight_decay",
    "seed",
)  # fmt: skip


def measure_job(
    comm: MPI.Comm,
    config: TrainConfig,
    problem: Problem | None = None,
    *,
    workers: int | None = None,
    say: Callable[[str], None],
) -> Known:
    """Measure a job; collective.

    Args:
        comm: all ranks of the job, or with ``workers`` those and one more for a server.
        config: of the user, of which mode and servers do not matter.
        problem: the model and data; None takes the config's own.
        workers: their number in every mode; None: all ranks but the servers.
        say: called with each line for the user, at rank 0.

    Returns:
        What was found, the same on every rank.

    Raises:
        ConfigError: on every rank, if there is nothing to measure.
    """
    if comm.rank:
        say = silent
    with raise_on_all(comm):
        own: Any = problem or supervised_problem(config, workers=comm.size)
    with suppress(AttributeError):  # epochs may be as short as these runs; a plan is of their steps
        own.evaluate = lambda theta: {}
    site = _site(comm)
    say(f"measuring {comm.size} ranks on {len(site.machines)} hosts")
    work, doubt = _workload(comm, own, site)
    say(f"a gradient of {work.n:,} parameters takes {1e3 * work.mean_s:.4g} ms")
    costs, ranks = site.costs, range(workers or comm.size)
    if len(ranks) > 1:
        measured = run_on(comm, ranks, partial(_all_reduces, n=work.n))
        costs = replace(costs, measured=measured or ())
    if site.is_several:
        link = _link(comm, site)
        costs = replace(costs, between=link)
        say(f"links: {1e6 * link.alpha:.0f} us, {1e-6 / link.beta:.1f} MB/s")
    site = replace(site, costs=costs)
    known = Known(work, site, source=f"measured on {comm.size} ranks", doubt=doubt)
    known = _Runs(comm, config, own).measured(known, workers, say)
    return Known.from_json(bcast_text(comm, known.to_json()))


def _site(comm: MPI.Comm) -> Site:
    """Return where the ranks are; collective. Containers on one machine share its cores."""
    node, there = split_hosts(comm)
    node.Free()
    mine = local_facts(comm.rank, {"MPI": "", "ABI": ""})
    found = _of_all(comm, (there.host, mine.boot or mine.host, len(mine.cores)))
    boots = {host: boot for host, boot, _ in found}
    names = [*dict.fromkeys(boots.values())]
    machines = tuple(names.index(boot) for boot in boots.values())
    cores = tuple(max(count for _, boot, count in found if boot == name) for name in names)
    hosts = tuple(host for host, *_ in found)
    return Site(hosts, machines, cores, replace(DEFAULT_COSTS, cores=max(cores)))


def _of_all(comm: MPI.Comm, mine: Sequence[Any]) -> Any:
    """Return a list of what each rank has, on every rank; collective."""
    return json.loads(bcast_text(comm, f"[{','.join(gather_texts(comm, json.dumps(mine)))}]"))


def _workload(comm: MPI.Comm, problem: Problem, site: Site) -> tuple[Workload, str]:
    """Time gradients on as many ranks of a machine at a time as it has cores; collective.

    Returns:
        What was found, and why it may not be true; empty if nothing suggests that.
    """
    with raise_on_all(comm):
        theta = initial_parameters(problem)
        some = islice(_batches(problem, comm, range(_BATCHES)), _BATCHES)
        samples = max(map(sample_counter(problem), some), default=0)
        if not samples:
            raise ConfigError(f"rank {comm.rank} has no batch to measure")
    machines = [site.machines[host] for host in site.hosts]
    turns = [machines[:rank].count(it) // site.cores[it] for rank, it in enumerate(machines)]
    for turn in range(1 + max(turns)):
        wait(comm.Ibarrier())
        if turn == turns[comm.rank]:
            times, core = _gradients(problem, theta, _batches(problem, comm, count()))
    wait(comm.Ibarrier())
    sizes, cores, lists = zip(*_of_all(comm, (samples, core, times)), strict=True)
    gradient_s, least, n = tuple(map(tuple, lists)), min(cores), theta.size
    doubt = f"rank {cores.index(least)} had {least:.0%} of a core" if least < _CORE else ""
    parts, matrices = gradient_spans(problem, n), matrices_of(problem, n)
    is_chain = all(callable(getattr(problem, it, None)) for it in ("layers", "loss"))
    work = Workload(n, max(sizes), gradient_s, parts=parts, matrices=matrices, is_chain=is_chain)
    return work, doubt


def _batches(problem: Problem, comm: MPI.Comm, epochs: Iterable[int]) -> Iterator[Any]:
    return chain.from_iterable(problem.batches(comm.rank, comm.size, it) for it in epochs)


def _gradients(
    problem: Problem, theta: Vector, batches: Iterator[Any]
) -> tuple[list[float], float]:
    """Return the times of gradients over some seconds, and the share of a core for them.

    A batch is made in that time, too: of a user's data it may take longer than its gradient.
    """
    out, other = np.empty_like(theta), theta.copy()
    more = (None,) if len(gradient_spans(problem, theta.size)) > 1 else ()
    times: list[float] = []
    began, worked = time.perf_counter(), time.process_time()
    for number in count():
        np.copyto(theta, other)  # as new as parameters are in a job
        start = time.perf_counter()
        problem.loss_and_grad(theta, next(batches), out, *more)
        end = time.perf_counter()
        if number > 1:
            times.append(end - start)
        if end - began > _GRADIENTS_S and len(times) > 2:
            break
    core = (time.process_time() - worked) / (time.perf_counter() - began)
    return times[:: -(-len(times) // _TIMES)], core


def _all_reduces(comm: MPI.Comm, *, n: int) -> tuple[Measured, ...]:
    """Time all-reduces of n elements; collective."""
    with Communicator(comm) as communicator:
        nbytes, hosts, buffer = ITEMSIZE * n, communicator.hosts, communicator.empty(n)
        names = [it for it in ALL_REDUCES if it != AUTO]
        times = predicted(names, hosts, nbytes, ITEMSIZE, DEFAULT_COSTS)
        names = [communicator.choice(nbytes).algorithm, *sorted(times, key=times.__getitem__)]
        tried = [*dict.fromkeys(names)][:_SUMS]
        calls = {it: partial(communicator.all_reduce, buffer, "sum", it) for it in tried}
        found = medians(comm, calls, _TURNS)
        return tuple((name, hosts, nbytes, seconds) for name, seconds in found.items())


def _link(comm: MPI.Comm, site: Site) -> LinkCosts:
    """Time exchanges between two hosts, the first rank's and another; collective."""
    pair = Layout(((0,), (site.hosts.index(1),)), pretended=False)
    work = partial(exchange_times, placed=pair, sizes=_EXCHANGES, rounds=_TURNS)
    found = run_on(comm, pair.ranks, work) or {}
    return fit_machine(Readings(between=found), cores=1).costs.between


class _Runs:
    """Short runs of each family, in turns: a machine that becomes slower does so for all."""

    def __init__(self, comm: MPI.Comm, config: TrainConfig, problem: Problem) -> None:
        kept = {name: getattr(config, name) for name in _KEPT}
        self._comm, self._problem, self._config = comm, problem, TrainConfig(**kept)
        #: Whether plans split the model: it is that of ``psrt train``, with two layers or more.
        self._is_deep = isinstance(problem, Supervised) and bool(config.hidden)
        #: By family, steps of a run that is long enough.
        self._steps: dict[Family, int] = {}

    def measured(self, known: Known, workers: int | None, say: Callable[[str], None]) -> Known:
        """Make all runs; return what is known then, at rank 0."""
        comm, found = self._comm, dict[Family, list[Run]]()
        several = known.site.is_several  # on one host a codec is not in effect
        workers_of = {
            it: workers or comm.size - it.servers
            for it in FAMILIES
            if (several or not it.codec) and (self._is_deep or not it.parallel)
        }
        families = [it for it, count in workers_of.items() if it.is_possible(count)]
        for turn, family in product(range(1 + _RUNS), families):
            ranks = range(workers_of[family] + family.servers)
            run = run_on(comm, ranks, partial(self._measure, family, turn))
            if run is not None and comm.rank == 0:
                found.setdefault(family, []).append(run)
                its = family.codec or family.parallel
                what = " ".join(filter(None, (family.mode.described(), its)))
                say(f"{what}: {_speed(run):,.0f} samples/s")
        if ROUNDS in families and (served := run_on(comm, range(comm.size), self._recorded)):
            known = replace(known, apply=served.apply, details=served.details)
        return replace(known, runs=tuple(_as_one(*it) for it in found.items()))

    def _measure(self, family: Family, turn: int, comm: MPI.Comm) -> Run | None:
        """Run a family on its ranks; in the first turn also to see how many steps are enough."""
        few, every = family.steps, family.mode.local_steps
        count = self._steps.setdefault(family, few)
        if turn == _RUNS and count == few:
            return None  # the first run was long enough to count
        lines = every * max(1, count // (_LINES * every))
        job = family.job(self._config, steps=count, log_every=lines)
        run = run_over_mpi(comm, job, self._problem)
        if not turn:
            enough = 0 if run is None else int(few * _RUN_S / run.summary.seconds)
            self._steps[family] = max(few, min(_MOST_STEPS, int(bcast_text(comm, f"{enough}"))))
        return run

    def _recorded(self, comm: MPI.Comm) -> Known | None:
        """Return what recorded rounds say of a server's work, at the first rank.

        Recording takes time itself, so the speed of a run is not taken from a recorded one.
        """
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder) / "run")
            job = ROUNDS.job(self._config, steps=_RECORDED, out=out, record=True)
            run_over_mpi(comm, job, self._problem)
            return known_of(out, read_history(out), batch_size=1) if comm.rank == 0 else None


def _as_one(family: Family, runs: Sequence[Run]) -> ShortRun:
    """Return the mean of the last runs of a family."""
    last, speeds = runs[-1].summary, [_speed(it) for it in runs[-_RUNS:]]
    return ShortRun(
        family.name, sum(speeds) / len(speeds), last.workers, family.codec, last.allreduce,
        last.shards_per_server,
    )  # fmt: skip


def _speed(run: Run) -> float:
    """Return the samples per second in the middle of a run: its first fifth warms up."""
    lines = [it for it in run.records if not it.epoch_end]
    if len(lines) < 3 or lines[len(lines) // 5].seconds >= lines[-2].seconds:
        return run.summary.samples_per_second
    first, last = lines[len(lines) // 5], lines[-2]
    return (last.samples - first.samples) / (last.seconds - first.seconds)
