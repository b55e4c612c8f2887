"""A queue of events in virtual time.

An event is a call at a time. Simultaneous events happen in an order drawn from the seed, so that
tests meet every order; the cost of an event hardly depends on the length of the queue.

**The same seed gives the same run, event for event.** A heap of (time, tie, number, …) orders
events totally: the number, which counts calls, decides equal ties, so neither actions nor the order
of a hash table is ever compared. Ties have a random stream of their own, so the number of draws of
the costs does not shift them.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappush
from itertools import count
from typing import Any, NoReturn, TypeAlias

import numpy as np

from psrt.core.errors import ConfigError

#: What an event does, called with the event's argument.
Action: TypeAlias = Callable[[Any], None]

#: A tie above all that are drawn, which are in [0, 1).
_LAST = 1.0

#: Objects made before Python collects each of its generations. With tens of thousands of messages
#: in flight, none of them garbage, collecting after every 700 takes longer than all the rest.
_INFREQUENT = (100_000, 50, 100)


class EventQueue:
    """Virtual time and the events to come."""

    def __init__(self, seed: int) -> None:
        """Start at 0 s without any event.

        Args:
            seed: draws the order of simultaneous events.
        """
        #: Virtual time in seconds.
        self.time = 0.0
        #: Events that have happened.
        self.events = 0
        #: A heap of (time, tie, number, action, argument).
        self._queue: list[tuple[float, float, int, Action, Any]] = []
        self._tie = _ties(np.random.SeedSequence(seed, spawn_key=(1,))).__next__
        self._number = count().__next__

    def after(self, seconds: float, action: Action, argument: Any = None) -> None:
        """Call ``action(argument)`` after a delay.

        Args:
            seconds: from now.
            action: what to call.
            argument: its argument.

        Raises:
            ConfigError: if ``seconds`` is negative or not finite.
        """
        if not 0.0 <= seconds < math.inf:
            refuse(seconds)
        when, tie = self.time + seconds, self._tie()
        heappush(self._queue, (when, tie, self._number(), action, argument))

    def at(
        self, when: float, action: Action, argument: Any, *, not_before: float = -math.inf
    ) -> float:
        """Call ``action(argument)`` at a time, but never before the previous event of a sequence.

        Where the two would coincide or swap, this one happens at the time of the previous one and
        after it: its tie is above every drawn one, and among several such events the number, which
        counts up, keeps their order.

        Args:
            when: finite, not in the past.
            action: what to call.
            argument: its argument.
            not_before: the value that ``at`` returned for the previous event of the sequence.

        Returns:
            The time of the event.
        """
        if when > not_before:
            heappush(self._queue, (when, self._tie(), self._number(), action, argument))
            return when
        heappush(self._queue, (not_before, _LAST, self._number(), action, argument))
        return not_before


def refuse(seconds: float) -> NoReturn:
    """Raise a `ConfigError` about a cost that is negative or not finite."""
    raise ConfigError(f"costs must be finite and 0 or more seconds, one came to {seconds}")


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Collect garbage less often while the context lasts."""
    before = gc.get_threshold()
    gc.set_threshold(*_INFREQUENT)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _ties(seed: np.random.SeedSequence) -> Iterator[float]:
    """Yield random numbers in [0, 1); drawing a thousand at once costs little more than one."""
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.random(1024).tolist()
