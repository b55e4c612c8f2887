"""Recorded norms of vectors, checked against the sums of their elements with random signs.

Bounds of rounding are computed from norms, which the checked run recorded itself: a norm that is
too large would excuse any error. The signs are independent of a vector x, so its signed sum is
about as large as ‖x‖. The probability that it is smaller than ``LEAST`` times that is about
``LEAST``. So the largest sum among vectors of a kind bounds all their norms. If all sums are zero,
rounding changes none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psrt.config.names import ADAPT_THEN_COMBINE, PUSH_SUM
from psrt.history.check.table import Bools, Floats, Table
from psrt.history.events import Kind
from psrt.history.header import Header
from psrt.history.kinds import Mixed, Offer

#: If the largest sum of a history is below this share of a norm, that norm is rejected.
LEAST = 1e-5
#: The number above which a history records infinity.
LARGEST = float(np.finfo(np.float32).max)
#: Unit roundoff of a float32; its smallest number, and its smallest normal number.
ROUNDING, TINY, NORMAL = 2.0**-24, 2.0**-149, 2.0**-126
#: A factor that covers the roundings of sums in double precision, of recording as float32, and
#: products of roundings, in a bound.
MORE = 1.001
#: Relative bounds of the roundings of a distance, and of a norm.
_SLACK, _OF_NORM = 1e-3, 1e-6


def may_be_norms(sums: Floats, norms: Floats, n: int) -> Bools:
    """Return by vector whether its recorded norm is possible.

    Args:
        sums: (k,) of the elements of each vector, with signs; infinite beyond a float32.
        norms: (k,) √n‖x‖ of each, which is at least its sum (Cauchy and Schwarz).
        n: the most elements of a vector.

    >>> may_be_norms(np.array([3.0, -2.0, 0.1]), np.array([9.0, 1.0, np.inf]), 9)
    array([ True, False, False])
    """
    least = np.minimum(np.abs(sums), LARGEST)
    largest = least[np.isfinite(sums)].max(initial=0.0)
    most = math.sqrt(n) * largest / LEAST if largest else math.inf
    found: Bools = least <= norms * MORE
    return found & ((np.minimum(norms, LARGEST) <= most) | ~np.isfinite(sums))


def are_near(said: NDArray[Any], due: NDArray[Any], slack: NDArray[Any]) -> Bools:
    """Return where sums differ by at most rounding, or neither is finite.

    A number that is not finite stays so in everything computed from it.
    """
    finite = np.isfinite(said) & np.isfinite(due)
    with np.errstate(invalid="ignore"):
        both = np.isfinite(said) == np.isfinite(due)
        found: Bools = np.where(finite, np.abs(said - due) <= slack, both)
    return found


def distances(header: Header, table: Table) -> Mapping[int, tuple[float, float]]:
    """Return bounds of ‖θ_i − mean‖/√n, as a root mean square over workers, by clocks of rounds.

    Args:
        header: of a history with rounds, from which nobody died.
        table: events of all workers.
    """
    found: dict[int, tuple[float, float]] = {}
    offers = table.where(Kind.OFFER)
    offers = offers[table["flag"][offers] == 0]
    push_sum = header.mode.variant == PUSH_SUM
    if header.mode.order == ADAPT_THEN_COMBINE:
        # Results of averages have no recorded norm. A doubly stochastic matrix does not make
        # vectors longer than those that were averaged.
        at = table.where(Kind.MIXED)
        at = at[table["flag"][at] == 0]
        totals, after = table.real(Mixed.divided if push_sum else Mixed.total)[at], 1
    else:
        at, after = offers, 0
        totals = table.real(Offer.total)[at]
    clocks, norms = table["clock"], table.real(Offer.rms)
    for clock in np.unique(clocks[at]).tolist():
        mine = totals[clocks[at] == clock]
        norm = norms[offers[clocks[offers] == clock]]
        high = math.inf if push_sum or not len(norm) else math.sqrt(float(np.mean(norm**2)))
        low = float(np.std(mine)) / header.n
        slack = _OF_NORM * high if math.isfinite(high) else low
        found[clock + after] = max(0.0, low * (1 - _SLACK) - slack), high * (1 + _SLACK) + slack
    return found
