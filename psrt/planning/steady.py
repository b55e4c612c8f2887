"""The speed of a job in steady state, by the events of its workers: recorded or simulated. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.history import Kind
from psrt.history.log import Events

#: The part of a worker's steps that count: not the first, which find nothing in caches, and not the
#: last, beside which others have ended.
_FROM, _TO = 0.25, 0.95


def speed_of(workers: Sequence[Events], *, period: int = 1) -> float:
    """Return the samples per second of all workers together.

    Args:
        workers: the events of each.
        period: steps after which everything repeats, such as those between two averages.

    Returns:
        0 if no worker took two steps.
    """
    return sum(_speed(events, period) for events in workers)


def _speed(events: Events, period: int) -> float:
    kinds = events["kind"]
    kind = Kind.STEP if (kinds == Kind.STEP).any() else Kind.PUSH
    steps = events[(kinds == kind) & (events["shard"] <= 0) & (events["samples"] > 0)]
    count = len(steps)
    first = int(count * _FROM)
    last = first + max(1, int((count * _TO - first) // period)) * period
    if not first < last < count:
        first, last = 0, count - 1
    seconds = float(steps["time"][last] - steps["time"][first]) if count > 1 else 0.0
    samples = float(np.sum(steps["samples"][first + 1 : last + 1])) if count > 1 else 0.0
    return samples / seconds if seconds > 0 else 0.0
