"""Checkpoints of a running job: what each rank saves, and when.

Every rank saves its own part, and announces it in the folder. The first process commits a
checkpoint once all parts are there (``committing``). A rank waits only for the copy of its state
and, if the step to save is not known from the start, for the agreement on it (``boundaries``).
A thread writes the files, without calls of MPI; a checkpoint waits for the one before it.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from psrt.checkpoint import Checkpoints, Disk, announce, announce_failure, write_part
from psrt.core.errors import CheckpointError, ConfigError, StoppedError
from psrt.core.partition import Span
from psrt.history import EventLog
from psrt.job.background import Background
from psrt.job.boundaries import Boundaries
from psrt.job.committing import Committer, reason_of


class Part(NamedTuple):
    """What one role saves."""

    #: Names its file.
    name: str
    #: Returns its tree, whose arrays are those in use.
    tree: Callable[[], dict[str, Any]]
    #: The spans of the parameters that its arrays by element belong to.
    spans: tuple[Span, ...] = ()
    #: Returns the numbers of the workers that the role has continued without, ascending.
    without: Callable[[], Sequence[int]] = tuple
    #: Returns why there are no more checkpoints with the role; empty while there are.
    over: Callable[[], str] = str
    #: Its event log; None if nothing is recorded.
    log: EventLog | None = None


@dataclass(eq=False, kw_only=True)
class Saver:
    """Saves the roles of one process."""

    checkpoints: Checkpoints
    #: Makes the file operations.
    disk: Disk
    #: Agrees on checkpoints that are not known from the start.
    boundaries: Boundaries
    #: Steps from one checkpoint to the next; None if they are not known from the start.
    every: int | None
    #: Whether workers park, each at its own step.
    parks: bool = False
    #: The number of times that the run was resumed before.
    attempt: int = 0
    #: Whether files are written while the roles continue.
    threaded: bool = True
    #: Commits checkpoints, at the first process.
    committer: Committer | None = None
    #: Whether a role here has reached a stop that was asked for.
    stops: bool = field(default=False, init=False)
    #: The newest step whose checkpoint is being written, or was made.
    _step: int = field(default=-1, init=False)
    #: By part, the step of its newest checkpoint, and the arrays of the copy.
    _saved: dict[str, int] = field(default_factory=dict, init=False)
    _copies: dict[str, Any] = field(default_factory=dict, init=False)
    #: Parts that are in no checkpoint any more.
    _out: set[str] = field(default_factory=set, init=False)
    #: Commits the checkpoints of the others, once the role of this process is done.
    _follower: threading.Thread | None = field(default=None, init=False)
    #: The former handler of SIGUSR1; None while it is not replaced.
    _before: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        #: The threads that write files, and that wait for those of others; none without threads.
        #: Two, since the awaited file may be one that is written here.
        self._writing = Background() if self.threaded else None
        self._committing = Background() if self.threaded else None

    def since(self, name: str, step: int) -> None:
        """Note that a part starts at a step, whether or not there is a checkpoint of it."""
        self._saved[name] = step

    def check(self) -> None:
        """Check that this process sees the folder that the first one has made.

        Raises:
            ConfigError: if not.
        """
        folder = self.checkpoints.folder
        if not folder.is_dir():
            raise ConfigError(
                f"--checkpoint-every needs an --out that every rank can write to: {folder} is not "
                f"there on {socket.gethostname()}"
            )

    async def at(self, part: Part, step: int) -> bool:
        """Save a part if it is due; called when its role is at a consistent cut.

        Args:
            part: of the role.
            step: the role's step. If workers park, the step of the checkpoint that they park for,
                as ``Params.cut``: negative if the run ends with it.

        Returns:
            Whether the run ends here.

        Raises:
            OutputError: at the process that commits, if too many checkpoints have failed; or if
                there is no agreement on a step.
        """
        is_out, before = await self._is_out(part), self._saved.get(part.name, 0)
        if self.parks:
            step, stops = abs(step), step < 0
            # A worker that resumes from a checkpoint parks for it once more.
            is_due = not is_out and step != before
        elif is_out:
            return False
        else:
            agreed = self.boundaries.at(step, before)
            stops = agreed is not None and agreed.stops
            by_steps = self.every is not None and step // self.every != before // self.every
            is_due = by_steps or agreed is not None
        if is_due:
            self._write(part, step)
        else:
            self._tell()
        self.stops |= stops
        return stops

    async def _is_out(self, part: Part) -> bool:
        """Return whether a part is in no checkpoint any more, and print so once."""
        if not (why := part.over()):
            return False
        if part.name not in self._out:
            self._out.add(part.name)
            await self.ended(part, why=why)
            if self.committer is not None:
                self.committer.without(f"{part.name} {why}")
        self._tell()
        return True

    def _tell(self) -> None:
        """Print what went wrong since the last call, at the process that commits."""
        if self.committer is not None and self.committer.has_news:
            self.committer.tell()

    def _write(self, part: Part, step: int) -> None:
        """Copy the present state of a role, and write it."""
        committer = self.committer
        self._saved[part.name] = step
        if is_first := step != self._step:
            self.finish()
            self._step = step
        copy, without = self._copy(part), tuple(part.without())
        if self._writing is None or self._committing is None:
            self._save(part, copy, without, step)
            if committer is not None:
                committer.look(step, waits=False)
            return
        # After the copy: while the writing thread runs Python code, this one cannot.
        self._writing.do(partial(self._save, part, copy, without, step))
        if committer is not None and is_first:
            self._committing.do(partial(committer.look, step, waits=True))

    def _copy(self, part: Part) -> dict[str, Any]:
        """Return a copy of the present state of a role, in the memory of the copy before."""
        copy = self._copies[part.name] = copied(part.tree(), self._copies.get(part.name))
        return copy

    def warm(self, part: Part) -> None:
        """Allocate the memory of a part's copy before training starts.

        The system allocates pages on the first write, which takes many times as long as a copy into
        existing pages.
        """
        if self.threaded:
            self._copy(part)

    async def ended(
        self, part: Part, *, stays: bool = False, why: str = "has done all its steps"
    ) -> None:
        """Report that a role is done while others may continue.

        Args:
            part: of the role.
            stays: whether its present state is part of all later checkpoints; otherwise there are
                no later ones.
            why: the reason, to follow its name.
        """
        if stays and (reason := part.over()):
            stays, why = False, reason
        disk, (name, tree, spans, *_) = self.disk, part
        # Its part of the newest checkpoint comes first: that has the state as it was then. Errors
        # are reported at the end: the steps are done, and their result is not lost.
        if stays:
            self._settle()
        else:
            self._written()
        try:
            folder = self.checkpoints.done(self.attempt)
            disk.make_folder(folder)
            if stays:
                announce(disk, folder, write_part(disk, folder, name, tree(), spans))
                if self.committer is not None and not self.threaded:
                    self.committer.look_at_all()
            else:
                announce_failure(disk, folder, name, why)
        except (OSError, CheckpointError):
            pass  # the first process misses its part
        if stays and self.committer is not None and self.threaded:
            self._follower = threading.Thread(target=self.committer.follow, daemon=True)
            self._follower.start()

    def _written(self) -> None:
        """Wait until the parts of this process are written, but not for those of others."""
        if self._writing is not None:
            self._writing.finish()

    def finish(self) -> None:
        """Wait until this process's parts of the newest checkpoint are written.

        Raises:
            OutputError: at the process that commits, if too many have failed.
        """
        self._settle()
        if self.committer is not None:
            self.committer.tell()

    def _settle(self) -> None:
        for thread in (self._writing, self._committing):
            if thread is not None:
                thread.finish()

    def begin(self) -> None:
        """Make SIGUSR1 ask to save and stop, from now on."""
        if self.threaded:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and signal.getsignal(signal.SIGUSR1) is not signal.SIG_IGN:
                self._before = signal.signal(signal.SIGUSR1, self._asked)

    def _asked(self, *_: object) -> None:
        self.boundaries.ask(stop=True)

    def stopped(self, run: object) -> StoppedError:
        """Return the error to raise after a stop, at the process that commits."""
        newest, _ = self.checkpoints.newest()
        where = "there is no checkpoint"
        if newest is not None:
            where = f"--resume continues from step {newest.manifest.step}, {newest.path}"
        return StoppedError(f"stopped as asked; {where}", run)

    def close(self) -> None:
        """Clean up, once all processes have finished."""
        self.boundaries.close()
        if self._before is not None:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # in effect while Python and MPI end, too
        for thread in (self._writing, self._committing):
            if thread is not None:
                thread.close()
        if self.committer is not None:
            self.committer.over.set()
            if self._follower is not None:
                self._follower.join()
            self.committer.close()

    def give_back_signal(self) -> None:
        """Restore the handler of SIGUSR1, after a run that it did not stop.

        If it did stop the run, another one must have no effect: a batch system may send it to every
        rank and to their launcher, which passes it on.
        """
        if self._before is not None:
            signal.signal(signal.SIGUSR1, self._before)

    def _save(self, part: Part, tree: dict[str, Any], without: tuple[int, ...], step: int) -> None:
        disk, name, spans, log = self.disk, part.name, part.spans, part.log
        try:
            folder = self.checkpoints.begin(step, self.attempt)
            try:
                if log is not None:
                    log.sync()
                entry = write_part(disk, folder, name, tree, spans)
                announce(disk, folder, entry._replace(without=without))
            except (OSError, CheckpointError) as error:
                announce_failure(disk, folder, name, reason_of(error))
        except (OSError, CheckpointError):
            pass  # a disk error: the first process will miss this part


def copied(tree: dict[str, Any], into: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a copy of a tree, in the arrays of an earlier copy where they fit."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        before = None if into is None else into.get(name)
        if isinstance(value, dict):
            found[name] = copied(value, before if isinstance(before, dict) else None)
        elif isinstance(value, np.ndarray):
            kind = (value.shape, value.dtype)
            fits = isinstance(before, np.ndarray) and (before.shape, before.dtype) == kind
            copy = before if fits else np.empty_like(value, order="C")
            assert copy is not None, "the copy has the same kind"
            np.copyto(copy, value)
            found[name] = copy
        else:
            found[name] = list(value) if isinstance(value, list) else value
    return found
