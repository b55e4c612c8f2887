"""How the processes of a job agree on a step to be saved, when it is time or somebody asks for it.

Steps that are known from the start need no agreement: every process counts. Seconds and signals do,
since no process may have passed the step when it learns it. They agree in the run's folder, by
threads that look at it four times a second, so that neither MPI nor the roles know of it:

1. Whoever wants a checkpoint writes so.
2. Each process promises a step, somewhat ahead of its own, that it will not go beyond until it
   knows what was agreed on.
3. When all have, the first process announces the largest of these steps. Nobody is beyond it: whose
   promise was smaller is waiting, or has not come to that.

Each role saves itself at its first cut from that step on. All of them have the same cuts. A process
promises nothing more until it has come to that step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from threading import Condition, Lock
from typing import NamedTuple

from psrt.checkpoint import Checkpoints, Disk, field_of, note, notes
from psrt.errors import CheckpointError, OutputError
from psrt.job.looking import LOOK_S, Looking

#: Seconds between two looks at the folder while something is being agreed on.
_HASTE_S = 0.01
#: How far ahead a promise is, in looks: the first process needs two to answer.
_AHEAD = 4
_CUT = "cut"


class Agreed(NamedTuple):
    """What all processes have agreed on."""

    #: From which step on the next cut is saved.
    step: int
    #: Whether the run ends there.
    stops: bool


class Meeting(Looking):
    """One process's part in it."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        disk: Disk,
        *,
        process: int,
        processes: int,
        attempt: int = 0,
        step: int = 0,
        timeout_s: float = 60.0,
        gone: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Set up.

        Args:
            checkpoints: of the run.
            disk: makes the file operations.
            process: number of this one; the first one, 0, announces.
            processes: how many there are.
            attempt: how often the run was resumed before.
            step: at which this process begins.
            timeout_s: how long a role may wait for an agreement.
            gone: returns the processes that the others go on without, who promise nothing.
        """
        super().__init__()
        self._checkpoints, self._disk = checkpoints, disk
        self._process, self._processes = process, processes
        self._attempt, self._timeout_s = attempt, timeout_s
        self._gone = gone
        #: Of the agreement that is next, or under way.
        self._number = 0
        #: The step at which this process is, at the last look, and that it does not go beyond.
        self._step = self._before = step
        self._limit: int | None = None
        #: What was agreed on, the newest last: of the roles of a process one may be a step ahead.
        self._agreed: deque[Agreed] = deque(maxlen=4)
        self._has_ended = False
        self._changed = Condition(Lock())
        #: Why no note could be written at the last look; empty if it could.
        self.trouble = ""
        #: Called at each look, by the thread.
        self.at_look: Callable[[], None] | None = None
        #: Called with the reason if the folder does not even take the question.
        self.failed: Callable[[str], None] | None = None

    @property
    def _pause_s(self) -> float:
        return LOOK_S if self._limit is None else _HASTE_S

    def ended(self) -> None:
        """Say that a role of this process is done, and comes to no further step."""
        self._has_ended = True

    @property
    def stops(self) -> bool:
        """Whether it was agreed to end the run."""
        return any(it.stops for it in self._agreed)

    def at(self, step: int, saved: int) -> Agreed | None:
        """Say that a role of this process is at a step, and wait if it must not go beyond.

        Args:
            step: at which it is.
            saved: at which it was saved last.

        Returns:
            What it is to be saved for, if anything.

        Raises:
            OutputError: if nothing was agreed on in time.
        """
        with self._changed:
            self._step = max(self._step, step)
            if not self._changed.wait_for(lambda: self._may_pass(step), self._timeout_s):
                why = f": {self.trouble}" if self.trouble else ""
                raise OutputError(
                    f"{self._checkpoints.folder}: no agreement on a step to be saved within "
                    f"{self._timeout_s:g} s{why}"
                )
            due = [it for it in self._agreed if saved < it.step <= step]
        return Agreed(due[-1].step, any(it.stops for it in due)) if due else None

    def _may_pass(self, step: int) -> bool:
        return self._limit is None or step < self._limit

    def look(self) -> None:
        """Do what can be done now."""
        if self.at_look is not None:
            self.at_look()
        try:
            self._look()
        except (OSError, CheckpointError) as error:
            self.trouble = str(getattr(error, "strerror", None) or error)
        else:
            self.trouble = ""

    def _look(self) -> None:
        disk, folder = self._disk, self._checkpoints.cut(self._number, self._attempt)
        mine = f"process-{self._process}"
        said = notes(disk, folder)
        if self._wants and not said:
            try:
                disk.make_folder(folder)
                note(disk, folder, f"asked-{self._process}", {"stop": self._wants_stop})
            except OSError as error:
                self._wants = self._wants_stop
                if self.failed is not None:
                    self.failed(str(error.strerror))
                raise
            said = notes(disk, folder)
        if not said:
            with self._changed:
                self._before = self._step
            return
        last = self._agreed[-1].step if self._agreed else 0
        if self._limit is None and (self._step >= last or self._has_ended):
            with self._changed:
                ahead = 1 + _AHEAD * (self._step - self._before)
                self._limit = limit = self._step + ahead
            try:
                note(disk, folder, mine, {"limit": limit, "stop": self._wants_stop})
            except OSError:
                self._release()  # nobody has seen it
                raise
            said = notes(disk, folder)
        if self._process == 0 and _CUT not in said:
            there = [it for it in range(self._processes) if it not in self._gone()]
            promised = [said.get(f"process-{it}") for it in there]
            if all(promised):
                step = max(field_of(it, "limit", int) for it in promised)
                stops = any(field_of(it, "stop", bool) for it in said.values())
                note(disk, folder, _CUT, {"step": step, "stop": stops})
                # All who have promised have read what was agreed on before.
                disk.remove(self._checkpoints.cut(self._number - 1, self._attempt))
                said = notes(disk, folder)
        if _CUT in said:
            cut = said[_CUT]
            found = Agreed(field_of(cut, "step", int), field_of(cut, "stop", bool))
            # Who asked for a stop after its promise asks once more.
            self._wants = self._wants_stop and not found.stops
            self._number += 1
            self._release(found)

    def _release(self, agreed: Agreed | None = None) -> None:
        with self._changed:
            if agreed is not None:
                self._agreed.append(agreed)
            self._limit = None
            self._before = self._step
            self._changed.notify_all()
