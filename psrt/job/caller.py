"""When a job is saved whose workers come to a cut at steps of their own: one shard has them park.

So nobody needs to agree on a step (see ``meeting``): the process of that shard decides, by steps,
by time, or since it was asked. The others only pass on, in the run's folder, what they were asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from psrt.checkpoint import Checkpoints, Disk, note, notes
from psrt.errors import CheckpointError
from psrt.job.looking import Looking
from psrt.job.pace import Pace


class Caller(Looking):
    """One process's part in it."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        disk: Disk,
        *,
        process: int,
        decides: bool,
        every: int | None = None,
        pace: Pace | None = None,
        attempt: int = 0,
        step: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up.

        Args:
            checkpoints: of the run.
            disk: makes the file operations.
            process: number of this one.
            decides: whether the shard that has workers park is here.
            every: steps from one checkpoint to the next; None for as ``pace`` says.
            pace: says when it is time; None for by steps alone.
            attempt: how often the run was resumed before.
            step: of the checkpoint that this run goes on from.
            now: a clock, in seconds.
        """
        super().__init__()
        self._disk, self._folder = disk, checkpoints.cut(0, attempt)
        self._process, self._decides = process, decides
        self._every, self._pace = every, pace
        self._now = now
        self._last, self._called_at = step, 0.0
        #: Whether the run ends with the checkpoint that was called for last.
        self.stops = False

    def call(self, step: int) -> int:
        """Return the step of the checkpoint that all are to park for.

        Args:
            step: that workers have come to.

        Returns:
            ``step`` if it is time, −``step`` if the run ends with it, 0 if it is not.
        """
        if self.stops or step <= self._last:
            return 0
        if self._pace is not None and self._pace.is_due():
            self._wants = True
        by_steps = self._every is not None and step // self._every != self._last // self._every
        if not by_steps and not self._wants:
            return 0
        self._wants, self.stops = False, self._wants_stop
        self._last, self._called_at = step, self._now()
        return -step if self.stops else step

    def saved(self) -> None:
        """Say that what is here of the checkpoint is written: so much time one costs."""
        if self._pace is not None:
            self._pace.cost_s = self._now() - self._called_at

    def look(self) -> None:
        """Pass on a wish to stop, or take it."""
        # What cannot be written or read now is tried again.
        with suppress(OSError, CheckpointError):
            if self._decides:
                if notes(self._disk, self._folder):
                    self.ask(stop=True)
            elif self._wants_stop:
                self._disk.make_folder(self._folder)
                note(self._disk, self._folder, f"asked-{self._process}", {"stop": True})
                self._wants_stop = False
