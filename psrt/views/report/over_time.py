"""A heat map of workers over the time of a run, from sums over its equal parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from psrt.views.page.detail import Detail
from psrt.views.page.heat_map import group_names, grouped, heat_map
from psrt.views.page.parts import Figure
from psrt.views.page.scale import tick_text
from psrt.views.page.thin import Floats


def over_time(
    title: str,
    sums: Floats,
    counts: Floats,
    began: float,
    ended: float,
    text_of: Callable[[float], str],
    caption: str,
    detail: Detail,
) -> Figure | None:
    """Return a heat map of means, worker × time.

    Args:
        title: of the chart.
        sums: (W, c) of each worker in each part of the run.
        counts: (W, c) what they are divided by; 0 means no data.
        began: when the first part begins, in seconds.
        ended: when the last one ends.
        text_of: formats a mean.
        caption: how to read it.
        detail: how much of it.
    """
    groups = grouped(len(sums), detail.rows)
    columns = grouped(sums.shape[1], detail.columns)
    above, below = (_put_together(it, groups, columns) for it in (sums, counts))
    means = np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
    each = (ended - began) / sums.shape[1]
    middles = [began + each * (start + stop) / 2 for start, stop in columns]
    digits = max(0, 2 - math.floor(math.log10(ended - began))) if ended > began else 0
    names = [tick_text(round(it, digits)) for it in middles]
    return heat_map(
        title,
        means,
        group_names(groups),
        names,
        "worker",
        "seconds since recording began",
        text_of,
        caption=caption,
    )


def _put_together(
    values: Floats, rows: Sequence[tuple[int, int]], columns: Sequence[tuple[int, int]]
) -> Floats:
    """Return the sums of groups of rows and columns."""
    summed: Floats = np.add.reduceat(values, [start for start, _ in rows], axis=0)
    return np.asarray(np.add.reduceat(summed, [start for start, _ in columns], axis=1))
