"""Commits checkpoints once all parts are written, at the first process. Knows no roles."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from psrt.checkpoint import (
    Checkpoints,
    Disk,
    Manifest,
    PartEntry,
    announce,
    announced,
)
from psrt.core.errors import CheckpointError, OutputError
from psrt.job.resuming import is_shard

#: The number of checkpoints in a row that may fail before the run ends.
MOST_FAILURES = 3
#: Seconds between two looks for the parts of others.
_LOOK_S = 0.01


@dataclass(eq=False, kw_only=True)
class Committer:
    """Commits the checkpoints of a run."""

    checkpoints: Checkpoints
    #: Makes the file operations.
    disk: Disk
    #: The names of a checkpoint's parts, those of workers first, in order.
    names: Sequence[str]
    #: The number of checkpoints to keep.
    keep: int
    #: The number of times that the run was resumed before.
    attempt: int
    #: Seconds that a part may be late.
    timeout_s: float
    #: Makes the manifest of a step and its parts.
    manifest: Callable[[int, Sequence[PartEntry]], Manifest]
    #: Called with each line for the user.
    say: Callable[[str], None]
    #: The flag that asked for checkpoints.
    asked: str
    #: Returns the numbers of the workers that the others continue without, which write no more
    #: parts.
    gone: Callable[[], Collection[int]] = tuple
    #: Set once all processes have finished.
    over: threading.Event = field(default_factory=threading.Event, init=False)
    #: Seconds from the cut to the commit of the newest checkpoint; None before the first.
    took_s: float | None = field(default=None, init=False)
    #: Lines to print, failures in a row, and the steps that could not be written.
    _lines: list[str] = field(default_factory=list, init=False)
    _failures: int = field(default=0, init=False)
    _failed: set[int] = field(default_factory=set, init=False)
    #: Whether a role is done, so that others no longer wait for it.
    _is_over: bool = field(default=False, init=False)

    def look(self, step: int, *, waits: bool) -> None:
        """Commit a checkpoint once all its parts are written.

        Args:
            step: of the checkpoint.
            waits: whether parts may still arrive while this waits.
        """
        began = time.monotonic()
        try:
            folder = self.checkpoints.begin(step, self.attempt)
            entries = self._gathered(step, folder, began + self.timeout_s if waits else None)
            if not entries:
                return
            self.checkpoints.commit(step, self.attempt, self.manifest(step, entries), self.keep)
        except (OSError, CheckpointError) as error:
            self.failed(reason_of(error), step)
            return
        self._failures = 0
        self.took_s = time.monotonic() - began

    def look_at_all(self) -> None:
        """Commit all checkpoints that are complete by now; used if no thread waits for them."""
        for step in self.checkpoints.begun(self.attempt):
            if step not in self._failed:
                self.look(step, waits=False)

    def _gathered(self, step: int, folder: Path, until: float | None) -> list[PartEntry]:
        """Return the parts of a checkpoint; empty if some are missing, or it is given up.

        Args:
            step: of the checkpoint.
            folder: to which it is being written.
            until: the time from which a part is late; None if no part can arrive while this waits.
        """
        done = self.checkpoints.done(self.attempt)
        while True:
            # In this order, before the parts are listed: a rank that is gone writes no more parts,
            # and one that is done has announced its part of this checkpoint before, if it has one.
            gone = {self.names[it] for it in self.gone()}
            ended = announced(self.disk, done)
            parts = announced(self.disk, folder)
            absent = (gone - parts.keys() | self._lost(parts.values())) - ended.keys()
            names = [it for it in self.names if it not in absent]
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
                self.failed(f"no {missing[0]} within {self.timeout_s:g} s", step)
                return []
            else:
                time.sleep(_LOOK_S)
        if reasons := [it for name in names if isinstance(it := parts[name], str)]:
            self.failed(reasons[0], step)
            return []
        if absent and not any(parts[it] != ended.get(it) for it in names if not is_shard(it)):
            return []  # the last worker with steps left died before it saved itself
        for name in absent:
            self.disk.remove(folder / f"{name}.safetensors")
        return [it for name in names if isinstance(it := parts[name], PartEntry)]

    def _lost(self, parts: Iterable[PartEntry | str]) -> set[str]:
        """Return the names of the workers that some of these parts do not know.

        The part of such a worker is not used, since some of the shards no longer know it.
        """
        entries = [it for it in parts if isinstance(it, PartEntry)]
        numbers = {worker for it in entries for worker in it.without}
        return {name for number, name in enumerate(self.names) if number in numbers}

    def _take(self, done: Path, folder: Path, entry: PartEntry) -> None:
        """Use the final state of a finished role as its part of a checkpoint."""
        disk, file = self.disk, folder / entry.file
        disk.remove(file)  # of a failed attempt
        disk.write(file, [disk.read(done / entry.file, entry.nbytes)])
        announce(disk, folder, entry)

    def follow(self) -> None:
        """Commit the checkpoints of others, until the run is over."""
        seen, is_over = set[int](), False
        while not is_over:
            is_over = self.over.wait(_LOOK_S)  # once it is over, all parts are written
            for step in self.checkpoints.begun(self.attempt):
                if step not in seen:
                    seen.add(step)
                    self.look(step, waits=not is_over)

    @property
    def has_news(self) -> bool:
        """Whether there are lines to print."""
        return bool(self._lines)

    def without(self, why: str) -> None:
        """Note, once, that a role is done, so that its final state fits no later step."""
        if not self._is_over:
            self._lines.append(f"{why}: no more checkpoints")
        self._is_over = True

    def failed(self, reason: str, step: int | None = None) -> None:
        """Note that a checkpoint could not be written, or its step not be agreed on."""
        self._failures += 1
        what = "checkpoint"
        if step is not None:
            what = f"checkpoint of step {step}"
            self._failed.add(step)
        self._lines.append(f"{what}: {reason}; training continues without it")

    def close(self) -> None:
        """Delete files that belong to no checkpoint; no rank may still be writing."""
        if self.took_s is None and not (self.attempt or self._failed or self._is_over):
            self.say(f"{self.asked}: no checkpoint was made: the run ended before one was due")
        with contextlib.suppress(OSError, CheckpointError):
            self.checkpoints.prepare()

    def tell(self) -> None:
        """Print what went wrong since the last call.

        Raises:
            OutputError: if too many checkpoints in a row have failed.
        """
        lines, self._lines = self._lines, []
        if self._failures >= MOST_FAILURES:
            last = lines[-1].partition(";")[0]
            raise OutputError(f"{last}; {self._failures} in a row have failed")
        for line in lines:
            self.say(line)


def reason_of(error: Exception) -> str:
    """Return why something could not be written, or read."""
    return str(getattr(error, "strerror", None) or error)
