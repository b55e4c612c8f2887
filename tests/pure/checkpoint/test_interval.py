"""What an interval between checkpoints costs by formulas, and which costs least."""

from __future__ import annotations

import math

import pytest

from psrt.checkpoint.interval import daly_lost, daly_s, young_lost, young_s


def least(lost, low, high):
    """Return where a function with one valley is least, by golden sections."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if lost(a) < lost(b) else (a, high)
    return low


@pytest.mark.parametrize("cost_s", [0.01, 1.0, 60.0, 400.0])
@pytest.mark.parametrize("restart_s", [0.0, 30.0])
def test_each_names_the_least_of_what_it_reckons(cost_s, restart_s):
    mtbf_s = 3600.0
    by_young = least(lambda it: young_lost(it, cost_s, restart_s, mtbf_s), 1e-3, 1e5)
    assert by_young == pytest.approx(young_s(cost_s, mtbf_s), rel=1e-5)
    by_daly = least(lambda it: daly_lost(it, cost_s, restart_s, mtbf_s), 1e-3, 1e4)
    # It is the root of an equation without a closed form, of which Daly gives three terms.
    assert daly_s(cost_s, mtbf_s) == pytest.approx(by_daly, rel=2e-3 if cost_s < 100 else 2e-2)


def test_where_failures_are_rare_both_are_the_same():
    for interval_s in (10.0, 100.0, 1000.0):
        young, daly = (fn(interval_s, 1.0, 20.0, 1e9) for fn in (young_lost, daly_lost))
        assert daly == pytest.approx(young, rel=1e-4)
    assert daly_s(1.0, 1e9) == pytest.approx(young_s(1.0, 1e9), rel=1e-4)


def test_where_no_checkpoint_is_ever_made_all_is_lost():
    assert daly_lost(1e6, 1.0, 0.0, 10.0) == math.inf
    assert daly_s(10.0, 4.0) == 4.0
