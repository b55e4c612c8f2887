"""The files that a run writes while it runs: its folder, its history, its metrics."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType

import numpy as np

from psrt.config import to_toml
from psrt.errors import ConfigError, OutputError, PsrtError
from psrt.history import EventLog
from psrt.history.folder import FOLDER, write_header
from psrt.job.launcher import Launcher, Roles
from psrt.job.provenance import history_header
from psrt.job.result import Say
from psrt.job.setup import Setup
from psrt.report.files import OutputFolder
from psrt.report.metrics_writer import MetricsWriter
from psrt.runtime.event_recorder import ShardEventRecorder, WorkerEventRecorder
from psrt.runtime.server import Server
from psrt.runtime.strategies.base import ReducePlan


class Recording:
    """The files of a run in this process, opened once its config is known to fit. Collective.

    A context manager: a run that fails or is interrupted leaves a history marked unfinished.
    """

    def __init__(self, launcher: Launcher, setup: Setup, say: Say) -> None:
        """Make the folder, and open this process's files in it.

        Raises:
            ConfigError: on every rank, if one of them cannot; the folder is then removed again.
        """
        self._launcher, self._setup = launcher, setup
        #: The run's folder, at the first process; None writes nothing.
        self.folder: OutputFolder | None = None
        #: The events of this process; None records none.
        self.log: EventLog | None = None
        #: Receives the workers' reports, at the first process.
        self.recorder: MetricsWriter | None = None
        #: Whether training may have begun; until then an earlier run in the folder is kept.
        self._begun = False
        #: Why the history could not be completed.
        self._failed: OutputError | None = None
        config = setup.config
        try:
            with launcher.agree():
                if launcher.first and config.out is not None:
                    self.folder = _prepared(setup)
            origin = float(launcher.share(repr(launcher.now())))
            with launcher.agree():
                if config.record:
                    self.log = self._opened(origin)
                if launcher.first:
                    self.recorder = MetricsWriter(
                        len(setup.role_map.workers),
                        log_every=config.log_every,
                        folder=self.folder,
                        say=say,
                    )
        except BaseException:
            self._undo()
            raise

    def _opened(self, origin: float) -> EventLog:
        launcher = self._launcher
        path = Path(self._setup.config.out or "") / FOLDER / launcher.log_file()
        try:
            return EventLog(path, origin=origin)
        except ConfigError as error:
            if not launcher.several:
                raise
            rank = launcher.here(self._setup.role_map.size)[0]
            raise ConfigError(
                f"--record needs an --out that every rank can write to: rank {rank} {error}"
            ) from None

    def _undo(self) -> None:
        """Leave the folder as it was found."""
        self._cut_off()
        if self.folder is not None:
            self.folder.discard()

    def begin(self, plan: ReducePlan | None) -> None:
        """Write the history's header; ``plan`` says how all workers sum."""
        launcher = self._launcher
        with launcher.agree():
            self._write_header(plan)
        self._begun = True
        if self.folder is not None:
            self.folder.commit()

    def _write_header(self, plan: ReducePlan | None) -> None:
        launcher, setup = self._launcher, self._setup
        if self.log is not None and self.folder is not None:
            header = history_header(
                setup.config,
                setup.role_map,
                initial=np.asarray(setup.initial),
                problem=setup.problem,
                files=launcher.log_files(setup.role_map.size),
                plan=plan,
                hosts=setup.hosts,
                simulated=launcher.simulated,
                numerics=launcher.numerics,
                crashes=tuple(launcher.crashes),
            )
            write_header(self.folder.history, header)

    def end(self, roles: Roles) -> None:
        """Record the final versions and close the history."""
        log, role_map, now = self.log, self._setup.role_map, self._launcher.now()
        if log is None:
            return
        for rank, role in roles.items():
            if isinstance(role, Server):
                ShardEventRecorder(log, role_map.servers.index(rank)).saved(role.shard.version, now)
            elif not role_map.servers and rank == role_map.workers[0]:
                WorkerEventRecorder(log, 0).saved(role.strategy.updates, now)
        try:
            log.close()
        except ConfigError as error:  # a full disk; the model may still fit
            self._failed = OutputError(str(error))

    @property
    def failed(self) -> list[OutputError]:
        """The errors of writing in this process during the run."""
        found = [self._failed, None if self.recorder is None else self.recorder.failed]
        return [error for error in found if error is not None]

    def _cut_off(self) -> None:
        """Close the files of a run that did not finish."""
        if self.log is not None:
            with contextlib.suppress(PsrtError, OSError):  # of a full disk
                self.log.abandon()
        if self.recorder is not None:
            self.recorder.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            if self._begun:
                self._cut_off()
            else:
                self._undo()
        elif self.recorder is not None:
            self.recorder.close()


def _prepared(setup: Setup) -> OutputFolder:
    """Return the run's folder with ``config.toml`` in it."""
    config = setup.config
    folder = OutputFolder(config.out or "")
    folder.prepare(to_toml(config), overwrite=config.overwrite, record=config.record)
    return folder
