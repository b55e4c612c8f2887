"""Schedules at the points that define them."""

import math

import pytest

from psrt.errors import ConfigError
from psrt.optim import SCHEDULES, Schedule


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("warmup", [0.0, 0.5, 4.0, 10.0])
def test_peak_is_the_largest_rate_and_is_reached(kind, warmup):
    schedule = Schedule(kind, 0.3, epochs=10, warmup_epochs=warmup)
    rates = [schedule.rate(i / 100) for i in range(1201)]
    assert max(rates) <= schedule.peak == 0.3
    assert min(rates) >= 0
    assert max(rates) == pytest.approx(0.3, rel=0.01)


def test_a_cosine_that_is_all_warm_up_ends_at_its_peak():
    assert Schedule("cosine", 0.3, epochs=2, warmup_epochs=2).rate(2) == 0.3


@pytest.mark.parametrize("kind", SCHEDULES)
def test_warm_up_is_linear_from_zero(kind):
    schedule = Schedule(kind, 0.4, epochs=10, warmup_epochs=4)
    got = [schedule.rate(progress) for progress in (0, 1, 2.5, 3)]
    assert got == pytest.approx([0, 0.1, 0.25, 0.3])
    assert schedule.rate(4) == pytest.approx(0.4)


def test_constant_stays():
    schedule = Schedule("constant", 0.1, epochs=3)
    assert {schedule.rate(progress) for progress in (0, 1.5, 3, 99)} == {0.1}


def test_step_decays_after_each_period_since_the_warm_up():
    schedule = Schedule("step", 1.0, epochs=10, warmup_epochs=1, decay_epochs=3, decay_factor=0.5)
    got = [schedule.rate(progress) for progress in (1, 3.99, 4, 6.99, 7, 10)]
    assert got == [1, 1, 0.5, 0.5, 0.25, 0.125]


def test_cosine_is_half_a_wave_from_the_warm_up_to_the_end():
    schedule = Schedule("cosine", 2.0, epochs=9, warmup_epochs=1)
    for progress in (1, 2, 4.2, 5, 8.5, 9):
        assert schedule.rate(progress) == pytest.approx(1 + math.cos(math.pi * (progress - 1) / 8))
    assert schedule.rate(5) == pytest.approx(1.0)
    assert schedule.rate(9) == pytest.approx(0, abs=1e-12)
    assert schedule.rate(20) == schedule.rate(9)


@pytest.mark.parametrize(
    ("kind", "lr", "knobs", "message"),
    [
        ("linear", 0.1, {}, "unknown schedule 'linear', expected one of constant, step, cosine"),
        ("constant", 0.0, {}, "learning rate 0.0"),
        ("constant", math.inf, {}, "learning rate inf"),
        ("constant", math.nan, {}, "learning rate nan"),
        ("constant", 0.1, {"warmup_epochs": 11}, "warm-up of 11 epochs in a run of 10"),
        ("constant", 0.1, {"warmup_epochs": -1}, "warm-up of -1"),
        ("step", 0.1, {"decay_epochs": 0}, "every 0 epochs"),
        ("step", 0.1, {"decay_factor": 1.5}, "factor 1.5"),
    ],
)
def test_numbers_that_make_no_curve(kind, lr, knobs, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(kind, lr, epochs=10, **knobs)
