"""Whether an attempt gets on, as seen by whoever started it: it ends what no rank would.

Ranks that are there look after each other (``psrt.faults``). What is left is a launcher that hangs
before there is a rank, or after the last one, ranks that are all stopped, and those that cannot
reach this process: of these only the run's files are seen.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from psrt.checkpoint.folder import FOLDER
from psrt.faults.parent import Parent

#: How much longer than MPI's own start a rank may take until it is there, in seconds.
_LOADING_S = 30.0
#: Seconds of silence after which the run's files are looked at.
_QUIET_S = 5.0


class Stall:
    """Watches one attempt from its start on; to be called again and again."""

    def __init__(
        self,
        parent: Parent,
        run: Path,
        *,
        start_s: float,
        timeout_s: float,
        busy_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            parent: hears the ranks.
            run: the folder that they write.
            start_s: seconds that MPI may take to start, and to end.
            timeout_s: seconds that a rank may be silent.
            busy_s: seconds that one may be busy with one thing.
            now: tells the time, in seconds.
        """
        self._parent, self._run, self._now = parent, run, now
        self._start_s, self._timeout_s, self._busy_s = start_s + _LOADING_S, timeout_s, busy_s
        self._files = newest_change(run)
        self._began = self._changed_at = now()

    def __call__(self) -> str | None:
        """Return why the attempt is to be ended; None while it gets on."""
        now, heard_at = self._now(), self._parent.heard_at
        is_there = heard_at is not None or self._changed_at > self._began
        if now - max(self._began, heard_at or 0.0) > _QUIET_S:
            files = newest_change(self._run)
            if files != self._files:
                self._files, self._changed_at = files, now
                is_there = True
        quiet_s = now - max(self._began, heard_at or 0.0, self._changed_at)
        if not is_there:
            return f"no rank was there within {quiet_s:.0f} s" if quiet_s > self._start_s else None
        if heard_at is not None and not self._parent.is_called:
            return f"it had not ended after {quiet_s:.0f} s" if quiet_s > self._start_s else None
        if self._parent.first_is_stopped:
            why = f"rank 0 was stopped for {quiet_s:.0f} s"
            return why if quiet_s > self._timeout_s else None
        why = f"no sign of life for {quiet_s:.0f} s"
        return why if quiet_s > self._busy_s + self._timeout_s else None


def newest_change(run: Path) -> int:
    """Return when a file of a run, or of its checkpoints, was changed last; 0 if there is none.

    In nanoseconds since the epoch, by the clock of the disk: two of them are the same or not.
    """
    newest = 0
    for folder in (run, run / FOLDER):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    newest = max(newest, entry.stat(follow_symlinks=False).st_mtime_ns)
    return newest
