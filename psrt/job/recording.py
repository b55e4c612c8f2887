"""The files that a run writes while it runs: its folder, its history, its metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from psrt.config import to_toml
from psrt.core.errors import ConfigError, OutputError, PsrtError, line_of, status_of
from psrt.core.stats import Stats
from psrt.faults.parent import parent_of_this
from psrt.faults.vitals import HERE, nothing, unnoted
from psrt.history import EventLog, Header
from psrt.history.folder import FOLDER, mark_of, write_header
from psrt.history.folds.record import Record
from psrt.history.log import Owner
from psrt.history.reading import kept_of, read_header
from psrt.job.hooks import Hooks
from psrt.job.last_events import LastEvents
from psrt.job.launcher import Launcher, Roles, shard_servers
from psrt.job.provenance import cell_fields, history_header
from psrt.job.result import Say
from psrt.job.setup import Setup
from psrt.report.end import EndFile
from psrt.report.files import ROSTER, OutputFolder
from psrt.report.metrics_writer import MetricsWriter
from psrt.runtime.event_recorder import ShardEventRecorder, WorkerEventRecorder
from psrt.runtime.strategies.base import ReducePlan
from psrt.runtime.worker import Worker

#: Seconds in the history from the last event before a checkpoint to its resumption.
_PAUSE_S = 1e-6


class Recording:
    """The files of a run in this process, opened once its config is known to fit. Collective.

    A context manager: a run that fails or is interrupted leaves a history marked unfinished.
    """

    def __init__(self, launcher: Launcher, setup: Setup, say: Say, hooks: Hooks) -> None:
        """Make the folder, and open this process's files in it.

        Raises:
            ConfigError: on every rank, if one of them cannot; the folder is then removed again.
        """
        self._launcher, self._setup = launcher, setup
        HERE.note_end = unnoted  # it may be of an earlier run
        #: The run's folder, at the first process; None writes nothing.
        self.folder: OutputFolder | None = None
        #: Rank → the name of its file of events.
        self._names = launcher.log_files(setup)
        #: The events of this process, by the name of their file; empty records none.
        self.logs: dict[str, EventLog] = {}
        #: Receives the workers' reports, at the first process.
        self.recorder: MetricsWriter | None = None
        #: Whether training may have started; until then an earlier run in the folder is kept.
        self._begun = False
        #: The events, if this process does not see the folder: a file without a name, which
        #: vanishes with the process.
        self._own: BinaryIO | None = None
        #: At the first process, rank → the path for such a file of another process.
        self._wanted: dict[int, Path] = {}
        #: The start of the run, on this process's clock; and the clocks of its hosts, see
        #: ``Header``.
        self._origin = 0.0
        self._clocks: tuple[tuple[int, float, float, float], ...] = ()
        #: The header as it was written, at the first process.
        self._header: Header | None = None
        #: The starts of the attempts to resume this run, in seconds since its start.
        self._resumed: tuple[float, ...] = ()
        #: The last events, if there is no history; None keeps none.
        self._last: LastEvents | None = None
        #: The file in which an early end is noted; None if there is none, or before training.
        self._end: EndFile | None = None
        #: Why the history could not be completed.
        self._failed: list[OutputError] = []
        config = setup.config
        try:
            with launcher.agree():
                if launcher.first and config.out is not None:
                    self.folder = _prepared(setup)
            if config.record:
                self._open_log(say)
            elif config.last_events != 0 and not launcher.simulated:
                self._last = LastEvents(launcher, setup, self._names)
            with launcher.agree():
                if launcher.first:
                    earlier: list[Record] = []
                    if self.folder is not None and setup.resumption is not None:
                        earlier = self.folder.earlier(
                            setup.resumption.reported(config),
                            setup.resumption.other_than(self.folder.path),
                        )
                    self.recorder = MetricsWriter(
                        len(setup.role_map.workers),
                        log_every=config.log_every,
                        folder=self.folder,
                        say=say,
                        progress=launcher.several,
                        earlier=earlier,
                        on_record=hooks.record,
                        on_report=hooks.report,
                    )
        except BaseException:
            self._undo()
            raise

    def _open_log(self, say: Say) -> None:
        """Open this process's file of events, in the run's folder if it sees it; collective."""
        launcher = self._launcher
        clocks = launcher.clocks()
        # The start of the run on this host's clock, so that all times are on the first host's.
        origin = float(launcher.share(repr(launcher.now())))
        host = self._setup.hosts[launcher.here(len(self._setup.hosts))[0]]
        self._origin = origin = origin + clocks.get(host, (0.0, 0.0))[0]
        self._add_clocks(clocks, 0.0)
        history = Path(self._setup.config.out or "").absolute() / FOLDER
        mark = Path()
        with launcher.agree():
            if launcher.first:
                mark = mark_of(history)
        mark = Path(launcher.share(str(mark)))
        with launcher.agree():
            for name in dict.fromkeys(self._names[it] for it in launcher.here(len(self._names))):
                self.logs[name] = self._opened(history / name, origin, sees=mark.exists())
        blind = launcher.tell_first(socket.gethostname() if self._own is not None else "")
        with launcher.agree():
            if launcher.first:
                mark.unlink()
                self._await_files(history, blind, say)

    def _add_clocks(self, clocks: Mapping[int, tuple[float, float]], at: float) -> None:
        """Keep clock offsets that were measured ``at`` seconds after the start of the run."""
        found = ((host, at, ahead, error) for host, (ahead, error) in clocks.items())
        self._clocks = (*self._clocks, *found)

    def _opened(self, path: Path, origin: float, *, sees: bool) -> EventLog:
        """Open a file of events at ``path``, or else a temporary one.

        Args:
            path: in the history, as the first process sees it.
            origin: the time at the beginning of the run.
            sees: whether this process sees that folder, rather than another one of the same path.
        """
        if sees:
            try:
                counts = self._setup.config.checkpoint_every is not None
                return EventLog(path, origin=origin, counts=counts)
            except ConfigError:
                if self._launcher.first:
                    raise
        where = f"a temporary file in {tempfile.gettempdir()}"
        try:
            self._own = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``end``
            file = os.fdopen(os.dup(self._own.fileno()), "wb")
        except OSError as error:
            raise ConfigError(f"cannot make {where}: {error.strerror}") from error
        return EventLog(where, origin=origin, file=file)

    def log_of(self, rank: int) -> EventLog | None:
        """Return the event log of a rank of this process; None if nothing is recorded."""
        return self.logs[self._names[rank]] if self.logs else None

    @property
    def ring(self) -> EventLog | None:
        """The last events of this process, where there is no history; None keeps none."""
        return None if self._last is None else self._last.ring

    def _await_files(self, history: Path, blind: Sequence[str], say: Say) -> None:
        """Prepare for the files of processes that do not see the folder.

        Args:
            history: the folder.
            blind: the host of each of them, by rank; empty for one that sees it.
            say: called with a line about them.
        """
        names = self._names
        self._wanted = {rank: history / names[rank] for rank, host in enumerate(blind) if host}
        if not self._wanted:
            return
        hosts = ", ".join(dict.fromkeys(filter(None, blind)))
        if self._setup.config.gather is False:
            raise ConfigError(
                f"--no-gather needs an --out that every rank can write to: {history} is not "
                f"there, or cannot be written to, on {hosts} (rank "
                f"{', '.join(map(str, self._wanted))})"
            )
        for path in self._wanted.values():
            path.touch(exist_ok=False)  # so that an interrupted run is recognized
        say(f"history: events of {hosts} are copied to {history} at the end of the run")

    def _undo(self) -> None:
        """Leave the folder as it was found."""
        self._cut_off()
        if self.folder is not None:
            self.folder.discard()
            self.folder.release()

    def release(self) -> None:
        """Release the folder and the memory for other runs: nothing more is written."""
        if self._last is not None:
            self._last.ring.close()
        if self.folder is not None:
            self.folder.release()

    def go_on(self, recorded: Mapping[int, Mapping[Owner, int]]) -> None:
        """Take over the history of the run that this one resumes; collective.

        Its events are in the files as if it had not stopped, and time continues from the last one.

        Args:
            recorded: by rank of this process, the number of events of each owner; empty if there is
                no such run, or it was not recorded.
        """
        launcher, setup = self._launcher, self._setup
        if setup.resumption is None or not setup.config.record:
            return
        latest = 0.0
        with launcher.agree():
            for rank, most in recorded.items():
                log, name = self.logs[self._names[rank]], self._names[rank]
                for owner, events in kept_of(self._earlier() / name, most):
                    if len(events):
                        log.keep(events, owner)
                        latest = max(latest, float(events["time"][-1]))
                log.flush()
        found = launcher.tell_first(repr(latest))
        latest = float(launcher.share(repr(max(map(float, found), default=0.0))))
        # Strictly between, so that times tell events before from events after.
        self._resumed = (latest + _PAUSE_S / 2,)
        latest += _PAUSE_S
        self._origin -= latest
        for log in self.logs.values():
            log.origin -= latest
        self._clocks = tuple(
            (host, at + latest, ahead, error) for host, at, ahead, error in self._clocks
        )

    def _earlier(self) -> Path:
        """Return the history of the run that this one resumes."""
        resumption, out = self._setup.resumption, Path(self._setup.config.out or "")
        assert resumption is not None, "the run resumes another"
        run = resumption.other_than(out)
        return OutputFolder(out).set_aside(FOLDER) if run is None else run / FOLDER

    def begin(self, plan: ReducePlan | None, roles: Roles) -> None:
        """Write the history's header.

        Args:
            plan: how all workers sum; None if they do not.
            roles: of this process, which have not begun.
        """
        launcher, setup = self._launcher, self._setup
        cells = self._cells(roles) if self.logs else ()
        with launcher.agree():
            self._write_header(plan, cells)
            roster = launcher.roster()
            if roster and self.folder is not None:
                self.folder.write_text(ROSTER, roster)
        self._begun = True
        if self._last is not None:
            HERE.last_words = self._last.begin
        if self.folder is not None:
            self.folder.commit()
        if setup.config.out is not None:
            out = self.folder.path if self.folder is not None else Path(setup.config.out).absolute()
            self._end = EndFile(str(out), to_toml(setup.config))
            HERE.note_end = self._end.write
            parent = parent_of_this()
            if self.folder is not None and parent is not None:
                parent.runs(self._end.out, self._end.config)

    def ended_by(self, error: BaseException) -> None:
        """Note an error that ends the run, unless the watch over its ranks does."""
        agreed = isinstance(error, PsrtError) and error.agreed
        if self._end is None or self.folder is None or isinstance(error, GeneratorExit):
            return
        if agreed or not self._launcher.several:
            text = line_of(error) or f"{type(error).__name__}: {error}"
            self._end.write(text, status_of(error))

    def _cells(self, roles: Roles) -> tuple[dict[str, Any], ...]:
        """Return the header fields of a split model's cells, at the first process."""
        setup, launcher = self._setup, self._launcher
        if setup.cut is None:
            return ()
        told: dict[int, Any] = {}
        for number, cell in enumerate(setup.cut.cells):
            first = roles.get(cell.first_worker)
            if isinstance(first, Worker):
                told[number] = cell_fields(
                    setup.config,
                    cell,
                    initial=first.theta,
                    problem=first.problem,
                    files=tuple(dict.fromkeys(self._names[rank] for rank in cell.ranks)),
                    plan=first.strategy.plan,
                )
        found: dict[str, Any] = {}
        for text in launcher.tell_first(json.dumps(told)):
            found |= json.loads(text)
        return tuple(found[number] for number in sorted(found, key=int))

    def _write_header(self, plan: ReducePlan | None, cells: tuple[dict[str, Any], ...]) -> None:
        launcher, setup = self._launcher, self._setup
        if self.logs and self.folder is not None:
            self._header = history_header(
                setup.config,
                setup.role_map,
                initial=np.asarray(setup.initial),
                problem=setup.problem,
                files=tuple(dict.fromkeys(self._names)),
                plan=plan,
                deal=setup.deal,
                topology=setup.topology,
                hosts=setup.hosts,
                clocks=self._clocks,
                simulated=launcher.simulated,
                numerics=launcher.numerics,
                disturbed=launcher.disturbed,
                # With a split model a crash ends the job, and its history.
                crashes=() if setup.cut is not None else tuple(launcher.crashes),
                cells=cells,
                tuned=setup.tuned,
            )
            if self._resumed:
                self._header = self._going_on(self._header)
            write_header(self.folder.history, self._header)

    def _going_on(self, header: Header) -> Header:
        """Return the header of a run that resumes another."""
        before = read_header(self._earlier())
        (now,) = self._resumed
        earlier = [it for it in before.resumed if it < now]
        clocks = [it for it in before.clocks if it[1] < now] if before.hosts == header.hosts else []
        cells = [dict(it) for it in header.cells]
        for cell, its in zip(cells, before.cells, strict=True):
            cell["initial_sha256"] = its["initial_sha256"]
        return dataclasses.replace(
            header,
            cells=tuple(cells),
            initial_sha256=before.initial_sha256,
            resumed=(*earlier, now),
            clocks=(*clocks, *header.clocks),
        )

    def leave_out(self, ranks: Sequence[int]) -> list[OutputError]:
        """Record in the header that workers are missing, whose events may end anywhere.

        Args:
            ranks: of these workers.

        Returns:
            The errors of writing.
        """
        fields: dict[str, Any] = {}
        if ranks:
            names, workers = self._names, self._setup.role_map.workers
            cut_off = {names[rank] for rank in ranks}
            fields["crashes"] = tuple(it for it, rank in enumerate(workers) if rank in ranks)
            fields["files"] = tuple(name for name in names if name not in cut_off)
        if changes := _changes(self._launcher.left_out):
            fields["left_out"] = changes
        if not fields or self._header is None:
            return []
        try:
            self._amend(**fields)
        except OutputError as error:
            return [error]
        return []

    def stopped_at(self, stats: Sequence[Stats], failed: list[OutputError]) -> None:
        """Record in the header where each worker ended, if the run was stopped early.

        Args:
            stats: of all ranks.
            failed: an error of writing is added.
        """
        workers = sorted((it for it in stats if it.worker >= 0), key=lambda it: it.worker)
        if self._header is not None:
            try:
                self._amend(stopped=tuple(it.steps for it in workers))
            except OutputError as error:
                failed.append(error)

    def _amend(self, **fields: Any) -> None:
        """Write the header again, with what became known during the run.

        Raises:
            OutputError: if it cannot be written.
        """
        assert self._header is not None, "it was written when the run started"
        assert self.folder is not None, "it was made when the run started"
        self._header = dataclasses.replace(self._header, **fields)
        try:
            write_header(self.folder.history, self._header)
        except ConfigError as error:
            raise OutputError(str(error)) from error

    @property
    def recorded_step(self) -> int:
        """The step of the newest record, at the first process; −1 where there is none."""
        return self.recorder.records[-1].step if self.recorder and self.recorder.records else -1

    def end(self, roles: Roles, *, is_whole: bool = True) -> None:
        """Record the final versions and close the history.

        Args:
            roles: of this process.
            is_whole: whether the run has finished, as far as this process knows. The history of a
                stopped run is unfinished until it is resumed: one process that says so is enough.
        """
        role_map, now = self._setup.role_map, self._launcher.now()
        if not self.logs:
            return
        for rank, role in roles.items():
            for it in shard_servers([role]):
                log = self.logs[self._names[rank]]
                ShardEventRecorder(log, it.number).saved(it.shard.version, now)
        cut, firsts = self._setup.cut, role_map.workers[:1]
        if cut is not None:
            firsts = tuple(cell.first_worker for cell in cut.cells)
        for rank in () if role_map.servers else firsts:
            first = roles.get(rank)
            if isinstance(first, Worker):
                log = self.logs[self._names[rank]]
                WorkerEventRecorder(log, 0).saved(first.strategy.updates, now)
        self._add_clocks(self._launcher.clocks(), now - self._origin)
        try:
            for log in self.logs.values():
                if is_whole:
                    log.close()
                else:
                    log.abandon()
            if self._header is not None and self._clocks:
                self._amend(clocks=self._clocks)
        except OutputError as error:  # a full disk, on which the model may still fit
            self._failed.append(error)
        self._failed += self._launcher.carry(self._own, self._wanted)
        if self._own is not None:
            self._own.close()

    @property
    def failed(self) -> list[OutputError]:
        """The errors of writing in this process during the run."""
        metrics = None if self.recorder is None else self.recorder.failed
        return self._failed + ([] if metrics is None else [metrics])

    def _cut_off(self) -> None:
        """Close the files of a run that did not finish."""
        for log in self.logs.values():
            with contextlib.suppress(PsrtError, OSError):  # a full disk
                log.abandon()
        if self._own is not None:
            self._own.close()
        if self.recorder is not None:
            self.recorder.close()

    @contextlib.contextmanager
    def concluding(self) -> Iterator[None]:
        """Keep the last events ready: while this rank waits for the end, another may fail."""
        if self._last is not None:
            HERE.last_words = self._last.begin
        try:
            yield
        except BaseException as error:
            agreed = isinstance(error, PsrtError) and error.agreed
            if not (agreed or isinstance(error, OutputError)):  # these concern a result, not a step
                self._say_last(error)
            raise
        finally:
            HERE.last_words = nothing

    def _say_last(self, error: BaseException) -> None:
        """Write the last events, if there are any, before an error ends the job."""
        # A user's own loop that is closed early ends the job, but not by an error.
        if self._last is not None and not isinstance(error, GeneratorExit):
            self._last.write()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        HERE.last_words = nothing
        if error is not None:
            if self._begun:
                self._cut_off()
                self._say_last(error)
            else:
                self._undo()
        elif self.recorder is not None:
            self.recorder.close()


def _changes(left_out: Mapping[int, Collection[int]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the first epoch of each set of workers that get no samples.

    >>> _changes({0: (), 1: (2,), 2: (2,), 3: (1, 2)})
    ((1, (2,)), (3, (1, 2)))
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    before: tuple[int, ...] = ()
    for epoch in sorted(left_out):
        workers = tuple(sorted(left_out[epoch]))
        if workers != before:
            found.append((epoch, workers))
            before = workers
    return tuple(found)


def _prepared(setup: Setup) -> OutputFolder:
    """Return the run's folder with ``config.toml`` in it."""
    config = setup.config
    folder = setup.folder or OutputFolder(config.out or "")
    resumption = setup.resumption
    goes_on = resumption is not None and resumption.is_of(folder.path)
    try:
        folder.prepare(
            to_toml(config), overwrite=config.overwrite, record=config.record, resumes=goes_on
        )
    except ConfigError:
        folder.release()
        raise
    return folder
