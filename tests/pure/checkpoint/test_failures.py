"""Time that a long job loses by failures: drawn, by formulas, and by following a job."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from psrt.checkpoint import failures
from psrt.checkpoint.failures import FailureCosts, asked_for, lost_with, table_of_lost
from psrt.checkpoint.interval import daly_lost, daly_s, young_lost, young_s
from psrt.report.failures import failure_lines
from support.cases import each

DRAWS = failures.FAILURES


@pytest.fixture(autouse=True)
def _fewer_draws(monkeypatch):
    monkeypatch.setattr(failures, "FAILURES", DRAWS // 4)


def followed(interval, stall_s, write_s, *, deaths=3_000):
    """Return the time of saving and of training again, by the time of work that was kept.

    Followed from one thing that a job does to the next, until it dies, every 300 s on average.
    """
    draws, saving, again, saved = random.Random(3), 0.0, 0.0, 0.0
    for _ in range(deaths):
        left = draws.expovariate(1 / 300)
        trained, free, kept = 0.0, 0.0, 0.0  # free: seconds until the disk is
        copies = []
        while left > 0:
            did = min(left, interval)
            trained, left, free = trained + did, left - did, free - did
            if left > 0:
                waits = min(left, max(free, 0.0))
                saving, left, free = saving + waits, left - waits, free - waits
            if free <= 0 and copies:
                kept = copies.pop()
            if left > 0:
                did = min(left, stall_s)
                saving, left = saving + did, left - did
                if did == stall_s:
                    copies, free = [trained], write_s
        saved, again = saved + kept, again + trained - kept
    return saving / saved, again / saved


@each(("interval", "stall", "write"), [(10, 0.5, 2.0), (30, 2, 40), (30, 2, 5)])
def test_time_is_lost_where_it_was_spent(interval, stall, write):
    saving, again = followed(interval, stall, write)
    found = lost_with(1, interval, FailureCosts(300.0, stall, write))
    assert found.saving == pytest.approx(saving, rel=0.05)
    assert found.again == pytest.approx(again, rel=0.05, abs=0.02)
    assert found.again > 0


@each("restart_s", [0.0, 40.0, 500.0])
@each("steps", [10, 100, 1000])
def test_what_is_there_at_once_is_lost_as_daly_reckons(steps, restart_s):
    """Restarts fail, too, and more than one in three of the longest."""
    found = lost_with(steps, 1.0, FailureCosts(1000.0, 5.0, 0.0, restart_s))
    assert found.total == pytest.approx(found.daly, rel=0.02)
    assert found.total > found.young


@each(("mtbf_s", "restart_s"), [(1e-9, 60.0), (1.0, 40.0), (1e3, 1e6)])
def test_a_job_that_dies_before_it_has_started_again_loses_all(mtbf_s, restart_s):
    costs = FailureCosts(mtbf_s, 0.1, 1.0, restart_s)
    found = table_of_lost(mtbf_s / 10, costs)
    assert {it.total for it in found} == {math.inf}
    lines = failure_lines(costs, found)
    assert max(map(len, lines)) < 120
    assert not any("best" in line for line in lines)
    # And so does one in which nothing is ever written.
    found = lost_with(1000, 1.0, FailureCosts(1.0, 1.0, 1.0, 1.0))
    assert found.total == found.saving == daly_lost(1e6, 1.0, 0.0, 10.0) == math.inf
    assert daly_s(10.0, 4.0) == 4.0


def test_intervals_about_the_best_and_the_one_asked_for():
    costs = FailureCosts(3600.0, 0.5, every=45)
    found = table_of_lost(2.0, costs)
    assert [it.steps for it in found] == [4, 8, 15, 30, 45, 60, 120, 240]
    assert min(found, key=lambda it: it.total).steps == 30
    assert [it.seconds for it in found] == [2.0 * it.steps for it in found]
    assert table_of_lost(2.0, costs) == found
    free = table_of_lost(1.0, FailureCosts(1e4))
    assert min(free, key=lambda it: it.total) is free[0]
    assert free[0].steps == 1


@each(("every", "steps"), [(7, 7), ("90s", 45), ("0.1s", 1), ("auto", 30), (None, None)])
def test_an_interval_that_is_asked_for_in_steps(every, steps):
    costs = FailureCosts(3600.0, 0.5)
    assert asked_for(dataclasses.replace(costs, every=every), 2.0) == steps


def test_draws_are_enough(monkeypatch):
    """Twice as many change a share by less than a hundredth, where restarts fail, too."""
    costs = FailureCosts(1000.0, 10.0, 20.0, 150.0)
    monkeypatch.setattr(failures, "FAILURES", DRAWS)
    before = lost_with(100, 0.5, costs).total
    monkeypatch.setattr(failures, "FAILURES", 2 * DRAWS)
    assert lost_with(100, 0.5, costs, seed=1).total == pytest.approx(before, rel=0.01)


def least(lost, low, high):
    """Return where a function with one valley is least, by golden sections."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if lost(a) < lost(b) else (a, high)
    return low


@each("cost_s", [0.01, 1.0, 60.0, 400.0])
@each("restart_s", [0.0, 30.0])
def test_each_formula_names_the_least_of_what_it_reckons(cost_s, restart_s):
    mtbf_s = 3600.0
    by_young = least(lambda it: young_lost(it, cost_s, restart_s, mtbf_s), 1e-3, 1e5)
    assert by_young == pytest.approx(young_s(cost_s, mtbf_s), rel=1e-5)
    by_daly = least(lambda it: daly_lost(it, cost_s, restart_s, mtbf_s), 1e-3, 1e4)
    # It is the root of an equation without a closed form, of which Daly gives three terms.
    assert daly_s(cost_s, mtbf_s) == pytest.approx(by_daly, rel=2e-3 if cost_s < 100 else 2e-2)
