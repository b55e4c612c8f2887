"""One process's part in agreeing on the step to save: ``psrt.sync.cut`` over the line to rank 0.

The role asks at each boundary whether to save itself. The thread that watches over the ranks
receives the messages of others, so a promise is made whatever the role does. Neither calls MPI for
it. A job of one process, or in virtual time, has no line, and agrees with itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from threading import Condition, Lock
from typing import Any

from psrt.core.errors import OutputError
from psrt.faults.watcher import Watcher
from psrt.job.pace import Pace
from psrt.sync.cut import Agreed, Cuts, Sends, message_of, words_of


class Boundaries:
    """Says when the roles of this process are saved."""

    def __init__(
        self,
        cuts: Cuts,
        line: Watcher | None = None,
        *,
        pace: Pace | None = None,
        timeout_s: float = 60.0,
        gone: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Set up.

        Args:
            cuts: decides.
            line: to the other processes; None if there are none.
            pace: says when it is time for a checkpoint, at one process; None for by steps alone.
            timeout_s: how long a role may wait for an agreement.
            gone: returns the processes that the others continue without.
        """
        self._cuts, self._line, self._pace = cuts, line, pace
        self._timeout_s, self._gone = timeout_s, gone
        self._changed = Condition(Lock())
        #: The requests that are not passed on yet: for each, whether to stop.
        self._asked: deque[bool] = deque()
        self._lost = 0
        #: Why no agreement is possible; empty if it is. And the function to call with that, once.
        self.trouble = ""
        self.failed: Callable[[str], None] | None = None
        if line is not None:
            line.talk(self._hear, self._look)

    def close(self) -> None:
        """Accept nothing more: all processes have finished."""
        if self._line is not None:
            self._line.talk()

    def ask(self, *, stop: bool = False) -> None:
        """Ask for a checkpoint soon; safe in a signal handler, since it takes no lock.

        Args:
            stop: end the run after it.
        """
        self._asked.append(stop)
        if self._line is not None:
            self._line.prod()

    def at(self, step: int, saved: int) -> Agreed | None:
        """Report that a role is at a boundary, in rounds, and wait if it must not pass.

        Args:
            step: the boundary.
            saved: the step of its last save.

        Returns:
            The decision for which it must save, if any.

        Raises:
            OutputError: if there is no agreement in time.
        """
        cuts = self._cuts
        with self._changed:
            # In this order: a request that is passed on now leads to a promise for the next
            # boundary, so this role computes while the others answer.
            self._send(cuts.reach(step))
            self._tend()
            if not self._changed.wait_for(lambda: cuts.may_pass(step), self._timeout_s):
                raise OutputError(f"no agreement on a step to save within {self._timeout_s:g} s")
            return cuts.due(step, saved)

    def has_agreed(self) -> bool:
        """Return whether anything was decided; never waits."""
        with self._changed:
            self._tend()
            return bool(self._cuts.agreed)

    def call(self, step: int, last: int) -> int:
        """Return the checkpoint that workers park for next, as ``Params.cut``; 0 for none.

        Args:
            step: that they have reached, as far as the caller knows.
            last: the step of the caller's last checkpoint; 0 for none in this run.
        """
        with self._changed:
            self._tend()
            self._send(self._cuts.reach(step))
            return self._cuts.after(last)

    def _tend(self) -> None:
        """Pass on requests, due checkpoints, and processes that are gone."""
        while self._asked:
            self._ask(stop=self._asked.popleft())
        if self._pace is not None and self._pace.is_due():
            self._ask(stop=False)
        gone = self._gone()
        if len(gone) > self._lost:
            self._lost = len(gone)
            self._send(self._cuts.lose(gone))

    def _ask(self, *, stop: bool) -> None:
        if not self.trouble:
            self._send(self._cuts.ask(stop=stop))
        elif self.failed is not None:
            self.failed(self.trouble)
            self.failed = None

    def _send(self, sends: Sends) -> None:
        for to, message in sends:
            if self._line is not None:
                self._line.say(to, words_of(message))

    def _hear(self, words: Any) -> None:
        with self._changed:
            self._send(self._cuts.hear(message_of(words)))
            self._changed.notify_all()

    def _look(self) -> None:
        with self._changed:
            self._tend()
            self._changed.notify_all()
