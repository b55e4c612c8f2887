"""Leaves out points of a line that could not be distinguished on a screen. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def thin(x: Floats, y: Floats, most: int) -> tuple[Floats, Floats]:
    """Keep the smallest and largest value in each strip of the chart, and both ends of the line.

    So every peak stays visible. Points that are not finite are left out; the rest is sorted by x.

    Args:
        x: (k,) where they are.
        y: (k,) the values there.
        most: most points to keep, at least 4.

    >>> x = np.arange(1000.0)
    >>> kept, values = thin(x, np.where(x == 500, 9.0, np.sin(x)), 40)
    >>> len(kept) <= 40, float(values.max()), float(kept[0]), float(kept[-1])
    (True, 9.0, 0.0, 999.0)
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if (x[1:] < x[:-1]).any():  # a difference might overflow
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    if len(x) <= most:
        return x, y
    strips = (most - 2) // 2
    low, high = float(x.min()), float(x.max())
    # By halves: the difference of two large numbers may be no number.
    width = high / 2 - low / 2 or 1.0
    strip = np.minimum(((x / 2 - low / 2) / width * strips).astype(np.int64), strips - 1)
    order = np.lexsort((y, strip))
    edges = np.flatnonzero(np.diff(strip[order])) + 1
    least, largest = np.concatenate(([0], edges)), np.concatenate((edges, [len(x)])) - 1
    kept = np.unique(np.concatenate((order[least], order[largest], [0, len(x) - 1])))
    return x[kept], y[kept]
