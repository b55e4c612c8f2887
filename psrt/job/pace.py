"""When a run is saved, if the interval is in seconds or should be the cheapest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from psrt.checkpoint.interval import young_s

#: Seconds to the first checkpoint if the interval is computed: its cost is unknown before.
FIRST_S = 1.0


@dataclass(eq=False)
class Pace:
    """Decides when the next checkpoint is due; counts from its creation."""

    #: Seconds from one checkpoint to the next; None takes the cheapest interval.
    given_s: float | None
    _: KW_ONLY
    #: Mean time between failures of the job.
    mtbf_s: float
    #: Returns the seconds from the last cut to its commit; None before the first.
    cost_s: Callable[[], float | None]
    #: A clock, in seconds.
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._last = self.now()

    @property
    def interval_s(self) -> float:
        """Seconds from one to the next, by what is known now."""
        if self.given_s is not None:
            return self.given_s
        cost_s = self.cost_s()
        return FIRST_S if cost_s is None else young_s(cost_s, self.mtbf_s)

    def is_due(self) -> bool:
        """Whether one is due; if so, the next interval begins."""
        if self.now() - self._last < self.interval_s:
            return False
        self._last = self.now()
        return True
