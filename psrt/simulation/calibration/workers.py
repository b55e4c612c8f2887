"""What a worker's events say: how long it computed, and when it went on. Pure.

Only differences between times of one worker count, whose clock does not matter; but where all
workers share a clock, a sum is over when the first of them goes on, and what another one needs to
notice that is time of its own.
"""

from __future__ import annotations

import numpy as np

from psrt.history import History, Kind
from psrt.history.reading import Events
from psrt.simulation.calibration.times import Seconds

#: (W, rounds) float64.
_Table = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def rounds(history: History) -> tuple[Seconds, Seconds]:
    """Return how long each sum over all workers took, and when it was over.

    Returns:
        (rounds,) each: from the coming of the last worker to the going on of the first, and the
        time of that. Between hosts, whose clocks differ, a sum took as long as the worker waited
        that waited least, and the time is nan.
    """
    came, went = _table(history, Kind.REDUCE, "time"), _table(history, Kind.REDUCED, "time")
    if len(set(history.header.hosts)) > 1:
        took = _table(history, Kind.REDUCED, "seconds").min(axis=0)
        over = np.full(took.size, np.nan)
    else:
        # Where a gradient is summed while it is computed, its last part may be on its way, and
        # another worker go on, before its own worker has come to wait.
        last = came.max(axis=0)
        over = np.maximum(went.min(axis=0), last)
        took = over - last
    # Where nobody brings anything, nothing is summed.
    brought = _table(history, Kind.REDUCED, "weight").max(axis=0) > 0
    return took[brought], over


def _table(history: History, kind: Kind, field: str) -> _Table:
    """Return a field of the events of one kind, by worker and round."""
    rows = [events[field][events["kind"] == kind] for events in history.workers]
    count = min(map(len, rows))
    return np.array([row[:count] for row in rows], np.float64)


def steps_of(events: Events, kind: Kind) -> int:
    """Return how far a worker's clock came, in events of this kind."""
    return int(events["clock"][events["kind"] == kind].max(initial=-1)) + 1


def computing(events: Events, over: Seconds) -> Seconds:
    """Return how long a worker computed, by clock.

    Args:
        events: of the worker.
        over: by round, when its sum was over for all; nan where this worker's own word counts.
    """
    found: dict[int, float] = {}
    #: When the worker could go on, and the local step that has not been shared yet.
    since, local, reduced = np.nan, -1, 0
    # To several shards the same gradient goes at the same time.
    once = events[(events["kind"] != Kind.PUSH) | (events["shard"] == 0)]
    names = ("kind", "time", "clock", "samples", "seconds")
    for kind, time, clock, samples, seconds in zip(*(once[n].tolist() for n in names), strict=True):
        if kind == Kind.STEP:
            if samples:
                found[clock] = seconds if np.isnan(since) else time - since
            local = clock if samples else -1
        elif kind in (Kind.PUSH, Kind.REDUCE):
            if local >= 0:  # what it takes to get the parameters ready for their average
                found[local] += time - since
            elif samples and kind == Kind.PUSH:
                found[clock] = time - since
            local = -1
        elif kind == Kind.REDUCED:
            shared = over[reduced] if reduced < len(over) else np.nan
            time = time if np.isnan(shared) else float(shared)
            reduced += 1
        since = time
    return by_clock(found, steps_of(events, Kind.STEP) or steps_of(events, Kind.PUSH))


def by_clock(found: dict[int, float], steps: int) -> Seconds:
    """Return an array of what is known of the clocks below ``steps``, nan for the others.

    A worker that backups overtake may go on with a clock far beyond its last push.

    >>> by_clock({2: 0.5, 0: -1e-9}, 4)
    array([0. , nan, 0.5, nan])
    >>> by_clock({1: 0.5}, 0)
    array([nan, 0.5])
    """
    array = np.full(max(steps, max(found, default=-1) + 1), np.nan)
    array[list(found)] = np.maximum(0.0, list(found.values()))
    return array
