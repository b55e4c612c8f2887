"""How often to save a run: the cost of an interval, and the cheapest interval. Pure.

A run saves a checkpoint of cost δ after every τ seconds of work. It fails every M seconds on
average, equally likely at any time, and needs R seconds to resume. It loses time by saving, by
repeating work, and by restarting. Everything here is in seconds, or a share of the time that the
work itself takes.
"""

from __future__ import annotations

import math


def young_s(cost_s: float, mtbf_s: float) -> float:
    """Return the interval that loses the least time if δ and τ are small beside M: √(2·δ·M).

    Source: J. W. Young, A first order approximation to the optimum checkpoint interval, 1974.

    Args:
        cost_s: δ, the cost of one checkpoint.
        mtbf_s: M, mean time between failures of the whole job.

    >>> young_s(0.5, 3600)
    60.0
    """
    return math.sqrt(2 * cost_s * mtbf_s)


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """Return the interval that loses the least time, with two more terms than Young's.

    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
    dumps, 2006.

    Args:
        cost_s: δ.
        mtbf_s: M; where δ is 2·M or more, the interval is M.

    >>> round(daly_s(60, 3600), 1), daly_s(10, 4)
    (617.9, 4)
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return young_s(cost_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def young_lost(interval_s: float, cost_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the share of time lost by Young's formula: δ/τ + (τ/2 + R)/M.

    Args:
        interval_s: τ.
        cost_s: δ.
        restart_s: R.
        mtbf_s: M.

    >>> young_lost(60.0, 0.5, 0.0, 3600.0)
    0.016666666666666666
    """
    return cost_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


def daly_lost(interval_s: float, cost_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the share of time lost by Daly's formula: M·e^(R/M)·(e^((τ+δ)/M) − 1)/τ − 1.

    It is exact if failures are a Poisson process, may also happen during a restart, and a
    checkpoint is of use as soon as it has cost δ.

    Args:
        interval_s: τ.
        cost_s: δ.
        restart_s: R.
        mtbf_s: M.
    """
    try:
        each_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + cost_s) / mtbf_s)
    except OverflowError:
        return math.inf
    return each_s / interval_s - 1
