"""How often a run is saved where the interval is given in seconds, or is to be the cheapest."""

from __future__ import annotations

import time
from collections.abc import Callable

from psrt.checkpoint.interval import young_s

#: Seconds to the first checkpoint where the interval is to be found: its cost is not known before.
FIRST_S = 1.0


class Pace:
    """Says when it is time for the next checkpoint."""

    def __init__(
        self,
        interval_s: float | None,
        *,
        mtbf_s: float,
        cost_s: Callable[[], float | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin now.

        Args:
            interval_s: from one to the next; None takes the cheapest.
            mtbf_s: mean time between failures of the job.
            cost_s: returns the seconds from the last cut until its checkpoint was there; None
                before the first.
            now: a clock, in seconds.
        """
        self._interval_s, self._mtbf_s, self._cost_s = interval_s, mtbf_s, cost_s
        self._now = now
        self._last = now()

    @property
    def interval_s(self) -> float:
        """Seconds from one to the next, as far as is known now."""
        if self._interval_s is not None:
            return self._interval_s
        cost_s = self._cost_s()
        return FIRST_S if cost_s is None else young_s(cost_s, self._mtbf_s)

    def is_due(self) -> bool:
        """Whether it is time; if so, the next interval begins."""
        if self._now() - self._last < self.interval_s:
            return False
        self._last = self._now()
        return True
