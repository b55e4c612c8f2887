"""A job that is started again when it dies, from its newest checkpoint. Imports no MPI.

What the launcher of the ranks says of their end is not to be relied on: Open MPI's mpirun ends with
status 0 when it has lost a host. So an attempt counts as done if it has written its summary, and as
progress what it has saved since the one before.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from psrt.checkpoint import Checkpoints, Disk
from psrt.errors import ConfigError, DivergedError, GaveUpError, MissingWorkersError, StoppedError
from psrt.job.attempt import Ended
from psrt.report.files import SUMMARY
from psrt.units import plural

#: Exit status of a job that is not started again any more.
GAVE_UP = GaveUpError.exit_status
#: Seconds before the first restart, and at most; each without progress doubles them.
_FIRST_S, _LONGEST_S = 1.0, 60.0
#: Statuses that another attempt would end with, too, and that of a run that was asked to stop.
_FINAL = (ConfigError.exit_status, DivergedError.exit_status, StoppedError.exit_status)
#: Statuses that say something of a run that has a summary.
_WITH_SUMMARY = (0, MissingWorkersError.exit_status, StoppedError.exit_status)
#: Names of what the ranks of either MPI leave in shared memory when they are killed.
_SEGMENT = re.compile(r"(sm_segment|vader_segment|osc_sm|mpich_sh|psrt)[\w.\-]*")
_SHARED = Path("/dev/shm")


class Progress(NamedTuple):
    """What an attempt has to show in the run's folder."""

    #: Of the newest checkpoint that can be read; −1 without one.
    step: int
    #: What tells one summary from another; None if there is none.
    summary: tuple[int, int] | None

    @classmethod
    def of(cls, run: Path) -> Progress:
        """Return that of a run's folder."""
        newest, _ = Checkpoints(Disk(), run).newest()
        summary = None
        with contextlib.suppress(OSError):
            found = (run / SUMMARY).stat()
            summary = found.st_ino, found.st_mtime_ns
        return cls(-1 if newest is None else newest.manifest.step, summary)


class Restarts:
    """How often a job may still be started again, and when.

    >>> restarts = Restarts(2)
    >>> restarts.wait_s(10), restarts.wait_s(10), restarts.wait_s(10)
    (1.0, 2.0, None)
    >>> restarts = Restarts(2)
    >>> restarts.wait_s(10), restarts.wait_s(10), restarts.wait_s(20), restarts.wait_s(20)
    (1.0, 2.0, 1.0, 2.0)
    """

    def __init__(self, limit: int) -> None:
        """Allow ``limit`` restarts in a row without progress."""
        self.limit = limit
        #: Restarts since there was progress.
        self.made = 0
        self._step: int | None = None

    def wait_s(self, step: int) -> float | None:
        """Return the seconds to wait before the next restart; None to give up.

        Args:
            step: of the newest checkpoint.
        """
        if self._step is not None and step > self._step:
            self.made = 0
        self._step = step
        if self.made == self.limit:
            return None
        self.made += 1
        return min(_FIRST_S * 2.0 ** (self.made - 1), _LONGEST_S)


def supervise(
    start: Callable[[], Ended],
    run: Path,
    limit: int,
    *,
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    tidy: Callable[[float], int] | None = None,
) -> Ended:
    """Run a job until it is done, is asked to end, or dies too often.

    Args:
        start: runs one attempt to its end.
        run: the folder that it writes.
        limit: restarts in a row without a new checkpoint.
        tell: takes each line for the user.
        sleep: waits so many seconds.
        tidy: deletes what an attempt that began then has left in shared memory, and returns how
            much that was; None does as ``sweep`` does.

    Returns:
        How the last attempt ended; with status 7 where it is given up.
    """
    restarts, before = Restarts(limit), Progress.of(run)
    while True:
        began = time.time()
        ended = start()
        swept = (tidy or sweep)(began)
        after = Progress.of(run)
        is_done = after.summary is not None and after.summary != before.summary
        if is_done and ended.asked is None and ended.status not in _WITH_SUMMARY:
            tell(f"the job was done when it ended with status {ended.status}")
            return Ended(0, None, ended.seconds)
        if is_done or ended.asked is not None or ended.status in _FINAL:
            return ended
        at = "before its first checkpoint" if after.step < 0 else f"after step {after.step}"
        line = f"the job ended with status {ended.status} and without a summary, {at}"
        if swept:
            line += f"; swept {plural(swept, 'segment')} of shared memory"
        wait_s = restarts.wait_s(after.step)
        if wait_s is None:
            tell(f"{line}; given up after {plural(limit, 'restart')} without a new checkpoint")
            return Ended(GAVE_UP, None, ended.seconds)
        tell(f"{line}; restart {restarts.made} of {limit} in {wait_s:g} s")
        before = after
        sleep(wait_s)


def sweep(since: float, folder: Path = _SHARED) -> int:
    """Delete the segments of shared memory that ranks have left; return their number.

    Args:
        since: when the attempt began, in seconds since the epoch: older ones are others'.
        folder: where they are.

    Only this user's, and only those that no process has mapped any more.
    """
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            about = entry.stat(follow_symlinks=False)
            own = about.st_uid == os.geteuid() and about.st_mtime >= since
            if own and entry.is_file(follow_symlinks=False) and _SEGMENT.fullmatch(entry.name):
                found.append(Path(entry.path))
    used = _mapped(folder) if found else set()
    swept = 0
    for path in found:
        if str(path) not in used:
            with contextlib.suppress(OSError):
                path.unlink()
                swept += 1
    return swept


def _mapped(folder: Path) -> set[str]:
    """Return the files below a folder that processes have mapped, as far as one may see that."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            for line in maps.read_text(errors="replace").splitlines():
                _, slash, path = line.partition(f"{folder}/")
                if slash:
                    found.add(slash + path)
    return found
