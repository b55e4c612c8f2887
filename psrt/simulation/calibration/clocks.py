"""The times of a run over several hosts, by the clock of the first one. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from psrt.history import History
from psrt.history.log import Events


def on_one_clock(history: History) -> History:
    """Return a history as if all its times had been read off one clock.

    A host's times were put right when the run began. What its clock has gained or lost by the end
    is taken off here, in proportion to the time; what is left is the error of two measurements,
    each half of a message there and back. A history without servers, whose sums are measured at
    each end, stays as it is.
    """
    header = history.header
    if not header.servers or len(set(header.hosts)) == 1:
        return history

    def corrected(events: Events, rank: int) -> Events:
        readings = [each[1:3] for each in header.clocks if each[0] == header.hosts[rank]]
        if not readings:
            return events
        times, ahead = zip(*sorted(readings), strict=True)
        found = events.copy()
        found["time"] -= np.interp(events["time"], times, ahead) - ahead[0]
        return found

    return replace(
        history,
        header=replace(header, hosts=(0,) * len(header.hosts), clocks=()),
        workers=tuple(map(corrected, history.workers, header.workers)),
        shards=tuple(map(corrected, history.shards, header.servers)),
    )
