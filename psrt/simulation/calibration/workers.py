"""The times that workers computed and summed, from their own events. Pure.

Only differences between times of one worker count, so its clock does not matter. Where all workers
share a clock, a sum is over when the first of them continues. The time until another worker notices
counts as its own computing.
"""

from __future__ import annotations

import numpy as np

from psrt.history import History, Kind
from psrt.history.kinds import Reduce
from psrt.history.log import Events
from psrt.simulation.calibration.times import Seconds

#: Events that end a worker's current activity and begin the next.
_TURNS = (Kind.READ, Kind.PUSH, Kind.STEP, Kind.REDUCE, Kind.REDUCED, Kind.LEAVE)
#: (W, rounds) float64.
_Table = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def rounds(history: History) -> tuple[Seconds, Seconds, Seconds]:
    """Return how long each sum over all workers took, and when it was over.

    Returns:
        Three arrays. The time from the last worker's arrival until the first worker continues, of
        each round in which something was summed; the same of all other rounds; and the time at
        which a sum was over, of all rounds. Between hosts, whose clocks differ, a sum took as long
        as the shortest wait for it, and the time at which it was over is nan.
    """
    arrived, left = _table(history, Kind.REDUCE, "time"), _table(history, Kind.REDUCED, "time")
    if len(set(history.header.hosts)) > 1:
        took = _table(history, Kind.REDUCED, "seconds").min(axis=0)
        over = np.full(took.size, np.nan)
    else:
        # A gradient that is summed while it is computed may be complete at another worker, which
        # then continues, before its own worker arrives to wait for the sum.
        waited = _table(history, Kind.REDUCED, "seconds")
        fragments = (_table(history, Kind.REDUCE, Reduce.fragment) >= 0).any()
        framed = any((events["kind"] == Kind.SUM_ENCODE).any() for events in history.workers)
        if fragments and framed:
            # With a codec a sum begins when its divisor is known. In virtual time that is at the
            # end of a step, not at the sending: a sum that no worker waits for takes no time there.
            arrived = np.maximum(arrived, left - waited)
        last = arrived.max(axis=0)
        over = np.maximum(left.min(axis=0), last)
        took = over - last
        if fragments:
            # A fragment may have been complete long before it was due. It was complete when the
            # first worker took it, if that worker had mostly waited since.
            least = waited[left.argmin(axis=0), np.arange(took.size)]
            took = np.where(least < took / 2, least, took)
            over = last + took
        # A worker that made no step since a sum arrives at the next one as soon as the sum is
        # over, not when it noticed that.
        since = np.maximum(over, left - waited)
        idle = _idle(history, arrived, left)
        arrived = np.where(idle, np.minimum(arrived, np.roll(since, 1, axis=1)), arrived)
        last = arrived.max(axis=0)
        took = over - last
    brought = _table(history, Kind.REDUCED, "weight").max(axis=0) > 0
    if brought.size and not brought[-1] and not np.isnan(over[-1]):
        took[-1] = left[:, -1].max() - last[-1]  # the job is over with the last worker
    return took[brought], took[~brought], over


def _idle(
    history: History, arrived: _Table, left: _Table
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return by worker and round whether it made no step since the previous round ended for it."""
    idle = np.zeros(arrived.shape, np.bool_)
    for worker, events in enumerate(history.workers):
        steps = events["time"][events["kind"] == Kind.STEP]
        since = np.searchsorted(steps, left[worker, :-1], side="right")
        idle[worker, 1:] = np.searchsorted(steps, arrived[worker, 1:], side="right") <= since
        idle[worker, 1:] &= arrived[worker, 1:] >= left[worker, :-1]
    return idle


def _table(history: History, kind: Kind, field: str) -> _Table:
    """Return a field of the events of one kind, by worker and round."""
    rows = [events[field][events["kind"] == kind] for events in history.workers]
    count = min(map(len, rows))
    return np.array([row[:count] for row in rows], np.float64)


def steps_of(events: Events, kind: Kind) -> int:
    """Return the number of steps that a worker took, by its events of this kind."""
    return int(events["clock"][events["kind"] == kind].max(initial=-1)) + 1


def computing(events: Events, over: Seconds) -> Seconds:
    """Return how long a worker computed, by clock.

    Args:
        events: of the worker.
        over: by round, when its sum was over for all; nan to use this worker's own events.
    """
    found: dict[int, float] = {}
    #: When the worker could continue; its last local step, if not shared yet; and the rounds done.
    since, local, reduced = np.nan, -1, 0
    # The same gradient goes to all shards, at the same time. Encoding it counts as computing.
    kinds = events["kind"]
    once = events[np.isin(kinds, _TURNS) & ((kinds != Kind.PUSH) | (events["shard"] == 0))]
    names = ("kind", "time", "clock", "samples", "seconds")
    for kind, time, clock, samples, seconds in zip(*(once[n].tolist() for n in names), strict=True):
        if kind == Kind.STEP:
            if samples:
                found[clock] = seconds if np.isnan(since) else time - since
            local = clock if samples else -1
        elif kind in (Kind.PUSH, Kind.REDUCE):
            if local >= 0:  # preparing the parameters to be averaged
                found[local] += time - since
            elif samples and kind == Kind.PUSH:
                found[clock] = time - since
            local = -1
        elif kind == Kind.REDUCED:
            shared = over[reduced] if reduced < len(over) else np.nan
            # A fragment that was complete before it was taken, after more steps, delayed nothing.
            time = time if np.isnan(shared) else max(since, float(shared))
            reduced += 1
        since = time
    return by_clock(found, steps_of(events, Kind.STEP) or steps_of(events, Kind.PUSH))


def by_clock(found: dict[int, float], steps: int) -> Seconds:
    """Return an array by clock of at least ``steps`` elements, nan where nothing was found.

    It is longer where backups overtook a worker, which continues with a clock beyond its last push.

    >>> by_clock({2: 0.5, 0: -1e-9}, 4)
    array([0. , nan, 0.5, nan])
    >>> by_clock({1: 0.5}, 0)
    array([nan, 0.5])
    """
    array = np.full(max(steps, max(found, default=-1) + 1), np.nan)
    array[list(found)] = np.maximum(0.0, list(found.values()))
    return array
