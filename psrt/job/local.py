"""A job: from a config and a problem to trained parameters and a summary, over MPI or alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from psrt.config import TrainConfig, resolve
from psrt.history import EventLog
from psrt.history.folder import EVENTS, write_header
from psrt.job.build import (
    initial_parameters,
    machine_costs,
    output_folder,
    supervised_problem,
    worker_role,
)
from psrt.job.provenance import history_header
from psrt.job.replay import Replay
from psrt.job.result import Run, Say, conclude, say_plan, silent
from psrt.launchers import launched
from psrt.report.recorder import Recorder
from psrt.runtime.account import WorkerAccount
from psrt.runtime.chronicle import WorkerChronicle
from psrt.runtime.problem import Problem
from psrt.runtime.tally import Tally
from psrt.transport import SoloPort, drive
from psrt.transport.port import Wiring

if TYPE_CHECKING:
    from mpi4py import MPI


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
        from psrt.mpi.start import world

        comm = world()
    if comm is not None and comm.size > 1:
        from psrt.job.mpi import run_over_mpi

        return run_over_mpi(comm, config, problem, say=say)
    return _run_alone(config, problem, say or silent)


def _run_alone(config: TrainConfig, problem: Problem | None, say: Say) -> Run:
    replay = None if config.replay is None else Replay(config.replay)
    if replay is not None:
        replay.check_ranks(1)
        config = replay.pinned(config)
    config = resolve(config, ranks=1)
    problem = problem or supervised_problem(config, workers=1)
    machine_costs(config)
    initial = initial_parameters(problem)
    if replay is not None:
        alone = Wiring(initial.size, workers=(0,))
        replay.check(config, alone, initial=initial, problem=problem, hosts=(0,))
        say(replay.plan())
    folder = output_folder(config)
    port = SoloPort(initial.size)
    np.copyto(port.theta, initial)
    log: EventLog | None = None
    if folder is not None and config.record:
        log = EventLog(folder.history / EVENTS, origin=port.now())
    worker = worker_role(port, config, problem, log=log)
    plan = worker.strategy.plan
    if folder is not None and config.record:
        header = history_header(
            config,
            port.wiring,
            initial=initial,
            problem=problem,
            files=(EVENTS,),
            plan=plan,
            hosts=(0,),
        )
        write_header(folder.history, header)
    recorder = Recorder(1, log_every=config.log_every, folder=folder, say=say)
    port.on_report = recorder.add
    say_plan(plan, say)
    with log or contextlib.nullcontext():
        drive(worker.run())
        if log is not None:
            WorkerChronicle(log, 0).saved(worker.strategy.updates, port.now())
    result = conclude(
        config,
        problem,
        port.theta,
        tallies=[Tally.of_worker(port, worker)],
        accounts=[WorkerAccount.of(0, worker.meter, worker.seconds)],
        recorder=recorder,
        folder=folder,
        say=say,
        plan=plan,
    )
    if replay is not None:
        say(replay.verdict(result.theta))
    return result
