"""Measures a job on the ranks that will train it: gradients, sums, links, and short runs.

Nothing is trained for good: the parameters of the short runs are thrown away. What one rank
computes is timed alone; what ranks do to each other, such as caches that a server empties, is not
looked for in single calls. Instead one short run of each *family* of modes is simulated from the
single times, and what it really took, over what was predicted, is a factor of its family.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, cycle, islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psrt.bench.fit import solve
from psrt.bench.probes import exchange_times, medians
from psrt.bench.race import layout
from psrt.bench.ranks import run_on, wait
from psrt.collective.analysis.choose import predict
from psrt.collective.analysis.machine import DEFAULT_COSTS, Measured
from psrt.collective.costs import LinkCosts
from psrt.collective.registry import ALL_REDUCES, AUTO
from psrt.config import TrainConfig
from psrt.core.arrays import ITEMSIZE, Vector
from psrt.core.errors import ConfigError
from psrt.history import read_history
from psrt.job.mpi import run_over_mpi
from psrt.job.problems import initial_parameters, supervised_problem
from psrt.job.result import Run, silent
from psrt.mpi.agreement import bcast_text, gather_texts, raise_on_all
from psrt.mpi.communicator import Communicator
from psrt.mpi.hosts import split_hosts
from psrt.planning.families import FAMILIES, ROUNDS, Family
from psrt.planning.known import Known, ShortRun, Site, Workload
from psrt.planning.like import apply_of, messages_of
from psrt.runtime.problem import Problem, Supervised, gradient_spans, matrices_of
from psrt.runtime.problem_rules import sample_counter
from psrt.simulation.calibration import calibrate

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
        own = problem or supervised_problem(config, workers=comm.size)
    site, present = _site(comm)
    say(f"measuring {comm.size} ranks on {len(present)} hosts")
    work, doubt = _workload(comm, own, site)
    say(f"a gradient of {work.n:,} parameters takes {1e3 * work.mean_s:.4g} ms")
    site = replace(
        site, costs=replace(site.costs, measured=_all_reduces(comm, work.n, workers or comm.size))
    )
    if len(present) > 1:
        site = replace(site, costs=replace(site.costs, between=_link(comm, present)))
        link = site.costs.between
        say(f"links: {1e6 * link.alpha:.0f} us, {1e-6 / link.beta:.1f} MB/s")
    known = Known(work, site, source=f"measured on {comm.size} ranks", doubt=doubt)
    known = _Runs(comm, config, own).measured(known, workers, say)
    return Known.from_json(bcast_text(comm, known.to_json()))


def _site(comm: MPI.Comm) -> tuple[Site, tuple[tuple[int, ...], ...]]:
    """Return where the ranks are, and by host its ranks; collective."""
    node, found = split_hosts(comm)
    node.Free()
    host = {rank: number for number, ranks in enumerate(found.hosts) for rank in ranks}
    mine = f"{_machine()} {len(os.sched_getaffinity(0))}"
    texts = dict(enumerate(_all_texts(comm, mine)))
    names: dict[str, int] = {}
    machines = [names.setdefault(texts[its[0]].split()[0], len(names)) for its in found.hosts]
    cores = [0] * len(names)
    for number, its in zip(machines, found.hosts, strict=True):
        cores[number] = max(cores[number], *(int(texts[rank].split()[1]) for rank in its), 0)
    costs = replace(DEFAULT_COSTS, cores=max(cores))
    hosts = tuple(host[rank] for rank in range(comm.size))
    return Site(hosts, tuple(machines), tuple(cores), costs), found.hosts


def _all_texts(comm: MPI.Comm, mine: str) -> list[str]:
    """Return the text of each rank, on every rank; collective."""
    found = gather_texts(comm, mine)
    text = bcast_text(comm, "\n".join(found) if comm.rank == 0 else "")
    return text.split("\n")


def _machine() -> str:
    """Return what tells this kernel from others: containers on one machine share its cores."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


