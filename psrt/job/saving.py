"""Checkpoints of a run that goes on: what is saved when, and by whom.

Every rank saves its own part, and the ranks meet in the folder: the first process commits a
checkpoint once all parts are there. So saving sends nothing, and a rank waits only to copy what it
has. Files are written by a thread, which makes no call of MPI; a checkpoint waits for the one
before it.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psrt.checkpoint import (
    Checkpoints,
    Disk,
    Manifest,
    PartEntry,
    announce,
    announce_failure,
    announced,
    write_part,
)
from psrt.errors import CheckpointError, ConfigError, OutputError, StoppedError
from psrt.history import EventLog
from psrt.job.background import Background
from psrt.job.caller import Caller
from psrt.job.initiator import Initiator
from psrt.job.meeting import Meeting
from psrt.job.resuming import is_shard
from psrt.partition import Span

#: Checkpoints in a row that may fail before the run ends.
MOST_FAILURES = 3
#: Seconds between two looks for the parts of others.
_LOOK_S = 0.01


class Part(NamedTuple):
    """What one role saves."""

    #: Names its file.
    name: str
    #: Returns its tree, whose arrays are those in use.
    tree: Callable[[], dict[str, Any]]
    #: The spans of the parameters that its arrays by element are of.
    spans: tuple[Span, ...] = ()
    #: Returns the numbers of the workers that the role has gone on without, ascending.
    without: Callable[[], Sequence[int]] = tuple
    #: Returns why there are no more checkpoints with the role; empty while there are.
    over: Callable[[], str] = str
    #: Where its events go, as many as its tree says; None if nothing is recorded.
    log: EventLog | None = None


class Saver:
    """Saves the roles of one process."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        disk: Disk,
        *,
        every: int | None,
        attempt: int = 0,
        threaded: bool = True,
        meeting: Meeting | None = None,
        caller: Caller | Initiator | None = None,
    ) -> None:
        """Set up.

        Args:
            checkpoints: of the run.
            disk: makes the file operations.
            every: steps from one to the next; None where others say when.
            attempt: how often the run was resumed before.
            threaded: whether files are written while the roles go on.
            meeting: where processes agree on further steps; None has no other.
            caller: says when workers park; None where they do not.
        """
        self._checkpoints, self._disk = checkpoints, disk
        self._every, self._attempt = every, attempt
        self._threaded = threaded
        self._meeting, self._caller = meeting, caller
        self._looking = meeting or caller
        #: What writes files, and what waits for those of others; none without threads. Two, since
        #: what is waited for may be written here.
        self._writing = Background() if threaded else None
        self._committing = Background() if threaded else None
        #: The newest step of which a checkpoint is under way, or was made.
        self._step = -1
        #: By part, the step of its newest checkpoint, and the arrays of the copy.
        self._saved: dict[str, int] = {}
        self._copies: dict[str, Any] = {}
        #: Parts that are in no checkpoint any more.
        self._out: set[str] = set()
        #: Commits checkpoints, at the first process.
        self.committer: Committer | None = None
        #: Looks for the checkpoints that the others make, once the role of this process is done.
        self._follower: threading.Thread | None = None
        #: What SIGUSR1 did before; None while it is left alone.
        self._before: Any = None

    def since(self, name: str, step: int) -> None:
        """Note that a part begins at a step, of which there is a checkpoint already, or none."""
        self._saved[name] = step

    def check(self) -> None:
        """Check that this process sees the folder that the first one has made.

        Raises:
            ConfigError: if not.
        """
        folder = self._checkpoints.folder
        if not folder.is_dir():
            raise ConfigError(
                f"--checkpoint-every needs an --out that every rank can write to: {folder} is not "
                f"there on {socket.gethostname()}"
            )

    async def at(self, part: Part, step: int) -> bool:
        """Save a part if it is time; called where its role stands at a consistent cut.

        Returns:
            Whether the run ends here.

        Raises:
            OutputError: at the process that commits, if too many checkpoints have failed; or if
                there is no agreement on a step.
        """
        if await self._is_out(part):
            return False
        committer, stops = self.committer, False
        before = self._saved.get(part.name, 0)
        is_due = self._every is not None and step // self._every != before // self._every
        if self._meeting is not None:
            agreed = self._meeting.at(step, before)
            if agreed is not None:
                is_due, stops = True, agreed.stops
        if not is_due:
            if committer is not None and committer.has_news:
                committer.tell()
            return False
        self._write(part, step)
        return stops

    async def parked(self, part: Part, cut: int) -> bool:
        """Save a part whose role is parked, or parks next.

        Args:
            part: of the role.
            cut: the step of the checkpoint; negative if the run ends with it.

        Returns:
            Whether it does.

        Raises:
            OutputError: as ``at``.
        """
        if cut < 0 and self._caller is not None:
            self._caller.stops = True
        # Who goes on from a checkpoint is parked for it once more.
        is_new = (step := abs(cut)) != self._saved.get(part.name, 0)
        if not await self._is_out(part) and is_new:
            self._write(part, step)
        return cut < 0

    async def _is_out(self, part: Part) -> bool:
        """Return whether a part is of no checkpoint any more, and say so once."""
        if not (why := part.over()):
            return False
        if part.name not in self._out:
            self._out.add(part.name)
            await self.ended(part, why=why)
            if self.committer is not None:
                self.committer.without(f"{part.name} {why}")
        if self.committer is not None and self.committer.has_news:
            self.committer.tell()
        return True

    def _write(self, part: Part, step: int) -> None:
        """Copy what a role has now, and write it."""
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
        # After the copy: while Python runs there, it does not run here.
        self._writing.do(partial(self._save, part, copy, without, step))
        if committer is not None and is_first:
            self._committing.do(partial(committer.look, step, waits=True))

    def _copy(self, part: Part) -> dict[str, Any]:
        """Return a copy of what a role has now, where the one before lay."""
        copy = self._copies[part.name] = copied(part.tree(), self._copies.get(part.name))
        return copy

    def warm(self, part: Part) -> None:
        """Get the memory of a part's copy before training begins.

        The system finds it when it is first written to, which takes many times as long as a copy
        into memory that is there.
        """
        if self._threaded:
            self._copy(part)

    async def ended(
        self, part: Part, *, stays: bool = False, why: str = "has done all its steps"
    ) -> None:
        """Say that a role is done while others may go on.

        Args:
            part: of the role.
            stays: whether it is part of all later checkpoints as it is now; else there are none.
            why: it is in none, to follow its name.
        """
        if self._meeting is not None:
            self._meeting.ended()
        if isinstance(self._caller, Initiator):
            self._caller.ended()
        if stays and (reason := part.over()):
            stays, why = False, reason
        disk, (name, tree, spans, *_) = self._disk, part
        # Its part of the newest checkpoint must be found first: it is of that one as it was then.
        # What has failed is told at the end: its steps are done, and their result is not lost.
        if stays:
            self._settle()
        else:
            self._written()
        try:
            folder = self._checkpoints.done(self._attempt)
            disk.make_folder(folder)
            if stays:
                announce(disk, folder, write_part(disk, folder, name, tree(), spans))
                if self.committer is not None and not self._threaded:
                    self.committer.look_at_all()
            else:
                announce_failure(disk, folder, name, why)
        except (OSError, CheckpointError):
            pass  # the first process misses its part
        if stays and self.committer is not None and self._threaded:
            self._follower = threading.Thread(target=self.committer.follow, daemon=True)
            self._follower.start()

    def _written(self) -> None:
        """Wait until the parts of this process are written, but not for those of others."""
        if self._writing is not None:
            self._writing.finish()

    def finish(self) -> None:
        """Wait until the newest checkpoint is written, as far as it is this process's.

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
        """Begin to look at what the others want; SIGUSR1 asks to save and stop."""
        if self._looking is not None and self._threaded:
            self._looking.start()
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and signal.getsignal(signal.SIGUSR1) is not signal.SIG_IGN:
                self._before = signal.signal(signal.SIGUSR1, self._asked)

    def _asked(self, *_: object) -> None:
        assert self._looking is not None
        self._looking.ask(stop=True)

    @property
    def stops(self) -> bool:
        """Whether somebody had the run stop, as far as this process knows: one does."""
        return self._looking is not None and self._looking.stops

    def stopped(self, run: object) -> StoppedError:
        """Return what to raise where it was stopped, at the process that commits."""
        newest, _ = self._checkpoints.newest()
        where = "there is no checkpoint"
        if newest is not None:
            where = f"--resume goes on from step {newest.manifest.step}, {newest.path}"
        return StoppedError(f"stopped as asked; {where}", run)

    def close(self) -> None:
        """Tidy up, once all processes have finished."""
        if self._looking is not None:
            self._looking.close()
        if self._before is not None:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # which holds while Python and MPI end
        for thread in (self._writing, self._committing):
            if thread is not None:
                thread.close()
        if self.committer is not None:
            self.committer.over.set()
            if self._follower is not None:
                self._follower.join()
            self.committer.close()

    def give_back_signal(self) -> None:
        """Have SIGUSR1 do what it did before the run, which is over and was not stopped by it.

        Where it was, one more asks for nothing: a batch system may send it to every rank, and to
        their launcher, which passes it on.
        """
        if self._before is not None:
            signal.signal(signal.SIGUSR1, self._before)

    def _save(self, part: Part, tree: dict[str, Any], without: tuple[int, ...], step: int) -> None:
        disk, name, spans, log = self._disk, part.name, part.spans, part.log
        try:
            folder = self._checkpoints.begin(step, self._attempt)
            try:
                if log is not None:
                    log.sync()
                entry = write_part(disk, folder, name, tree, spans)
                announce(disk, folder, entry._replace(without=without))
            except (OSError, CheckpointError) as error:
                announce_failure(disk, folder, name, reason_of(error))
        except (OSError, CheckpointError):
            pass  # a disk that takes nothing: the first process misses this part
        if self._caller is not None:
            self._caller.saved()


class Committer:
    """Commits checkpoints whose parts are all there, at the first process."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        disk: Disk,
        *,
        names: Sequence[str],
        keep: int,
        attempt: int,
        timeout_s: float,
        manifest: Callable[[int, Sequence[PartEntry]], Manifest],
        say: Callable[[str], None],
        gone: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Set up.

        Args:
            checkpoints: of the run.
            disk: makes the file operations.
            names: of the parts of a checkpoint, those of workers first, in order.
            keep: checkpoints that are kept.
            attempt: how often the run was resumed before.
            timeout_s: how long a part may be late.
            manifest: of a step and its parts.
            say: called with each line for the user.
            gone: returns the numbers of the workers that the others go on without, who write
                nothing more.
        """
        self._checkpoints, self._disk = checkpoints, disk
        self._gone = gone
        self._names, self._keep, self._attempt = names, keep, attempt
        self._timeout_s, self._manifest, self._say = timeout_s, manifest, say
        #: Lines to be said, and failures in a row.
        self._lines: list[str] = []
        self._failures = 0
        #: The steps of those that could not be written.
        self._failed: set[int] = set()
        #: Whether a role is done, which others wait for no more.
        self._is_over = False
        #: Set once all processes have finished.
        self.over = threading.Event()
        #: Seconds that the newest checkpoint took from its cut on; None before the first.
        self.took_s: float | None = None

    def look(self, step: int, *, waits: bool) -> None:
        """Commit a checkpoint once all its parts are there.

        Args:
            step: of the checkpoint.
            waits: whether parts may still come while this waits.
        """
        began = time.monotonic()
        try:
            folder = self._checkpoints.begin(step, self._attempt)
            entries = self._gathered(step, folder, began + self._timeout_s if waits else None)
            if not entries:
                return
            self._checkpoints.commit(step, self._attempt, self._manifest(step, entries), self._keep)
        except (OSError, CheckpointError) as error:
            self.failed(reason_of(error), step)
            return
        self._failures = 0
        self.took_s = time.monotonic() - began

    def look_at_all(self) -> None:
        """Commit whatever has all its parts by now; where no thread waits for them."""
        for step in self._checkpoints.begun(self._attempt):
            if step not in self._failed:
                self.look(step, waits=False)

    def _gathered(self, step: int, folder: Path, until: float | None) -> list[PartEntry]:
        """Return the parts of a checkpoint; none if some are not there, or if there will be none.

        Args:
            step: of the checkpoint.
            folder: that it is being written to.
            until: when a part is late; None if none may come while this waits.
        """
        done = self._checkpoints.done(self._attempt)
        while True:
            # In this order: who is gone has written what it ever will, and who is done has
            # announced its part of this one before, if any.
            gone = {self._names[it] for it in self._gone()}
            ended = announced(self._disk, done)
            parts = announced(self._disk, folder)
            absent = (gone - parts.keys() | self._lost(parts.values())) - ended.keys()
            names = [it for it in self._names if it not in absent]
            missing = [it for it in names if it not in parts]
            if left := [it for it in missing if it in ended]:
                if isinstance(entry := ended[left[0]], str):
                    self.without(f"{left[0]} {entry}")
                    return []
                self._take(done, folder, entry)
            elif not missing:
                break
            elif until is None:
                return []
            elif time.monotonic() > until:
                self.failed(f"no {missing[0]} within {self._timeout_s:g} s", step)
                return []
            else:
                time.sleep(_LOOK_S)
        if reasons := [it for name in names if isinstance(it := parts[name], str)]:
            self.failed(reasons[0], step)
            return []
        if absent and not any(parts[it] != ended.get(it) for it in names if not is_shard(it)):
            return []  # the last one with steps left has not lived to save itself
        for name in absent:
            self._disk.remove(folder / f"{name}.safetensors")
        return [it for name in names if isinstance(it := parts[name], PartEntry)]

    def _lost(self, parts: Iterable[PartEntry | str]) -> set[str]:
        """Return the names of the workers that some of these parts are without.

        What such a worker has saved itself is not used: of the shards some know it no more.
        """
        entries = [it for it in parts if isinstance(it, PartEntry)]
        numbers = {worker for it in entries for worker in it.without}
        return {name for number, name in enumerate(self._names) if number in numbers}

    def _take(self, done: Path, folder: Path, entry: PartEntry) -> None:
        """Make what a role had when it was done a part of a checkpoint."""
        disk, file = self._disk, folder / entry.file
        disk.remove(file)  # of a try that failed
        disk.write(file, [disk.read(done / entry.file, entry.nbytes)])
        announce(disk, folder, entry)

    def follow(self) -> None:
        """Commit whatever others make, until it is over."""
        seen, is_over = set[int](), False
        while not is_over:
            is_over = self.over.wait(_LOOK_S)  # then all parts are there
            for step in self._checkpoints.begun(self._attempt):
                if step not in seen:
                    seen.add(step)
                    self.look(step, waits=not is_over)

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._lines)

    def without(self, why: str) -> None:
        """Note, once, that a role is done, so that what it had then goes with no later step."""
        if not self._is_over:
            self._lines.append(f"{why}: no more checkpoints")
        self._is_over = True

    def failed(self, reason: str, step: int | None = None) -> None:
        """Note that a checkpoint could not be written, or its step not even agreed on."""
        self._failures += 1
        what = "checkpoint"
        if step is not None:
            what = f"checkpoint of step {step}"
            self._failed.add(step)
        self._lines.append(f"{what}: {reason}; training continues without it")

    def close(self) -> None:
        """Delete what belongs to no checkpoint; nobody may be writing any more."""
        with contextlib.suppress(OSError, CheckpointError):
            self._checkpoints.prepare()

    def tell(self) -> None:
        """Say what went wrong since the last call.

        Raises:
            OutputError: if too many checkpoints in a row have failed.
        """
        lines, self._lines = self._lines, []
        if self._failures >= MOST_FAILURES:
            last = lines[-1].partition(";")[0]
            raise OutputError(f"{last}; {self._failures} in a row have failed")
        for line in lines:
            self._say(line)


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
            assert copy is not None, "of the same kind"
            np.copyto(copy, value)
            found[name] = copy
        else:
            found[name] = list(value) if isinstance(value, list) else value
    return found


def reason_of(error: Exception) -> str:
    """Return why something could not be written, or read."""
    return str(getattr(error, "strerror", None) or error)
