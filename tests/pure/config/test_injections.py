"""Injected delays in virtual time: what a run with them takes, to the second."""

from __future__ import annotations

import dataclasses

import pytest

from psrt import SimulationCosts, TrainConfig, simulate

STEPS = 6
#: A gradient takes a second, messages take no time.
COSTS = SimulationCosts(compute=lambda rank, rng: 1.0, latency=lambda rng: 0.0)
BASE = TrainConfig(
    dataset="synthetic:60x4x2", hidden=(), batch_size=5, steps=STEPS, lr=0.05, seed=4
)


def run(mode, *inject, workers=2, **knobs):
    config = dataclasses.replace(BASE, mode=mode, inject=inject, **knobs)
    return simulate(config, workers=workers, seed=1, costs=COSTS)


@pytest.mark.parametrize(
    ("inject", "seconds"),
    [
        ((), 6),
        (("0:delay:0.5",), 9),
        (("*:delay:0.5",), 9),
        (("0:pause:4:10",), 16),
        (("0:slow:3",), 18),
        (("0:slow:3:4",), 10),
        (("0:slow:3:4", "0:delay:0.5", "*:delay:0.25"), 14.5),
    ],
)
def test_one_worker(inject, seconds):
    assert run("serial", *inject, workers=1).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("mode", ["sync", "ssp", "allreduce", "local-sgd"])
def test_who_waits_for_all_takes_as_long_as_the_slowest(mode):
    knobs = {"staleness": 0} if mode == "ssp" else {}
    assert run(mode, "1:slow:3", **knobs).seconds == pytest.approx(3 * STEPS)


def test_who_waits_for_nobody_takes_their_own_time():
    result = run("async", "1:slow:3", "0:delay:0.5")
    assert [meter.steps for meter in result.meters] == [STEPS] * 2
    ends = {report.worker: report.seconds for report in result.reports if report.last}
    assert ends == pytest.approx({0: 1.5 * STEPS, 1: 3 * STEPS})


def test_a_backup_steps_over_the_step_of_a_pause_but_not_over_the_pause():
    # Worker 1 is overtaken while it takes its first step, and next takes one after step 1.
    result = run("sync", "1:slow:2.5", "1:pause:1:20", backup=1)
    last = max(report.seconds for report in result.reports if report.worker == 1)
    assert last == pytest.approx(2.5 + 2.5 + 20)
    assert result.meters[1].steps < STEPS


@pytest.mark.parametrize("inject", ["*:jitter:0.5", "*:tail:0.5:1.5"])
def test_the_same_seed_is_the_same_delays_and_each_worker_has_its_own(inject):
    def ends(seed):
        result = run("async", inject, workers=3, seed=seed)
        return sorted(report.seconds for report in result.reports if report.last)

    assert ends(4) == ends(4)
    assert ends(4) != ends(5)
    assert len(set(ends(4))) == 3


def test_random_delays_do_not_depend_on_the_mode():
    # Workers are ranks 0 to 1 in one and 1 to 2 in the other; rank 1 is in both.
    alone = run("local-sgd", "0:delay:0", "1:jitter:1", local_steps=STEPS)
    served = run("async", "0:jitter:1", "1:delay:0")
    one, other = (
        next(report.seconds for report in result.reports if report.worker == worker and report.last)
        for result, worker in ((alone, 1), (served, 0))
    )
    assert one == pytest.approx(other)
    assert one > STEPS
