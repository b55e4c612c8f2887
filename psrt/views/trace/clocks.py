"""The times of hosts, put on one clock. Pure.

The clocks of hosts were compared with the first one's when a run began and when it ended. What one
was ahead at the beginning is not in its times any more; what it has drifted by since is taken off
here, on a straight line between the two. A run that went on from a checkpoint has two such readings
for each attempt.
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
    """What to take off the times of each host."""

    def __init__(self, header: Header) -> None:
        #: By host: the times of its readings, in seconds, and what it had drifted by then.
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
        # Between two attempts nothing happened, so what the line is there does not count.
        return np.asarray(times - np.interp(times, *self._drifts[host]), dtype=np.float64)

    def line(self) -> str | None:
        """Return what is known of the clocks, for the user; None where there is one."""
        if self.clocks < 2:
            return None
        text = f"clocks of {plural(self.clocks, 'host')}: read to {time_text(self.error)}"
        if self.once:
            return f"{text}, but not at the end: what they drifted by is in the times"
        return f"{text}; a drift of {time_text(self.drift)} at most is taken off"
