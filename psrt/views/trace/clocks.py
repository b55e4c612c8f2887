"""The times of hosts, put on one clock. Pure.

The clocks of hosts were compared with the first host's when the run began and when it ended. The
offset at the beginning is already removed from the recorded times. The drift since then is
subtracted here, on a straight line between the two readings. A run that was resumed from a
checkpoint has two readings for each attempt.
"""

from __future__ import annotations

from bisect import bisect
from itertools import groupby

import numpy as np
import numpy.typing as npt

from psrt.core.units import plural, time_text
from psrt.history.header import Header

Times = npt.NDArray[np.float64]


class HostClocks:
    """What to subtract from the times of each host."""

    def __init__(self, header: Header) -> None:
        #: By host: the times of its readings, in seconds, and its drift at each.
        self._drifts: dict[int, tuple[list[float], list[float]]] = {}
        #: The largest drift, and the largest error of a reading, in seconds.
        self.drift = self.error = 0.0
        #: Number of clocks, and whether one was read at the beginning only.
        self.clocks = len(set(header.hosts)) if header.clocks else 1
        self.once = False
        readings = sorted(header.clocks, key=lambda it: (it[0], it[1]))
        for host, its in groupby(readings, key=lambda it: it[0]):
            self._add(host, list(its), header.resumed)

    def _add(
        self,
        host: int,
        readings: list[tuple[int, float, float, float]],
        resumed: tuple[float, ...],
    ) -> None:
        times: list[float] = []
        drifts: list[float] = []
        for _, own in groupby(readings, key=lambda it: bisect(resumed, it[1])):
            attempt = list(own)
            self.once |= len(attempt) < 2
            for _, at, ahead, error in attempt:
                times.append(at)
                drifts.append(ahead - attempt[0][2])
                self.error = max(self.error, abs(error))
        self.drift = max(self.drift, *map(abs, drifts))
        self._drifts[host] = times, drifts

    def corrected(self, host: int, times: Times) -> Times:
        """Return times of a host, in seconds, by the clock of the first one."""
        if host not in self._drifts:
            return times
        # Nothing happened between two attempts, so the line between them does not matter.
        return np.asarray(times - np.interp(times, *self._drifts[host]), dtype=np.float64)

    def line(self) -> str | None:
        """Return what is known about the clocks, for the user; None if there is only one."""
        if self.clocks < 2:
            return None
        text = f"clocks of {plural(self.clocks, 'host')}: read within {time_text(self.error)}"
        if self.once:
            return f"{text}, but not at the end, so the times include their drift"
        return f"{text}; times are corrected for a drift of at most {time_text(self.drift)}"
