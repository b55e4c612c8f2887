"""Clipping a gradient by its L2 norm. Pure: a norm and a factor; the caller scales."""

from __future__ import annotations

import numpy as np

from psrt.core.arrays import Vector

#: Elements widened to float64 at a time, 64 KiB.
_CHUNK = 8192


def clip_factor(norm: float, limit: float | None) -> float:
    """Return the factor that scales a gradient's norm down to at most ``limit``.

    A NaN norm gives NaN and an infinite one 0, which turns the infinite element into NaN:
    divergence stays visible.

    Args:
        norm: L2 norm of the whole gradient, at least 0.
        limit: largest norm allowed; None for no clipping.

    >>> clip_factor(8.0, 2.0), clip_factor(1.0, 2.0), clip_factor(8.0, None)
    (0.25, 1.0, 1.0)

    Source: Pascanu, Mikolov, Bengio, ICML 2013.
    """
    if limit is None or norm <= limit:
        return 1.0
    return limit / norm


@np.errstate(all="ignore")
def square_sum(vector: Vector) -> float:
    """Return Σx² in float64, because a float32 sum of millions of squares loses precision.

    The square of any float32 fits. The sums of the spans of a vector add up to that of the whole.

    >>> square_sum(np.array([3, 4], np.float32))
    25.0
    """
    wide = np.empty(min(len(vector), _CHUNK), np.float64)
    total = 0.0
    for start in range(0, len(vector), _CHUNK):
        part = vector[start : start + _CHUNK]
        chunk = wide[: len(part)]
        np.copyto(chunk, part)
        total += float(np.dot(chunk, chunk))
    return total
