"""What is to happen in virtual time, and when: a heap of calls, and the time that it has come to.

An event is a call at a time. What happens at the same time happens in an order that the seed
decides, so that tests meet every order; what an event costs hardly depends on how many wait.
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

from psrt.errors import ConfigError

#: What an event does, with its argument.
Action: TypeAlias = Callable[[Any], None]

#: The tie of what happens at its time behind everything that was not asked to wait, see ``at``.
BEHIND = 1.0

#: Objects that are made before Python looks for garbage: with tens of thousands of messages under
#: way, all of them in use, looking after every 700 takes longer than all the rest.
_RARELY = (100_000, 50, 100)


class Agenda:
    """Time, and what happens in it."""

    def __init__(self, seed: int) -> None:
        """Start at 0 s with nothing to do.

        Args:
            seed: decides what comes first of what happens at the same time.
        """
        self.time = 0.0
        #: Events so far.
        self.events = 0
        #: A heap of (time, tie, number, action, argument).
        self._queue: list[tuple[float, float, int, Action, Any]] = []
        self._chance = _chances(np.random.SeedSequence(seed, spawn_key=(1,))).__next__
        #: Returns a number larger than at any earlier call.
        self._number = count().__next__

    def after(self, seconds: float, action: Action, argument: Any = None) -> None:
        """Let ``action(argument)`` happen in so many seconds.

        Raises:
            ConfigError: if that is no time.
        """
        if not 0.0 <= seconds < math.inf:
            refuse(seconds)
        when, tie = self.time + seconds, self._chance()
        heappush(self._queue, (when, tie, self._number(), action, argument))

    def at(
        self, when: float, action: Action, argument: Any, *, not_before: float = -math.inf
    ) -> float:
        """Let ``action(argument)`` happen at a time, or right after an earlier event of a row.

        Args:
            when: finite, not in the past.
            action: what is to happen.
            argument: goes with it.
            not_before: what ``at`` returned for the event that this one must not overtake.

        Returns:
            when it happens.
        """
        if when > not_before:
            heappush(self._queue, (when, self._chance(), self._number(), action, argument))
            return when
        # Of two that are behind, the number decides, which counts up.
        heappush(self._queue, (not_before, BEHIND, self._number(), action, argument))
        return not_before


def refuse(seconds: float) -> NoReturn:
    """Say that nothing can take so long.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(f"costs must be finite and 0 or more seconds, one came to {seconds}")


@contextmanager
def little_garbage() -> Iterator[None]:
    """Have Python look for garbage rarely meanwhile."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _chances(seed: np.random.SeedSequence) -> Iterator[float]:
    """Yield random numbers in [0, 1); a thousand at a time cost little more than one."""
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.random(1024).tolist()
