"""The values of a knob that ``--tune`` tries, and which one it chooses by their times. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

#: Local steps between averages of the second trial: enough to tell an average from a step.
PERIOD: Final = 4
#: The first candidate, the usual value, stays if no other is better by more than this fraction.
_WORTH = 0.02
#: The largest share of a step that averages may take.
_MOST_SHARE = 0.1


def fastest(values: Sequence[int], seconds: Sequence[float]) -> int:
    """Return the value with the shortest step, or the first one if that is hardly longer.

    >>> fastest([4, 1, 2], [1.0, 0.99, 1.2]), fastest([4, 1, 2], [1.0, 0.9, 1.2])
    (4, 1)
    """
    at = min(range(len(values)), key=seconds.__getitem__)
    return values[at] if seconds[at] < (1 - _WORTH) * seconds[0] else values[0]


def fewest_averages(values: Sequence[int], seconds: Sequence[float], *, most: int) -> int:
    """Return the smallest period H with which averages take at most a tenth of a step.

    A step takes c + a/H, a share a/H of an average included; two trials give c and a. Waiting for
    a worker that is always slower is part of c, as no H makes it shorter.

    Args:
        values: two periods, the shorter one first; or the only one that there is.
        seconds: of a step with each.
        most: the largest H that is allowed; returned if no smaller one is long enough.

    >>> [fewest_averages([1, 8], it, most=64) for it in ([2.0, 1.125], [1.0, 1.0], [9.0, 1.1])]
    [9, 1, 64]
    """
    if len(values) == 1:
        return values[0]
    (first, other), (whole, part) = values, seconds
    average = (whole - part) / (1 / first - 1 / other)
    step = whole - average / first
    if average <= 0:
        return first
    enough = average * (1 - _MOST_SHARE) / _MOST_SHARE
    return most if step * most <= enough else max(1, math.ceil(enough / step))


def buckets_to_try(count: Callable[[int], int], n_bytes: int, usual: int) -> tuple[int, ...]:
    """Return sizes of buckets, in bytes, that differ in how many there are: the usual one first.

    Args:
        count: size of a bucket → number of buckets.
        n_bytes: of the gradient.
        usual: the size that a run has if nothing is tried.
    """
    found: dict[int, int] = {}
    for nbytes in (usual, n_bytes, *(1 << i for i in range(28, 15, -2))):
        found.setdefault(count(nbytes), nbytes)
    return tuple(found.values())
