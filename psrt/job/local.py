"""A job of one process, and ``psrt.run``, which finds out whether it runs under MPI."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from psrt.config import TrainConfig
from psrt.config.overriding import overridden
from psrt.job.cut import Cut
from psrt.job.hooks import Epoch, Hooks
from psrt.job.launcher import Launcher, Roles
from psrt.job.result import Run, Say
from psrt.job.session import job
from psrt.job.setup import Setup
from psrt.launch import launched
from psrt.launch.environment import KNOBS
from psrt.runtime.problem import Problem
from psrt.runtime.problem_rules import check_config
from psrt.transport import SoloPort, drive, quietly
from psrt.transport.port import Port
from psrt.transport.stage_links import SoloStageLinks, StageLinks

if TYPE_CHECKING:
    from mpi4py import MPI

#: What a job does in place of training, given its ranks; None: it trains. Planning measures here.
instead: Callable[[MPI.Comm, TrainConfig, Problem | None], object] | None = None


def run(
    config: TrainConfig,
    problem: Problem | None = None,
    *,
    comm: MPI.Comm | None = None,
    resume: str | PathLike[str] | None = None,
    say: Say | None = None,
    on_record: Callable[[dict[str, Any]], object] | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> Run | None:
    """Train in the mode that ``config`` names; every rank of the job calls this.

    Args:
        config: need not be resolved; that of rank 0 is used. Knobs of ``psrt launch --knobs``
            replace its own.
        problem: the model and data to train; None takes the config's own MLP and data set.
        comm: the ranks of the job; None takes all of them, or trains serially without an MPI
            launcher.
        resume: as ``config.resume``: the run or checkpoint to resume, or ``auto``.
        say: called with each line meant for the user, at rank 0; None prints nothing.
        on_record: called at rank 0 with each new line of ``metrics.jsonl``, as a dictionary.
        on_epoch: called at rank 0 with each ``Epoch`` that worker 0 has evaluated.

    Returns:
        The result at rank 0, None elsewhere.

    Raises:
        ConfigError: on every rank, if the job cannot be run; nothing was trained or written.
        OutputError: on every rank, if a file could not be written at the end, as on a full disk;
            the others were written, and the error's ``run`` is the result at rank 0.

    Any other error on any rank is printed once and ends the whole job. What ``on_record`` or
    ``on_epoch`` raises is printed at once and raised at rank 0 when the result is written.
    """
    hooks = Hooks(on_record, on_epoch)
    return drive(any_job(config, problem, comm=comm, resume=resume, say=say, hooks=hooks))


async def any_job(
    config: TrainConfig,
    problem: Problem | None,
    *,
    comm: MPI.Comm | None,
    resume: str | PathLike[str] | None,
    say: Say | None,
    hooks: Hooks,
) -> Run | None:
    """Train as ``run``, over MPI if there are several ranks."""
    check_config(config)
    if resume is not None:
        config = replace(config, resume=fspath(resume))
    asked = partial(overridden, config, os.environ.get(KNOBS, ""), source="--knobs")
    if comm is None and launched():
        from psrt.mpi.start import world

        comm = world()
    if instead is not None and comm is not None:
        instead(comm, asked(), problem)
    if comm is not None and comm.size > 1:
        from psrt.job.mpi import job_over_mpi

        run = await job_over_mpi(comm, asked, problem, say=say, hooks=hooks)
    else:
        run = await job(LocalLauncher(), asked, problem, say=say, hooks=hooks)
    hooks.ended(run)
    return run


class LocalLauncher(Launcher):
    """One process that is one rank: it trains serially."""

    ranks = 1

    def ranks_of(self, config: TrainConfig) -> int:
        """Return 1."""
        return 1

    def ports(self, setup: Setup) -> Mapping[int, Port]:
        """Return the port of the only rank."""
        self._port = SoloPort(setup.role_map.n, role_map=setup.role_map)
        return {0: self._port}

    def links(self, setup: Setup, cut: Cut) -> Mapping[int, StageLinks]:
        """Return the links of the only rank, which has the whole model."""
        return {0: SoloStageLinks()}

    async def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        """Run the worker to its end."""
        self._port.on_report = self.on_report
        for role in roles.values():
            await quietly(role.run())

    def now(self) -> float:
        """Return the time."""
        return time.perf_counter()
