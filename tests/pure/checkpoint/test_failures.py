"""Time that a long job loses by failures, drawn, beside a job that is followed event by event."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from psrt.checkpoint import failures
from psrt.checkpoint.failures import FailureCosts, asked_for, lost_with, table_of_lost
from psrt.report.failures import failure_lines


def followed(steps, step_s, costs, *, work_s, seed):
    """Return the share of lost time of one job, a second at a time in its own words.

    It trains, stops to copy, writes meanwhile, dies, and goes on from what was written last.
    """
    draws = random.Random(seed)
    now, saved = 0.0, 0.0  # saved: seconds of work that need not be done again
    interval = steps * step_s
    while saved < work_s:
        dies = now + draws.expovariate(1 / costs.mtbf_s)
        done, written_at, waiting = saved, -math.inf, None
        while True:
            cut = now + interval
            if waiting is not None and min(max(cut, written_at), dies) >= written_at:
                saved, waiting = waiting, None
            # The copy waits for the checkpoint before it to be written.
            copied = max(cut, written_at) + costs.stall_s
            if copied > dies:
                if waiting is not None and written_at <= dies:
                    saved = waiting
                break
            now, done = copied, done + interval
            waiting, written_at = done, copied + costs.write_s
        now = dies
        while True:
            tries = draws.expovariate(1 / costs.mtbf_s)
            if tries > costs.restart_s:
                now += costs.restart_s
                break
            now += tries
    return now / saved - 1


CASES = {
    "nothing to write": (40, FailureCosts(1000.0, 2.0, 0.0, 15.0)),
    "written meanwhile": (40, FailureCosts(1000.0, 2.0, 25.0, 15.0)),
    "slower than the interval": (20, FailureCosts(1000.0, 1.0, 50.0, 0.0)),
    "restarts fail, too": (200, FailureCosts(300.0, 10.0, 20.0, 150.0)),
    "long intervals": (900, FailureCosts(600.0, 5.0, 5.0, 5.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_a_job_loses_that_is_followed(case):
    steps, costs = CASES[case]
    found = lost_with(steps, 0.5, costs).total
    jobs = [followed(steps, 0.5, costs, work_s=600 * costs.mtbf_s, seed=it) for it in range(4)]
    assert found == pytest.approx(sum(jobs) / 4, rel=0.05)


@pytest.mark.parametrize("restart_s", [0.0, 40.0])
@pytest.mark.parametrize("steps", [10, 100, 1000])
def test_what_is_there_at_once_is_lost_as_daly_reckons(steps, restart_s):
    found = lost_with(steps, 1.0, FailureCosts(1000.0, 5.0, 0.0, restart_s))
    assert found.total == pytest.approx(found.daly, rel=0.02)
    assert found.total > found.young


@pytest.mark.parametrize(("tau", "stall", "write"), [(0.1, 0.5, 2.0), (30, 2, 40), (30, 2, 5)])
def test_time_is_lost_where_it_was_spent(tau, stall, write):
    """Followed from one thing that a job does to the next, until it dies."""
    draws, saving, again, saved = random.Random(3), 0.0, 0.0, 0.0
    for _ in range(20_000):
        left = draws.expovariate(1 / 300)
        trained, free, kept = 0.0, 0.0, 0.0  # free: seconds until the disk is
        copies = []
        while left > 0:
            did = min(left, tau)
            trained, left, free = trained + did, left - did, free - did
            if left > 0:
                waits = min(left, max(free, 0.0))
                saving, left, free = saving + waits, left - waits, free - waits
            if free <= 0 and copies:
                kept = copies.pop()
            if left > 0:
                did = min(left, stall)
                saving, left = saving + did, left - did
                if did == stall:
                    copies, free = [trained], write
        saved, again = saved + kept, again + trained - kept
    found = lost_with(1, tau, FailureCosts(300.0, stall, write))
    assert found.saving == pytest.approx(saving / saved, rel=0.05)
    assert found.again == pytest.approx(again / saved, rel=0.05, abs=0.02)
    assert found.again > 0


@pytest.mark.parametrize(("mtbf_s", "restart_s"), [(1e-9, 60.0), (1.0, 40.0), (1e3, 1e6)])
def test_a_job_that_dies_before_it_has_started_again_loses_all(mtbf_s, restart_s):
    costs = FailureCosts(mtbf_s, 0.1, 1.0, restart_s)
    found = table_of_lost(mtbf_s / 10, costs)
    assert {it.total for it in found} == {math.inf}
    lines = failure_lines(costs, found)
    assert max(map(len, lines)) < 120
    assert not any("best" in line for line in lines)


def test_where_nothing_is_ever_written_all_is_lost():
    found = lost_with(1000, 1.0, FailureCosts(1.0, 1.0, 1.0, 1.0))
    assert found.total == found.saving == math.inf


def test_intervals_about_the_best_and_the_one_asked_for():
    costs = FailureCosts(3600.0, 0.5, every=45)
    found = table_of_lost(2.0, costs)
    assert [it.steps for it in found] == [4, 8, 15, 30, 45, 60, 120, 240]
    assert min(found, key=lambda it: it.total).steps == 30
    assert [it.seconds for it in found] == [2.0 * it.steps for it in found]
    assert table_of_lost(2.0, costs) == found


def test_free_checkpoints_are_best_after_every_step():
    found = table_of_lost(1.0, FailureCosts(1e4))
    assert found[0].steps == 1
    assert min(found, key=lambda it: it.total) is found[0]


@pytest.mark.parametrize(("every", "steps"), [(7, 7), ("90s", 45), ("0.1s", 1), ("auto", 30)])
def test_an_interval_that_is_asked_for_in_steps(every, steps):
    assert asked_for(FailureCosts(3600.0, 0.5, every=every), 2.0) == steps
    assert asked_for(FailureCosts(3600.0, 0.5), 2.0) is None


def test_draws_are_enough(monkeypatch):
    """Twice as many change a share by less than a hundredth."""
    costs = dataclasses.replace(CASES["restarts fail, too"][1], mtbf_s=1000.0)
    before = lost_with(100, 0.5, costs).total
    monkeypatch.setattr(failures, "FAILURES", 2 * failures.FAILURES)
    assert lost_with(100, 0.5, costs, seed=1).total == pytest.approx(before, rel=0.01)
