"""Convert the times of a run over several hosts to the clock of the first host. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from psrt.history import History
from psrt.history.log import Events


def on_one_clock(history: History) -> History:
    """Return a history with all times converted to one clock.

    A host's times were corrected when the run began. What its clock gained or lost by the end is
    subtracted here, in proportion to the time. The remaining error is that of two measurements,
    each half a round trip. A history without servers stays as it is, as its sums are measured at
    each end.
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
