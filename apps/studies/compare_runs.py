"""The runs that compare_modes.py compares: their configs, their execution, their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from script import make_folder

import psrt
from psrt.cli.flags import parse_train
from psrt.core.errors import ConfigError
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.report import seconds_to_accuracy
from psrt.rows.suggest import did_you_mean
from psrt.simulation.cost_flags import VirtualCosts
from studies.scenarios import scenario
from studies.standings import Row

if TYPE_CHECKING:
    from argparse import Namespace

    from mpi4py import MPI

CONFIGS = Path(__file__).parents[1] / "configs"
SERIAL = "serial"

#: Every file of ``configs``, in the order of table and plot.
MODES = (
    SERIAL, "sync", "sync-backup", "ssp", "softsync", "async",
    "local-sgd", "post-local", "local-sgd-outer", "local-sgd-servers",
    "allreduce-ring", "allreduce-tree", "allreduce-butterfly", "allreduce-mpi",
)  # fmt: skip
#: Those that cannot be simulated: the library's all-reduce is where the library is.
REAL_ONLY = ("allreduce-mpi",)

#: Takes what is kept of a run.
Keep = Callable[[Row], None]


class Job(NamedTuple):
    """One run to do."""

    #: The name of its file in ``configs``.
    mode: str
    #: The name of what goes wrong.
    scenario: str
    #: Ranks that compute gradients.
    workers: int
    config: psrt.TrainConfig


def planned(options: Namespace, flags: Sequence[str], *, ranks: int) -> list[Job]:
    """Return all runs in order; serial ones in the first scenario only, as they are never late.

    Args:
        options: of the script.
        flags: of ``psrt train``, for every run.
        ranks: of mpirun; does not count in a simulation.

    Raises:
        ConfigError: if one of them cannot be, before any has begun.
    """
    modes = options.modes or [m for m in MODES if not (options.simulate and m in REAL_ONLY)]
    for mode in modes:
        if mode not in MODES:
            guess = did_you_mean(mode, MODES)
            raise ConfigError(f"no mode {mode!r}{guess}, there are {', '.join(MODES)}")
        if options.simulate and mode in REAL_ONLY:
            raise ConfigError(f"{mode} cannot be simulated, it takes the MPI library")
    return [
        _job(mode, name, options, [*flags, "--seed", str(seed)], ranks)
        for seed in range(options.seeds)
        for name in dict.fromkeys(options.scenarios)
        for mode in dict.fromkeys(modes)
        if mode != SERIAL or name == options.scenarios[0]
    ]


def _job(mode: str, name: str, options: Namespace, flags: Sequence[str], ranks: int) -> Job:
    words = ["--config", str(CONFIGS / f"{mode}.toml"), *flags]
    trouble = scenario(name)
    if options.servers and parse_train(words).servers:
        words += ["--servers", options.servers]
    servers = parse_train(words).servers or 0
    workers = 1 if mode == SERIAL else options.workers if options.simulate else ranks - servers
    if mode != SERIAL and workers > 0:
        words += trouble.flags(workers)
    config = parse_train(words)
    psrt.resolve(config, ranks=workers + servers)
    return Job(mode, name, workers, config)


def run_simulated(jobs: Iterable[Job], options: Namespace, costs: VirtualCosts, keep: Keep) -> None:
    """Run the jobs in virtual time."""
    make_folder(options.out)
    for job in jobs:
        run = run_in_virtual_time(job.config, Scenario(job.workers, costs))
        keep(row_of(job, run, options.target))


def run_over_mpi(jobs: Iterable[Job], options: Namespace, comm: MPI.Comm, keep: Keep) -> None:
    """Run the jobs on the ranks of ``comm``; rank 0 keeps what comes out."""
    from psrt.mpi.agreement import raise_on_all
    from psrt.mpi.monitor import watched

    with watched(comm):  # one rank's failure ends all of them
        with raise_on_all(comm):
            if comm.rank == 0:
                make_folder(options.out)
        for job in jobs:
            alone = job.mode == SERIAL
            run = _run_alone(job.config, comm) if alone else psrt.run(job.config, comm=comm)
            if run is not None:
                keep(row_of(job, run, options.target))


def _run_alone(config: psrt.TrainConfig, comm: MPI.Comm) -> psrt.Run | None:
    """Run serially at rank 0 while the others sleep: waiting inside MPI would cost it a core."""
    from mpi4py import MPI

    run = psrt.run(config, comm=MPI.COMM_SELF) if comm.rank == 0 else None
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(0.005)
    return run


def row_of(job: Job, run: psrt.Run, target: float) -> Row:
    """Return what is kept of a run."""
    summary = run.summary
    if summary.test_accuracy is None:
        raise ConfigError(f"modes are compared by accuracy, {job.config.dataset} has no classes")
    waiting = [worker.share for worker in summary.waiting]
    return {
        "mode": job.mode,
        "scenario": job.scenario,
        "inject": " ".join(map(str, job.config.inject)),
        "seed": summary.seed,
        "workers": summary.workers,
        "servers": summary.servers,
        "seconds_to_accuracy": seconds_to_accuracy(map(asdict, run.records), target),
        "test_accuracy": summary.test_accuracy,
        "staleness_mean": summary.staleness.mean,
        "staleness_max": summary.staleness.max,
        "dropped": summary.dropped,
        "waiting_share": sum(waiting) / len(waiting) if waiting else 0.0,
        "bytes_sent": summary.bytes_sent,
        "samples_per_second": summary.samples_per_second,
        "seconds": summary.seconds,
        "mpi": summary.mpi,
        "parameters_sha256": summary.parameters_sha256,
    }
