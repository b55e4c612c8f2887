"""When a job is saved whose workers come to a cut at steps of their own, and no server sees them.

One process, the first, decides: by the steps of the fastest worker that it knows of, or since it
was asked. So all come to the same checkpoints in the same order. Its own worker learns of one at
once, and has its neighbours come to it, who have theirs (see ``runtime.strategies.pair_cut``). It
is announced in the run's folder, too, for workers of which no neighbour trains any more; and in
that folder others pass on how far they are and what they were asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from psrt.checkpoint import Checkpoints, Disk, field_of, note, notes
from psrt.errors import CheckpointError
from psrt.job.looking import Looking

_CUT = "cut"


class Initiator(Looking):
    """One process's part in it."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        disk: Disk,
        *,
        process: int,
        decides: bool,
        every: int | None = None,
        attempt: int = 0,
        step: int = 0,
    ) -> None:
        """Set up.

        Args:
            checkpoints: of the run.
            disk: makes the file operations.
            process: number of this one.
            decides: whether it is the first.
            every: steps from one checkpoint to the next; None makes one when it is asked to.
            attempt: how often the run was resumed before.
            step: of the checkpoint that this run goes on from.
        """
        super().__init__()
        self._checkpoints, self._disk = checkpoints, disk
        self._process, self._decides = process, decides
        self._every, self._attempt, self._began = every, attempt, step
        #: All checkpoints that were decided on, each as ``Params.cut``; of the one who decides, how
        #: many are announced, and of how many the announcement was deleted again.
        self._cuts: list[int] = []
        self._announced = self._deleted = 0
        #: The most steps that a worker has taken, as far as this process knows; and what others
        #: were told of that and of a stop.
        self._clock = step
        self._told = step, False
        self._lock = Lock()
        self._has_ended = False
        #: Whether a worker of this process ends with the checkpoint that it came to last.
        self.stops = False
        #: Called at each look, by the thread.
        self.at_look: Callable[[], None] | None = None

    def call(self, clock: int, last: int) -> int:
        """Return the checkpoint that a worker is to come to next, as ``Params.cut``; 0 for none.

        Args:
            clock: steps that it has taken.
            last: the step of the one that it came to last; 0 in a run that has just begun or goes
                on.
        """
        with self._lock:
            self._clock = max(self._clock, clock)
            self._decide()
            at = bisect_right(self._cuts, last, key=abs)
            return self._cuts[at] if at < len(self._cuts) else 0

    def ended(self) -> None:
        """Say that the worker of this process is done; how far it is makes no checkpoint due."""
        self._has_ended = True

    def saved(self) -> None:
        """Learn that what is here of a checkpoint is written, which says nothing of the others."""

    @property
    def _last(self) -> int:
        """The step of the newest checkpoint."""
        return abs(self._cuts[-1]) if self._cuts else self._began

    def _is_due(self) -> bool:
        """Whether workers have taken the steps from one to the next."""
        return self._every is not None and self._clock // self._every > self._last // self._every

    def _decide(self) -> None:
        """Decide on a checkpoint if it is time, at the first process."""
        ends = bool(self._cuts) and self._cuts[-1] < 0
        if not self._decides or ends or not self._clock or not (self._is_due() or self._wants):
            return
        step = max(self._clock, self._last + 1)
        self._wants = False
        self._cuts.append(-step if self._wants_stop else step)

    def look(self) -> None:
        """Decide, if others have come that far or ask for it, and announce it; or learn of it."""
        if self.at_look is not None:
            self.at_look()
        # What cannot be written or read now is tried again.
        with suppress(OSError, CheckpointError):
            if self._decides:
                self._hear()
                self._announce()
            else:
                self._learn()
                self._tell()

    def _hear(self) -> None:
        """Take what the other processes tell."""
        told = notes(self._disk, self._checkpoints.cut(0, self._attempt)).values()
        with self._lock:
            for it in told:
                step, stop = field_of(it, "step", int), field_of(it, "stop", bool)
                self._clock = max(self._clock, step)
                if stop and not self._wants_stop:
                    self.ask(stop=True)
            self._decide()

    def _announce(self) -> None:
        """Announce what was decided on, and delete announcements of what was saved by all."""
        disk, attempt = self._disk, self._attempt
        if self._announced == len(self._cuts):
            return
        saved = next((it for _, it in self._checkpoints.listed()), None)
        while self._announced < len(self._cuts):
            folder = self._checkpoints.cut(self._announced + 1, attempt)
            disk.make_folder(folder)
            note(disk, folder, _CUT, {"step": self._cuts[self._announced]})
            self._announced += 1
        newest = 0 if saved is None or isinstance(saved, CheckpointError) else saved.step
        while self._deleted < len(self._cuts) and abs(self._cuts[self._deleted]) <= newest:
            disk.remove(self._checkpoints.cut(self._deleted + 1, attempt))
            self._deleted += 1

    def _learn(self) -> None:
        """Take what the first process announces, in order."""
        while True:
            folder = self._checkpoints.cut(len(self._cuts) + 1, self._attempt)
            found = notes(self._disk, folder).get(_CUT)
            if found is None:
                return
            with self._lock:
                self._cuts.append(field_of(found, "step", int))

    def _tell(self) -> None:
        """Tell the first process how far this one is where a checkpoint is due, and of a stop."""
        is_due = self._is_due() and not self._has_ended
        told = self._clock if is_due else self._told[0], self._wants_stop
        if told == self._told:
            return
        folder = self._checkpoints.cut(0, self._attempt)
        self._disk.make_folder(folder)
        note(self._disk, folder, f"process-{self._process}", {"step": told[0], "stop": told[1]})
        self._told = told
