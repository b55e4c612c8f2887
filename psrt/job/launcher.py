"""What a job asks of whatever brings its ranks together: one process, MPI, or virtual time.

A job runs in one or more processes, each with some of its ranks: all of them where there is one
process, and one rank each over MPI. ``session`` tells a run's life once, by these few methods; the
defaults are those of a job that is one process.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from psrt.arrays import Vector
from psrt.config import TrainConfig
from psrt.history.folder import EVENTS
from psrt.history.replay import Script
from psrt.job.problems import initial_parameters, supervised_problem
from psrt.job.replay import Replay
from psrt.messages import Report
from psrt.report import Summary
from psrt.runtime.problem import Problem
from psrt.runtime.server import Server
from psrt.runtime.worker import Worker
from psrt.stats import Stats
from psrt.transport.port import Port, RoleMap

if TYPE_CHECKING:
    from psrt.job.setup import Setup

#: The roles of this process by rank, servers before workers.
Roles = Mapping[int, Server | Worker]


class Launcher(ABC):
    """One process of a job. Methods marked collective are called by all processes, in one order."""

    #: Whether this process reads files, writes and speaks; exactly one does.
    first = True
    #: Whether there are other processes.
    several = False
    #: Ranks that were started; None where a config may have as many as it asks for.
    ranks: int | None = None
    #: Name and version of the MPI library; empty without one.
    library = ""
    #: Whether time is virtual, and whether anything is computed.
    simulated, numerics = False, True
    #: Workers that did not come to their end.
    died = 0
    #: Called at the first process with every report of a worker.
    on_report: Callable[[Report], None] = staticmethod(lambda _: None)
    #: Called at the first process with the number of a worker that died.
    on_crash: Callable[[int], None] = staticmethod(lambda _: None)

    # --- who takes part ---------------------------------------------------------------------

    @abstractmethod
    def ranks_of(self, config: TrainConfig) -> int:
        """Return the number of ranks that a config, not resolved, gets."""

    @property
    def started_as(self) -> Sequence[int]:
        """What each rank was started as, see ``roles``; empty where nobody said."""
        return ()

    def hosts(self, config: TrainConfig) -> Sequence[int]:
        """Return the number of the host of each rank of a config, resolved."""
        return (0,)

    def here(self, ranks: int) -> Sequence[int]:
        """Return the ranks of this process."""
        return range(ranks)

    # --- how processes agree ----------------------------------------------------------------

    def agree(self) -> contextlib.AbstractContextManager[None]:
        """Let all processes leave a block the same way, by an error of any of them; collective."""
        return contextlib.nullcontext()

    def concluding(self) -> contextlib.AbstractContextManager[None]:
        """As ``agree``, for a block in which the first process alone may work for long."""
        return self.agree()

    def share(self, text: str) -> str:
        """Return the text of the first process; collective."""
        return text

    def spread(self, port: Port, initial: Vector) -> Vector:
        """Return the initial parameters (n,), which the first process gives; collective."""
        return initial

    def hand_out(
        self, replay: Replay | None, role_map: RoleMap
    ) -> tuple[str | None, Mapping[int, Script]]:
        """Return what the roles of this process have to repeat; collective.

        Args:
            replay: at the first process.
            role_map: who is who.

        Returns:
            The all-reduce of the control values where ``auto`` chose it, and scripts by shard.
        """
        assert replay is not None
        return replay.extras, dict(enumerate(replay.scripts))

    def gather(self, stats: Sequence[Stats]) -> Sequence[Stats] | None:
        """Return what all ranks counted, in their order, at the first process; collective."""
        return stats

    # --- what is trained, and over what -----------------------------------------------------

    def problem(self, config: TrainConfig, workers: int) -> Problem:
        """Return what a config, resolved, trains where nobody brought a problem."""
        return supervised_problem(config, workers=workers)

    def start_of(self, problem: Problem) -> tuple[Vector, int]:
        """Return the initial parameters and n."""
        initial = initial_parameters(problem)
        return initial, initial.size

    def fit(self, config: TrainConfig) -> TrainConfig:
        """Return the config of a replay, found to fit the recorded run, as it can be run here."""
        return config

    @abstractmethod
    def ports(self, setup: Setup) -> Mapping[int, Port]:
        """Make the ports of this process, by rank, servers before workers; collective."""

    def log_file(self) -> str:
        """Return the name of this process's file of events."""
        return EVENTS

    def log_files(self, ranks: int) -> tuple[str, ...]:
        """Return the names of all processes' files of events."""
        return (EVENTS,)

    # --- running and ending -----------------------------------------------------------------

    @abstractmethod
    def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        """Run the roles of this process to their ends; collective.

        Args:
            roles: of this process.
            finished: tells at the first process whether every worker's last report is there.
        """

    @abstractmethod
    def now(self) -> float:
        """Return the time in seconds, on the clock of the ports."""

    @abstractmethod
    def theta(self, roles: Roles) -> Vector | None:
        """Return the final parameters (n,) at the first process; collective."""

    def files(self) -> Mapping[str, str]:
        """Return texts to be kept beside the run's usual files, by name."""
        return {}

    def remarks(self, summary: Summary) -> Sequence[str]:
        """Return the lines to be said after the summary's."""
        return ()

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Free what was made; collective, at the end of a run that nothing went wrong with."""
