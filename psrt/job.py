"""A job: from a config and a problem to trained parameters and a summary, over MPI or alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from psrt.build import supervised_problem, worker_role
from psrt.config import TrainConfig, resolve, to_toml
from psrt.errors import ConfigError, ProtocolError
from psrt.report import OutputFolder, Record, Staleness, Summary, final_table, parameters_sha256
from psrt.report.recorder import Recorder
from psrt.runtime.problem import Problem
from psrt.runtime.tally import Tally
from psrt.transport import SoloPort, drive
from psrt.transport.port import Vector

if TYPE_CHECKING:
    from mpi4py import MPI

#: Set by the launchers: mpirun of Open MPI and of MPICH, and whatever speaks PMI or PMIx.
_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What came out of a run."""

    #: As in ``summary.json``.
    summary: Summary
    #: (n,) float32, the final parameters.
    theta: Vector
    #: As in ``metrics.jsonl``.
    records: tuple[Record, ...]


def launched() -> bool:
    """Tell whether this process was started as a rank of an MPI job."""
    return any(name in os.environ for name in _LAUNCHERS)


def run(
    config: TrainConfig,
    problem: Problem | None = None,
    *,
    comm: MPI.Comm | None = None,
    say: Say | None = None,
) -> Run | None:
    """Train under the scheme that ``config`` names; every rank of the job calls this.

    Args:
        config: need not be resolved; rank 0's counts.
        problem: what is trained; None makes the config's own MLP and data.
        comm: the ranks of the job; None is all of them, or none where no MPI launcher is at work.
        say: takes each line meant for the user, at rank 0; None says nothing.

    Returns:
        The result at rank 0, None elsewhere.

    Raises:
        ConfigError: on every rank, if the job cannot be; nothing was trained or written.

    Any other error on any rank is printed once and ends the whole job.
    """
    if comm is None and launched():
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    if comm is not None and comm.size > 1:
        from psrt.mpi_job import run_over_mpi

        return run_over_mpi(comm, config, problem, say=say)
    return _run_alone(config, problem, say or _silent)


def _silent(line: str) -> None:
    """Say nothing."""


def _run_alone(config: TrainConfig, problem: Problem | None, say: Say) -> Run:
    config = resolve(config, ranks=1)
    problem = problem or supervised_problem(config, workers=1)
    initial = checked_initial(problem)
    folder = prepared_folder(config)
    port = SoloPort(initial.size)
    np.copyto(port.theta, initial)
    worker = worker_role(port, config, problem)
    recorder = Recorder(1, log_every=config.log_every, folder=folder, say=say)
    port.on_report = recorder.add
    drive(worker.run())
    return conclude(
        config,
        problem,
        port.theta,
        tallies=[Tally.of_worker(port, worker)],
        histogram=np.zeros(0, np.int64),
        recorder=recorder,
        folder=folder,
        say=say,
    )


def checked_initial(problem: Problem) -> Vector:
    """Return the problem's initial parameters.

    Raises:
        ConfigError: if they are not what every rank can work with.
    """
    initial = np.asarray(problem.initial())
    if initial.ndim != 1 or initial.dtype != np.float32 or not initial.size:
        raise ConfigError(
            f"initial() must return a flat float32 vector, got {initial.dtype} of shape "
            f"{initial.shape}"
        )
    if not np.isfinite(initial).all():
        raise ConfigError("initial() returned parameters that are nan or infinite")
    return initial


def prepared_folder(config: TrainConfig) -> OutputFolder | None:
    """Return the run's folder with ``config.toml`` in it, None if there is to be none."""
    if config.out is None:
        return None
    folder = OutputFolder(config.out)
    folder.prepare(to_toml(config), overwrite=config.overwrite)
    return folder


def conclude(
    config: TrainConfig,
    problem: Problem,
    theta: Vector,
    *,
    tallies: Sequence[Tally],
    histogram: np.ndarray[Any, np.dtype[np.int64]],
    recorder: Recorder,
    folder: OutputFolder | None,
    say: Say,
    hosts: int = 1,
    mpi: str = "",
) -> Run:
    """Make the summary, write what is to be written, and say how it went.

    Args:
        config: resolved.
        problem: evaluates the final parameters.
        theta: (n,) the final parameters.
        tallies: every rank's, in order.
        histogram: applied pushes by staleness, all shards together.
        recorder: heard every worker's last report.
        folder: where to write; None writes nothing.
        say: takes the lines for the user.
        hosts: how many there were.
        mpi: the library's name and version.

    Raises:
        ProtocolError: if ranks without servers ended with different parameters.
    """
    recorder.close()
    servers = config.servers or 0
    if not servers and len({tally.fingerprint for tally in tallies}) > 1:
        raise ProtocolError("the ranks' final parameters differ; they must be equal to the bit")
    total = Tally.of_all(tallies)
    seconds = total.microseconds / 1e6
    figures = problem.evaluate(theta)
    summary = Summary(
        mode=config.mode or "",
        workers=len(tallies) - servers,
        servers=servers,
        ranks=len(tallies),
        hosts=hosts,
        mpi=mpi,
        seed=config.seed,
        epochs=total.epochs,
        steps=total.clock,
        samples=total.samples,
        seconds=seconds,
        samples_per_second=total.samples / seconds if seconds else 0.0,
        train_loss=recorder.records[-1].loss if recorder.records else None,
        test_loss=figures.get("loss"),
        test_accuracy=figures.get("accuracy"),
        parameters=theta.size,
        parameters_sha256=parameters_sha256(theta),
        updates=total.updates,
        dropped=total.dropped,
        staleness=Staleness.of(histogram),
        skew_max=total.skew_max,
        clock_spread_max=total.clock_spread_max,
        bytes_sent=total.bytes_sent,
        bytes_received=total.bytes_received,
    )
    if folder is not None:
        tensors = getattr(problem, "tensors", None)
        folder.write_model(tensors(theta) if tensors is not None else {"theta": theta})
        folder.write_summary(summary)
    say("")
    say(final_table(asdict(summary), folder.path if folder is not None else None))
    return Run(summary, theta.copy(), tuple(recorder.records))
