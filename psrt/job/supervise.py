"""Restarts a job that dies, from its newest checkpoint. Imports no MPI.

The launcher's status is not reliable: Open MPI's mpirun ends with status 0 when it has lost a host.
So an attempt counts as done if it has written its summary, and its progress is what it has saved
since the attempt before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from psrt.checkpoint import Checkpoints, Disk
from psrt.core.errors import (
    ConfigError,
    DivergedError,
    GaveUpError,
    MissingWorkersError,
    StoppedError,
)
from psrt.core.units import plural
from psrt.job.attempt import Ended
from psrt.launch.segments import sweep
from psrt.report.files import SUMMARY

#: Exit status of a job that is given up.
GAVE_UP = GaveUpError.exit_status
#: Seconds before the first restart, and the most; each restart without progress doubles them.
_FIRST_S, _LONGEST_S = 1.0, 60.0
#: Statuses that another attempt would end with, too, and that of a run that was asked to stop.
_FINAL = (DivergedError.exit_status, StoppedError.exit_status)
#: Statuses that are kept for a run that has a summary.
_WITH_SUMMARY = (0, MissingWorkersError.exit_status, StoppedError.exit_status)


class Progress(NamedTuple):
    """An attempt's progress, by the run's folder."""

    #: The step of the newest readable checkpoint; −1 without one.
    step: int
    #: Identifies a summary; None if there is none.
    summary: tuple[int, int] | None

    @classmethod
    def of(cls, run: Path) -> Progress:
        """Return the progress in a run's folder."""
        newest, _ = Checkpoints(Disk(), run).newest()
        summary = None
        with contextlib.suppress(OSError):
            found = (run / SUMMARY).stat()
            summary = found.st_ino, found.st_mtime_ns
        return cls(-1 if newest is None else newest.manifest.step, summary)


class Restarts:
    """The number of restarts that a job has left, and when.

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
        #: Restarts since the last progress.
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
    ready: Callable[[], str | None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
    tidy: Callable[[float], int] = sweep,
) -> Ended:
    """Run a job until it is done, is asked to end, or dies too often.

    Args:
        start: runs one attempt to its end.
        run: the folder that it writes.
        limit: restarts in a row without a new checkpoint.
        tell: takes each line for the user.
        ready: called before each restart, and at the end of a job in which a rank died: cleans up
            on other hosts, and returns why no attempt is possible now, None if it is.
        sleep: waits that many seconds.
        tidy: deletes what an attempt that started then has left in shared memory here, and
            returns the number of segments.

    Returns:
        How the last attempt ended; with status 7 if the job is given up.
    """
    restarts, before, is_first = Restarts(limit), Progress.of(run), True
    while True:
        began = time.time()
        ended = start()
        swept = tidy(began)
        after = Progress.of(run)
        is_done = after.summary is not None and after.summary != before.summary
        if is_done and ended.asked is None and (ended.returncode or not is_first):
            ready()  # what dead ranks have left elsewhere
        if is_done and ended.asked is None and ended.status not in _WITH_SUMMARY:
            tell(f"the job was done before it ended with status {ended.status}")
            return Ended(0, None, ended.seconds)
        if is_done or ended.asked is not None or _is_final(ended, is_first=is_first):
            return ended
        line = _described(ended, after.step)
        if swept:
            line += f"; swept {plural(swept, 'segment')} of shared memory"
        before, is_first = after, False
        why: str | None = line
        while why is not None:
            wait_s = restarts.wait_s(after.step)
            if wait_s is None:
                ready()
                tell(f"{why}; given up after {plural(limit, 'restart')} without a new checkpoint")
                return Ended(GAVE_UP, None, ended.seconds)
            tell(f"{why}; restart {restarts.made} of {limit} in {wait_s:g} s")
            sleep(wait_s)
            why = ready()


def _is_final(ended: Ended, *, is_first: bool) -> bool:
    """Return whether another attempt would end in the same way, by the ranks' reports.

    If an earlier attempt was accepted, a refusal is not due to the request but to the state of the
    machine, such as a full disk.
    """
    if ended.over is None:
        return False
    status = ended.over.status
    return status in _FINAL or (is_first and status == ConfigError.exit_status)


def _described(ended: Ended, step: int) -> str:
    at = "before its first checkpoint" if step < 0 else f"after step {step}"
    if ended.stalled is not None:
        return f"the job was ended, as {ended.stalled}, {at}"
    return f"the job ended with status {ended.status} and without a summary, {at}"
