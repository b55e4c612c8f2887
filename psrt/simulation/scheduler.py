"""The scheduler: roles as coroutines that events resume, one at a time, until all have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from heapq import heappop
from typing import Any

import numpy as np

from psrt.core.errors import TransportError
from psrt.simulation.event_queue import EventQueue, infrequent_gc

#: A role: what one rank does, suspended wherever virtual time must pass.
Role = Coroutine[Any, Any, Any]


class _Task:
    """A role that runs and, once it has ended, its result."""

    __slots__ = ("done", "result", "role")

    def __init__(self, role: Role) -> None:
        self.role = role
        self.result: Any = None
        self.done = False


class Scheduler(EventQueue):
    """Runs events and resumes roles; knows nothing of messages or of why roles wait."""

    def __init__(self, seed: int) -> None:
        """Start at 0 s without roles; ``seed`` draws the order of simultaneous events."""
        super().__init__(seed)
        self._tasks: dict[int, _Task] = {}
        #: Roles that have not ended.
        self._open = 0
        #: Roles that wait for a condition, by rank.
        self._watches: dict[int, Callable[[], bool]] = {}
        #: Ranks whose condition the current event may have made true.
        self._touched: list[int] = []
        #: By rank, the number of holds on it; and the held ranks that are due to be resumed.
        self._holds: Counter[int] = Counter()
        self._due: set[int] = set()
        #: Actions to call before an event, by its number from 1, sorted so that the next is last;
        #: and the number of events before the next action, −1 for none.
        self._strikes: list[tuple[int, Callable[[], None]]] = []
        self._struck_after = -1

    def run(self, roles: dict[int, Role]) -> dict[int, Any]:
        """Run a role at each rank to its end and return their results by rank.

        The result of a role stopped by ``end`` is None.

        Raises:
            TransportError: on a deadlock: no event is left and a role has not ended.
            ConfigError: if a cost is negative or not finite.
        """
        self._tasks = {rank: _Task(role) for rank, role in roles.items()}
        self._open = len(roles)
        for rank in roles:
            self.after(0.0, self._begin, rank)
        try:
            # A diverging run overflows; its loss shows that.
            with infrequent_gc(), np.errstate(all="ignore"):
                self._run_events()
        finally:
            for task in self._tasks.values():
                task.role.close()
        return {rank: task.result for rank, task in self._tasks.items()}

    def _run_events(self) -> None:
        """Run one event after another until every role has ended."""
        queue, touched = self._queue, self._touched
        while self._open:
            if self.events == self._struck_after:
                self._strike()
                continue
            if not queue:
                self._check_all()
                continue
            self.time, _, _, action, argument = heappop(queue)
            self.events += 1
            action(argument)
            if touched:
                self._check_touched()

    def before(self, event: int, action: Callable[[], None]) -> None:
        """Call ``action()`` right before an event; never if there are fewer.

        Args:
            event: its number, from 1.
            action: what to call; several before one event are called in the order of these calls.
        """
        self._strikes.insert(0, (event, action))  # popped last: after those before this event
        self._strikes.sort(key=lambda it: it[0], reverse=True)
        self._struck_after = self._strikes[-1][0] - 1

    def _strike(self) -> None:
        _, action = self._strikes.pop()
        self._struck_after = self._strikes[-1][0] - 1 if self._strikes else -1
        action()
        if self._touched:
            self._check_touched()

    def resume(self, rank: int) -> None:
        """Run a role up to its next await that takes time; do nothing if it has ended."""
        if self._holds and self._holds[rank]:
            self._due.add(rank)
        else:
            self._begin(rank)

    def _begin(self, rank: int) -> None:
        """Resume a role even if it is held: a role held from the start also begins, at 0 s."""
        task = self._tasks[rank]
        if task.done:
            return
        try:
            task.role.send(None)
        except StopIteration as stop:
            task.result, task.done = stop.value, True
            self._open -= 1

    def hold(self, rank: int) -> None:
        """Stop resuming a role until ``let_go`` was called once for each ``hold``."""
        self._holds[rank] += 1

    def let_go(self, rank: int) -> None:
        """Undo one ``hold``; resume the role at once if it became due meanwhile."""
        self._holds[rank] -= 1
        if not self._holds[rank] and rank in self._due:
            self._due.discard(rank)
            self.resume(rank)

    def is_running(self, rank: int) -> bool:
        """Whether a role has not ended."""
        task = self._tasks.get(rank)
        return task is not None and not task.done

    def end(self, rank: int) -> bool:
        """Stop a role wherever it is; return whether it was running."""
        task = self._tasks.get(rank)
        if task is None or task.done:
            return False
        task.role.close()
        task.done = True
        self._open -= 1
        return True

    def watch(self, rank: int, done: Callable[[], bool]) -> None:
        """Resume a role once ``done()``, which is evaluated whenever the rank is touched."""
        self._watches[rank] = done

    def touch(self, rank: int) -> None:
        """Mark a rank whose watched condition may have changed."""
        if rank in self._watches:
            self._touched.append(rank)

    def _check_touched(self) -> None:
        """Resume the roles whose condition holds, and those that they release in turn."""
        touched, watches = self._touched, self._watches
        while touched:
            rank = touched.pop()
            if rank in watches and watches[rank]():
                del watches[rank]
                self.resume(rank)

    def _check_all(self) -> None:
        """Check every condition, touched or not, before reporting a deadlock.

        No deadlock is missed, and none is reported wrongly. An empty queue means that no message is
        in flight and no time is left to pass, so only a condition can still become true. It may
        have done so without a touch, such as one about state that other roles share: so all are
        evaluated. If that resumes no role and queues no event, nothing can change any more, and
        every role that has not ended waits forever.
        """
        watched = len(self._watches)
        self._touched.extend(self._watches)
        self._check_touched()
        if self._open and not self._queue and len(self._watches) == watched:
            waiting = [rank for rank, task in self._tasks.items() if not task.done]
            if self.give_up(waiting):
                return
            raise TransportError(self.deadlock(waiting))

    def give_up(self, waiting: Sequence[int]) -> bool:
        """End roles that may wait forever; return whether any did."""
        return False

    def deadlock(self, waiting: Sequence[int]) -> str:
        """Return the message of a deadlock; a subclass that knows the causes says more."""
        return f"deadlock at {self.time:.6f} s of virtual time: ranks {waiting} wait"
