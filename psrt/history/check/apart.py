"""How far apart workers are said to be, held against sums over what they have.

Of each vector the history has the sum over its elements, with signs: workers whose sums differ by d
are at least d/√n apart. And they are no further from their mean than from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from psrt.config.names import ADAPT_THEN_COMBINE
from psrt.history.check.table import Table
from psrt.history.events import Kind
from psrt.history.header import Header

#: What roundings, of float32 and of what was recorded, may be of it, and its share of a norm.
_SLACK, _OF_NORM = 1e-3, 1e-6


def distances(header: Header, table: Table) -> Mapping[int, tuple[float, float]]:
    """Return bounds of ‖θ_i − mean‖/√n, the root of its mean square, by the clocks of rounds.

    Args:
        header: of a history with rounds, from which nobody died.
        table: events of all workers.
    """
    found: dict[int, tuple[float, float]] = {}
    offers = table.where(Kind.OFFER)
    offers = offers[table["flag"][offers] == 0]
    push_sum = bool(header.knob("push_sum"))
    if header.knob("order") == ADAPT_THEN_COMBINE:
        # Of no vector that comes of averaging is there a norm; by a doubly stochastic matrix they
        # are no longer than those that were averaged.
        at = table.where(Kind.MIXED)
        at = at[table["flag"][at] == 0]
        totals, after = table.real("rate" if push_sum else "progress")[at], 1
    else:
        at, after = offers, 0
        totals = table.real("progress")[at]
    clocks, norms = table["clock"], table.real("gap")
    for clock in np.unique(clocks[at]).tolist():
        mine = totals[clocks[at] == clock]
        norm = norms[offers[clocks[offers] == clock]]
        high = math.inf if push_sum or not len(norm) else math.sqrt(float(np.mean(norm**2)))
        low = float(np.std(mine)) / header.n
        slack = _OF_NORM * high if math.isfinite(high) else low
        found[clock + after] = max(0.0, low * (1 - _SLACK) - slack), high * (1 + _SLACK) + slack
    return found
