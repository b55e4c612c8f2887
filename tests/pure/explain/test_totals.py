"""Bounds of each kind: met where a schedule is known to meet them, undercut nowhere."""

from __future__ import annotations

import pytest

from psrt.collective import ALGORITHMS, SCHEDULES
from psrt.collective.analysis.cost import lower_bounds
from psrt.collective.costs import LinkCosts
from psrt.explain.explanation import least
from support.cases import each
from support.explanations import explained


@each("size", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_no_schedule_undercuts_its_bounds(name, size):
    totals = explained(name, size, 16 * 7 * 9 * 16).totals
    assert totals.price.rounds >= totals.least.rounds
    assert totals.moved >= totals.least.moved * (1 - 1e-12)
    assert totals.price.combined_max >= totals.least.combined * (1 - 1e-12)
    assert totals.price.seconds >= totals.bounds.seconds * (1 - 1e-12)
    assert totals.ratio >= 1 - 1e-12


@pytest.mark.parametrize(
    ("name", "size"),
    [("ring", 7), ("reduce-scatter", 7), ("all-gather", 7), ("all-to-all", 7), ("scatter", 8)],
)
def test_bounds_on_bytes_are_met(name, size):
    totals = explained(name, size, 16 * 7 * 7).totals
    assert totals.moved == pytest.approx(totals.least.moved)


@pytest.mark.parametrize("name", ["butterfly", "halving-doubling", "broadcast", "reduce"])
def test_bounds_on_rounds(name):
    totals = explained(name, 8).totals
    assert totals.price.rounds == totals.least.rounds * (2 if name == "halving-doubling" else 1)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("n", [0, 10])
def test_an_all_reduce_s_bounds_are_those_of_the_cost_model(size, n):
    costs = LinkCosts(alpha=1e-3, beta=1e-6, gamma=1e-7)
    for name in ALGORITHMS:
        found = explained(name, size, n).totals.bounds
        expected = lower_bounds(size, 4 * n, costs)
        assert found.latency == pytest.approx(expected.latency)
        assert found.bandwidth == pytest.approx(expected.bandwidth)
        assert found.combining == pytest.approx(expected.combining)


def test_the_table():
    assert least(SCHEDULES["all-to-all"], 4, 1600).moved == 300
    assert least(SCHEDULES["scatter"], 4, 1600).moved == 1200
    assert least(SCHEDULES["reduce"], 4, 1600).combined == 1200
