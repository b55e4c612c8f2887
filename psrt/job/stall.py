"""Detects an attempt that makes no progress, from its launcher: it ends what no rank would.

Running ranks watch each other (``psrt.faults``). What remains is a launcher that hangs before the
first rank or after the last one, ranks that are all stopped, and ranks that cannot reach this
process, of which only the run's files are seen.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from psrt.checkpoint.folder import FOLDER
from psrt.faults.parent import Parent

#: Seconds, beyond MPI's own start, that a rank may take until it registers.
_LOADING_S = 30.0
#: Seconds of silence after which the run's files are checked.
_QUIET_S = 5.0


class Stall:
    """Watches one attempt from its start on; to be called repeatedly."""

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
        """Set up.

        Args:
            parent: receives the ranks' reports.
            run: the folder that they write.
            start_s: seconds that MPI may take to start, and to end.
            timeout_s: seconds that a rank may be silent.
            busy_s: seconds that a rank may be busy with one task.
            now: returns the time in seconds.
        """
        self._parent, self._run, self._now = parent, run, now
        self._start_s, self._timeout_s, self._busy_s = start_s + _LOADING_S, timeout_s, busy_s
        self._files = newest_change(run)
        self._began = self._changed_at = now()

    def __call__(self) -> str | None:
        """Return why the attempt should be ended; None while it makes progress."""
        now, heard_at = self._now(), self._parent.heard_at
        is_there = heard_at is not None or self._changed_at > self._began
        if now - max(self._began, heard_at or 0.0) > _QUIET_S:
            files = newest_change(self._run)
            if files != self._files:
                self._files, self._changed_at = files, now
                is_there = True
        quiet_s = now - max(self._began, heard_at or 0.0, self._changed_at)
        if not is_there:
            return f"no rank started within {quiet_s:.0f} s" if quiet_s > self._start_s else None
        if heard_at is not None and not self._parent.is_called:
            return f"it had not ended after {quiet_s:.0f} s" if quiet_s > self._start_s else None
        if self._parent.first_is_stopped:
            why = f"rank 0 was stopped for {quiet_s:.0f} s"
            return why if quiet_s > self._timeout_s else None
        why = f"no sign of life for {quiet_s:.0f} s"
        return why if quiet_s > self._busy_s + self._timeout_s else None


def newest_change(run: Path) -> int:
    """Return the last time that a file of a run or its checkpoints changed; 0 without files.

    In nanoseconds since the epoch, by the clock of the disk: only compared for equality.
    """
    newest = 0
    for folder in (run, run / FOLDER):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    newest = max(newest, entry.stat(follow_symlinks=False).st_mtime_ns)
    return newest
