"""The interface between a job and the way its ranks run: one process, MPI, or the simulator.

A job runs in one or more processes, each with some of its ranks: a single process has all of them,
an MPI process one. ``session`` describes a run once, by these methods; the defaults are those of a
job in one process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from psrt.checkpoint import Disk
from psrt.config import TrainConfig
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError, OutputError
from psrt.core.progress import PROGRESS
from psrt.core.stats import Sent, Stats
from psrt.data import Deal
from psrt.faults import Member
from psrt.faults.watcher import Watcher
from psrt.history.folder import EVENTS
from psrt.history.replay import Rows
from psrt.job.problems import dealt_out, initial_parameters, supervised_problem
from psrt.job.replay import Replay
from psrt.job.shards import ServedJob
from psrt.report import Summary
from psrt.runtime.mean import Mean
from psrt.runtime.problem import Problem
from psrt.runtime.server import Server
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.worker import Worker
from psrt.transport.port import Port, RoleMap

if TYPE_CHECKING:
    from psrt.job.cut import Cut
    from psrt.job.setup import Setup
    from psrt.transport.stage_links import StageLinks

#: The roles of this process by rank, servers before workers.
Roles = Mapping[int, Server | Worker]


class HandedOut(NamedTuple):
    """What the roles of a cell repeat in a replay."""

    #: The all-reduces of parameters or gradients and of the control values, if ``auto`` chose
    #: them.
    algorithm: str | None = None
    control_algorithm: str | None = None
    #: Rows of scripts: by shard, or without servers by worker.
    scripts: Mapping[int, Rows] = MappingProxyType({})


def shard_servers(roles: Iterable[Server | Worker]) -> list[ShardServer]:
    """Return the servers of all shards among some roles, in the order of the shards."""
    found = [it for role in roles if isinstance(role, Server) for it in role.shards]
    return sorted(found, key=lambda it: it.number)


class Launcher(ABC):
    """One process of a job. All processes call the methods marked collective, in one order."""

    #: Whether this is the first process, which reads files, writes and prints.
    first = True
    #: Whether there are other processes.
    several = False
    #: The number of ranks started; None if a config gets the number that it asks for.
    ranks: int | None = None
    #: Name and version of the MPI library; empty without one.
    library = ""
    #: Whether time is virtual, and whether anything is computed.
    simulated, numerics = False, True
    #: Whether faults are injected in virtual time.
    disturbed = False
    #: Whether it runs a rehearsal, of which nothing stays, and in which no fault strikes.
    rehearses = False
    #: Takes the checkpoints.
    disk = Disk()
    #: Workers whose crash is scheduled.
    crashes: Sequence[int] = ()
    #: The number of workers that crashed.
    died = 0
    #: At the first process, the workers, by number, that others continued without.
    missing: Mapping[int, Member] = MappingProxyType({})
    #: The line to the other processes, for messages outside of training; None for one process.
    line: Watcher | None = None
    #: At the first process, the ranks without such a line.
    unheard: Sequence[int] = ()
    #: Returns the ranks that the others continue without.
    gone: Callable[[], Collection[int]] = staticmethod(tuple)
    #: At the first process, by epoch, the workers that got none of its samples.
    left_out: Mapping[int, Collection[int]] = MappingProxyType({})
    #: At the first process after ``final_theta``, if the workers end with different parameters.
    mean: Mean | None = None
    #: Called at the first process with every report of a worker.
    on_report: Callable[[Sent], None] = staticmethod(lambda _: None)
    #: Called at the first process with the number of a worker that died.
    on_crash: Callable[[int], None] = staticmethod(lambda _: None)

    # --- who takes part ---------------------------------------------------------------------

    @abstractmethod
    def ranks_of(self, config: TrainConfig) -> int:
        """Return the number of ranks that a config gets; it need not be resolved."""

    @property
    def started_as(self) -> Sequence[int]:
        """The role that each rank was started in, see ``roles``; empty if not given."""
        return ()

    def priced(self, job: ServedJob) -> ServedJob:
        """Return a job with the costs that this launcher knows, for the choice of shards."""
        return replace(job, costs=replace(job.costs, cores=len(os.sched_getaffinity(0))))

    def hosts(self, config: TrainConfig) -> Sequence[int]:
        """Return the number of the host of each rank; ``config`` is resolved."""
        return (0,)

    def has_network(self, hosts: Sequence[int], everywhere: bool | None) -> bool:
        """Return whether ranks on these hosts have a network between them.

        A simulation has one, unless it repeats a run without, whose config says so.

        Args:
            hosts: of each rank.
            everywhere: whether a codec should be in effect on one host, too; None if not given.
        """
        return everywhere is not False if self.simulated else len(set(hosts)) > 1

    def here(self, ranks: int) -> Sequence[int]:
        """Return the ranks of this process."""
        return range(ranks)

    def check(self, config: TrainConfig) -> None:  # noqa: B027 - most can do everything
        """Check that this launcher can do what a resolved config asks for.

        Raises:
            ConfigError: if not.
        """

    async def members(self, epoch: int) -> Sequence[int]:
        """Return the workers that share the samples of an epoch.

        All workers get the same answer, even if one dies meanwhile: the workers that were alive
        when the first of them asked.
        """
        raise NotImplementedError("no worker of this launcher dies")

    def roster(self) -> str:
        """Return the text of ``roster.json`` at the first process; empty without ranks."""
        return ""

    # --- how processes agree ----------------------------------------------------------------

    def agree(self) -> contextlib.AbstractContextManager[None]:
        """Raise the error of any process on all of them at the end of a block; collective."""
        return contextlib.nullcontext()

    def concluding(self) -> contextlib.AbstractContextManager[None]:
        """As ``agree``, for a block in which only the first process works."""
        return self.agree()

    def share(self, text: str) -> str:
        """Return the text of the first process; collective."""
        return text

    def tell_first(self, text: str) -> Sequence[str]:
        """Return the text of every process, in order, at the first one; collective."""
        return (text,)

    def spread(self, port: Port, initial: Vector, cut: Cut | None) -> Vector:
        """Broadcast the initial parameters (n,) of the first process; collective.

        Args:
            port: of a rank of this process.
            initial: the parameters, at the first process.
            cut: which rank has which part; None if all have all.

        Returns:
            The part of the port's rank.
        """
        return initial

    def hand_out(
        self, replay: Replay | None, role_map: RoleMap, cut: Cut | None
    ) -> Mapping[int, HandedOut]:
        """Return what the roles of this process must repeat, by cell; collective.

        Args:
            replay: at the first process.
            role_map: the ranks of workers and servers.
            cut: which rank has which part of a model; None if all have all, in one cell.
        """
        assert replay is not None
        return {
            number: HandedOut(
                cell.algorithm,
                cell.control_algorithm,
                {i: it.rows for i, it in enumerate(cell.scripts)},
            )
            for number, cell in enumerate(replay.cells)
        }

    def gather(self, stats: Sequence[Stats]) -> Sequence[Stats] | None:
        """Return the stats of all ranks, in order, at the first process; collective.

        Args:
            stats: of the ranks of this process: of a worker, or of each shard of a server.

        Those of ``missing`` workers are empty.
        """
        return stats

    # --- problem and ports ------------------------------------------------------------------

    def problem(self, config: TrainConfig, workers: int) -> Problem:
        """Return the problem of a resolved config, for a job without its own."""
        return supervised_problem(config, workers=workers)

    def deal(self, config: TrainConfig, problem: Problem, workers: int) -> Deal | None:
        """Return the samples of each worker; None in ``--partition iid``."""
        return dealt_out(config, problem, workers=workers)

    def start_of(self, problem: Problem) -> tuple[Vector, int]:
        """Return the initial parameters and n."""
        initial = initial_parameters(problem)
        return initial, initial.size

    def fit(self, config: TrainConfig) -> TrainConfig:
        """Adapt the config of a replay, already checked against the recorded run, to this job."""
        return config

    @abstractmethod
    def ports(self, setup: Setup) -> Mapping[int, Port]:
        """Make the ports of this process, by rank, servers before workers; collective."""

    def links(self, setup: Setup, cut: Cut) -> Mapping[int, StageLinks]:
        """Return by rank the links of this process's workers to other stages; collective."""
        raise ConfigError(f"--parallel {cut.axes} needs several ranks")

    def teams(self, setup: Setup) -> Mapping[int, Port]:
        """Return by rank the second ports of this process's workers; collective.

        These are among the ranks of a learner; or those of the first rank of each copy of a split
        model, with the servers.
        """
        raise AssertionError("only several ranks are a learner of several")

    def log_files(self, setup: Setup) -> tuple[str, ...]:
        """Return by rank the name of its file of events; several may share one.

        Cells of a split model share none: their histories are separate.
        """
        return (EVENTS,) * len(setup.hosts)

    # --- running and ending -----------------------------------------------------------------

    @abstractmethod
    async def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        """Run the roles of this process to their ends; collective.

        Args:
            roles: of this process.
            finished: at the first process, whether every worker's last report has arrived.
        """

    def carry(self, mine: BinaryIO | None, wanted: Mapping[int, Path]) -> Sequence[OutputError]:
        """Copy files of other processes to the first one; collective.

        Args:
            mine: of this process, open, if the first one wants it.
            wanted: at the first process, by rank, where to write its file; empty elsewhere.

        Returns:
            The errors of writing at the first process, after all files have arrived.
        """
        return ()

    def clocks(self) -> Mapping[int, tuple[float, float]]:
        """Compare the clocks of all hosts; collective.

        Returns:
            By the number of a host, the seconds by which its clock is ahead of the first host's,
            and the error bound; empty with one clock.
        """
        return {}

    @abstractmethod
    def now(self) -> float:
        """Return the time in seconds, on the clock of the ports."""

    def bring(self, rank: int, mine: Vector | None, out: Vector | None) -> bool:
        """Copy a vector of a rank to the first process; those two call it in one order.

        Args:
            rank: its owner.
            mine: the vector, at the rank's process.
            out: receives it, at the first process.

        Returns:
            Whether it was copied: nobody waits for a rank that the others continue without.
        """
        assert mine is not None, "the only process has all ranks"
        assert out is not None, "the only process is the first one"
        np.copyto(out, mine)
        return True

    def is_there(self, rank: int) -> bool:
        """Whether the final parameters of a worker of this process are still available."""
        return True

    def everywhere(self, theta: Vector | None, n: int, text: str) -> tuple[Vector | None, str]:
        """Return the final parameters (n,) in every process, and a text; collective.

        Args:
            theta: at the first process.
            n: their number.
            text: at the first process.

        Returns:
            The arguments, if other processes cannot get them.
        """
        return theta, text

    def files(self) -> Mapping[str, str]:
        """Return the text of further files for the run's folder, by name."""
        return {}

    def remarks(self, summary: Summary) -> Sequence[str]:
        """Return the lines printed after the summary's."""
        return ()

    def warn(self, text: str) -> None:
        """Print a line on stderr, from any process and any thread."""
        with contextlib.suppress(OSError, ValueError), PROGRESS.above():
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Free resources; collective, at the end of a run without errors."""