def _workload(comm: MPI.Comm, problem: Problem, site: Site) -> tuple[Workload, str]:
    """Time gradients on as many ranks of a machine at a time as it has cores; collective.

    Returns:
        What was found, and why it may not be true; empty if nothing suggests that.
    """
    with raise_on_all(comm):
        theta = initial_parameters(problem)
        epochs = (problem.batches(comm.rank, comm.size, epoch) for epoch in range(_BATCHES))
        batches = list(islice(chain.from_iterable(epochs), _BATCHES))
        samples = max(map(sample_counter(problem), batches), default=0)
        if not samples:
            raise ConfigError(f"rank {comm.rank} has no batch to measure")
    machines = [site.machines[host] for host in site.hosts]
    place = machines[: comm.rank].count(machines[comm.rank])
    turn = place // site.cores[machines[comm.rank]]
    found, core = [0.0], 1.0
    for number in range(max(-(-machines.count(it) // n) for it, n in enumerate(site.cores))):
        wait(comm.Ibarrier())
        if number == turn:
            found, core = _gradients(problem, theta, batches, _GRADIENTS_S)
    wait(comm.Ibarrier())
    texts = _all_texts(comm, f"{samples} {core} " + " ".join(f"{it:.4e}" for it in found))
    sizes, cores, *_ = zip(*(map(float, text.split()[:2]) for text in texts), strict=True)
    times = tuple(tuple(map(float, text.split()[2:])) for text in texts)
    n = theta.size
    parts, matrices = gradient_spans(problem, n), matrices_of(problem, n)
    least = min(range(comm.size), key=cores.__getitem__)
    doubt = f"rank {least} had {cores[least]:.0%} of a core" if cores[least] < _CORE else ""
    whole = all(callable(getattr(problem, it, None)) for it in ("layers", "loss"))
    work = Workload(n, int(max(sizes)), times, parts=parts, matrices=matrices, is_chain=whole)
    return work, doubt


def _gradients(
    problem: Problem, theta: Vector, batches: Sequence[Any], seconds: float
) -> tuple[list[float], float]:
    """Return the times of gradients over some seconds, and the share of a core for them."""
    out, other = np.empty_like(theta), theta.copy()
    more = (None,) if len(gradient_spans(problem, theta.size)) > 1 else ()
    times: list[float] = []
    began, worked = time.perf_counter(), time.process_time()
    for number, batch in enumerate(cycle(batches)):
        np.copyto(theta, other)  # as new as parameters are in a job
        start = time.perf_counter()
        problem.loss_and_grad(theta, batch, out, *more)
        end = time.perf_counter()
        if number > 1:
            times.append(end - start)
        if end - began > seconds and len(times) > 2:
            break
    core = (time.process_time() - worked) / (time.perf_counter() - began)
    return times[:: -(-len(times) // _TIMES)], core


def _all_reduces(comm: MPI.Comm, n: int, ranks: int) -> tuple[Measured, ...]:
    """Time all-reduces of n elements over the first ranks; collective."""
    found = run_on(comm, range(ranks), partial(_timed, n=n)) if ranks > 1 else None
    return tuple(found or ())


def _timed(comm: MPI.Comm, *, n: int) -> list[Measured]:
    with Communicator(comm) as communicator:
        node, there = split_hosts(comm)
        node.Free()
        hosts = tuple(map(len, there.hosts))
        buffer = communicator.empty(n)
        nbytes, usual = ITEMSIZE * n, communicator.choice(ITEMSIZE * n).algorithm
        times = {
            name: seconds
            for name in ALL_REDUCES
            if name != AUTO
            and (seconds := predict(name, hosts, nbytes, ITEMSIZE, DEFAULT_COSTS)) is not None
        }
        others = sorted(times, key=times.__getitem__)
        calls = {
            name: partial(communicator.all_reduce, buffer, "sum", name)
            for name in [*dict.fromkeys((usual, *others))][:_SUMS]
        }
        found = medians(comm, calls, _TURNS)
        return [(name, hosts, nbytes, seconds) for name, seconds in found.items()]


def _link(comm: MPI.Comm, present: Sequence[Sequence[int]]) -> LinkCosts:
    """Time exchanges between two hosts, the first rank's and another; collective."""
    pair, usual = layout(present, 2, 2), DEFAULT_COSTS.between
    assert pair is not None, "there are two hosts"
    work = partial(exchange_times, placed=pair, sizes=_EXCHANGES, rounds=_TURNS)
    if not (found := run_on(comm, pair.ranks, work)):
        return usual
    alpha, beta = solve([(1, m) for m in found], list(found.values())).values
    return LinkCosts(alpha, beta, usual.gamma)


class _Runs:
    """Short runs of each family, in turns: a machine that becomes slower does so for all."""

    def __init__(self, comm: MPI.Comm, config: TrainConfig, problem: Problem | None) -> None:
        kept = {name: getattr(config, name) for name in _KEPT}
        self._comm, self._problem = comm, problem
        self._config = TrainConfig(**kept, steps=1)
        #: Whether plans split the model: it is that of ``psrt train``, with two layers or more.
        self._is_deep = isinstance(problem, Supervised) and bool(config.hidden)
        #: By family, steps of a run that is long enough.
        self._steps: dict[Family, int] = {}

    def measured(self, known: Known, workers: int | None, say: Callable[[str], None]) -> Known:
        """Make all runs; return what is known then, at rank 0."""
        found: dict[Family, list[Run]] = {}
        for turn, family in product(range(1 + _RUNS), FAMILIES):
            ranks = self._comm.size if workers is None else workers + family.servers
            if family.codec and not known.site.is_several:
                continue  # on one host a codec is not in effect
            if family.parallel and not self._is_deep:
                continue
            if ranks > self._comm.size or not family.is_possible(ranks - family.servers):
                continue
            run = run_on(self._comm, range(ranks), partial(self._measure, family, turn))
            if run is not None and self._comm.rank == 0:
                found.setdefault(family, []).append(run)
                what = " ".join(
                    filter(None, (family.mode.described(), family.codec or family.parallel))
                )
                say(f"{what}: {_speed(run):,.0f} samples/s")
            if family == ROUNDS and not turn:
                times = run_on(self._comm, range(ranks), self._of_servers) or ({}, {})
                details = {**known.details, **times[1]}
                known = replace(known, apply={**known.apply, **times[0]}, details=details)
        for family, runs in found.items():
            last, speeds = runs[-1].summary, [_speed(it) for it in runs[-_RUNS:]]
            made = ShortRun(
                family.name, sum(speeds) / len(speeds), last.workers, family.codec, last.allreduce,
                last.shards_per_server,
            )  # fmt: skip
            known = replace(known, runs=(*known.runs, made))
        return known

    def _measure(self, family: Family, turn: int, comm: MPI.Comm) -> Run | None:
        """Run a family on its ranks; in the first turn also to see how many steps are enough."""
        every = family.mode.local_steps
        few = every * max(3, -(-family.steps // every))
        count = self._steps.setdefault(family, few)
        if turn == _RUNS and count == few:
            return None  # the first run was long enough to count
        run = self._run(comm, self._job(family, count))
        if not turn:
            enough = np.array([0 if run is None else few * _RUN_S / run.summary.seconds], np.int64)
            comm.Bcast(enough)
            self._steps[family] = max(few, min(_MOST_STEPS, int(enough[0])))
        return run

    def _job(self, family: Family, steps: int) -> TrainConfig:
        every = family.mode.local_steps
        lines = every * max(1, steps // (_LINES * every))
        return replace(
            self._config, mode=family.mode, servers=family.servers, codec=family.codec,
            codec_reply=family.reply, parallel=family.parallel, steps=steps, log_every=lines,
        )  # fmt: skip

    def _of_servers(self, comm: MPI.Comm) -> tuple[dict[str, float], dict[str, float]]:
        """Return what a server's work takes, by recording some rounds; at the first rank.

        Recording takes time itself, so the speed of a run is not taken from a recorded one.
        """
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder) / "run")
            job = self._job(ROUNDS, _RECORDED)
            self._run(comm, replace(job, log_every=None, out=out, record=True))
            if comm.rank:
                return {}, {}
            found = calibrate(read_history(out))
        return apply_of(self._config.optimizer.name, found), messages_of(found)

    def _run(self, comm: MPI.Comm, config: TrainConfig) -> Run | None:
        return run_over_mpi(comm, config, self._problem)


def _speed(run: Run) -> float:
    """Return the samples per second in the middle of a run: its first fifth warms up."""
    lines = [it for it in run.records if not it.epoch_end]
    if len(lines) < 3 or lines[len(lines) // 5].seconds >= lines[-2].seconds:
        return run.summary.samples_per_second
    first, last = lines[len(lines) // 5], lines[-2]
    return (last.samples - first.samples) / (last.seconds - first.seconds)
