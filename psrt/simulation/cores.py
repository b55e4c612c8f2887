"""Cores that several ranks share: what is to compute on a machine takes turns on them.

With k ranks at work on c cores each works at min(1, c/k) of its speed, as a fair scheduler's many
short turns amount to. So a machine has one clock of work, which advances at that speed, and work of
s seconds that begins at clock w ends at w + s, whatever begins or ends meanwhile: an event costs
the logarithm of k. Pure: seconds and calls.

Source: Parekh and Gallager, IEEE/ACM Transactions on Networking 1(3), 1993, for the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from psrt.simulation.event_queue import Action, EventQueue, refuse

#: Seconds of work that rounding may leave at its end.
_ROUNDING = 1e-12


@dataclass(eq=False, slots=True)
class Cores:
    """The cores of one machine."""

    queue: EventQueue
    #: Their number.
    cores: int
    #: The clock of work, and the virtual time at which it was read.
    _clock: float = 0.0
    _at: float = 0.0
    #: A heap of (end by the clock of work, number, action, argument).
    _busy: list[tuple[float, int, Action, Any]] = field(default_factory=list)
    _number: Any = field(default_factory=lambda: count().__next__)
    #: The number of the next end that was scheduled: events of an earlier one are ignored.
    _plan: int = 0

    def work(self, seconds: float, action: Action, argument: Any) -> None:
        """Call ``action(argument)`` when that much work is done.

        Raises:
            ConfigError: if ``seconds`` is negative or not finite.
        """
        if not 0.0 <= seconds < float("inf"):
            refuse(seconds)
        self._advance()
        heappush(self._busy, (self._clock + seconds, self._number(), action, argument))
        self._schedule()

    def _speed(self) -> float:
        return min(1.0, self.cores / max(1, len(self._busy)))

    def _advance(self) -> None:
        passed, self._at = self.queue.time - self._at, self.queue.time
        self._clock += passed * self._speed()

    def _schedule(self) -> None:
        self._plan += 1
        if self._busy:
            left = max(0.0, self._busy[0][0] - self._clock) / self._speed()
            self.queue.after(left, self._end, self._plan)

    def _end(self, plan: int) -> None:
        """End the work that is done, unless something began meanwhile."""
        if plan != self._plan:
            return
        self._advance()
        ended = []
        while self._busy and self._busy[0][0] <= self._clock + _ROUNDING:
            ended.append(heappop(self._busy))
        self._schedule()
        for _, _, action, argument in ended:
            action(argument)
