"""What slows a worker down: each kind by itself, what they come to together, and the same draws."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from psrt.config.injection import KINDS, read_injection
from psrt.runtime.delays import DELAYS, LONGEST_S, Delays

COMPUTED_S = 0.25


def drawn(*kinds, steps, seed=0):
    """Return the delays at these steps."""
    delays, rng = Delays(kinds), np.random.default_rng(seed)
    return [delays.seconds(step, COMPUTED_S, rng) for step in steps]


def test_none_are_none():
    assert drawn(steps=range(3)) == [0.0] * 3


def test_a_constant_delay_is_the_same_at_every_step():
    assert drawn(("delay", (0.5,)), steps=range(3)) == [0.5] * 3


def test_jitter_has_its_mean():
    delays = drawn(("jitter", (0.1,)), steps=range(4000))
    assert min(delays) > 0
    assert np.mean(delays) == pytest.approx(0.1, rel=0.05)
    assert np.mean(np.array(delays) > 0.1) == pytest.approx(math.exp(-1), rel=0.05)


@pytest.mark.parametrize(("scale", "shape"), [(0.001, 1.5), (2.0, 1.0), (0.5, 3.0)])
def test_a_tail_is_one_of_lomax(scale, shape):
    delays = np.array(drawn(("tail", (scale, shape)), steps=range(4000)))
    for at in (0.5, 1, 4):
        beyond = (1 + at) ** -shape
        assert np.mean(delays > at * scale) == pytest.approx(beyond, abs=0.025)
    assert np.median(delays) == pytest.approx(scale * (2 ** (1 / shape) - 1), rel=0.1)


def test_a_tail_has_the_mean_it_says():
    assert np.mean(drawn(("tail", (0.5, 3.0)), steps=range(4000))) == pytest.approx(0.25, rel=0.1)


def test_the_heaviest_tail_draws_numbers_that_a_clock_can_take():
    delays = drawn(("tail", (86400.0, 0.1)), steps=range(2000))
    assert max(delays) == LONGEST_S
    assert all(map(math.isfinite, delays))
    assert drawn(("tail", (0.0, 0.1)), steps=range(2000)) == [0.0] * 2000


def test_a_pause_is_once_and_at_its_step():
    assert drawn(("pause", (2, 9.0)), steps=range(5)) == [0, 0, 9.0, 0, 0]


def test_a_pause_whose_step_was_overtaken_is_at_the_next():
    assert drawn(("pause", (2, 9.0)), steps=[0, 1, 5, 6]) == [0, 0, 9.0, 0]


def test_pauses_of_two_runs_are_their_own():
    kinds = [("pause", (0, 1.0))]
    assert drawn(*kinds, steps=[0, 1]) == drawn(*kinds, steps=[0, 1]) == [1.0, 0]


def test_slow_makes_computing_take_a_multiple_from_its_step_on():
    delays = drawn(("slow", (3.0, 2)), steps=range(4))
    assert [COMPUTED_S + delay for delay in delays] == [0.25, 0.25, 0.75, 0.75]
    assert drawn(("slow", (3.0, 0)), steps=[0]) == [2 * COMPUTED_S]
    assert drawn(("slow", (1.0, 0)), steps=[0]) == [0]


def test_only_slow_asks_how_long_computing_took():
    for kind, (_, example) in KINDS.items():
        numbers = read_injection(f"0:{kind}:{example}").numbers
        kinds = [("delay", (1.0,)), (kind, numbers)]
        assert Delays(kinds).asks_for_computed == (kind == "slow")
        one, other = (
            Delays(kinds).seconds(10**6, computed, np.random.default_rng(0)) for computed in (1, 2)
        )
        assert (one != other) == (kind == "slow")


def test_delays_of_a_worker_add_up():
    kinds = [("delay", (1.0,)), ("delay", (0.5,)), ("slow", (2.0, 0)), ("slow", (3.0, 1))]
    assert drawn(*kinds, ("pause", (1, 10.0)), steps=range(3)) == [1.75, 12.25, 2.25]


def test_what_is_drawn_is_drawn_in_order_and_every_step():
    kinds = [("jitter", (0.1,)), ("pause", (1, 5.0)), ("tail", (0.2, 2.0))]
    rng = np.random.default_rng(7)
    expected = [rng.exponential(0.1) + pause + 0.2 * rng.pareto(2.0) for pause in (0, 5.0, 0)]
    assert drawn(*kinds, steps=range(3), seed=7) == pytest.approx(expected)
    again, other = (partial(drawn, *kinds, steps=range(3))(seed=seed) for seed in (7, 8))
    assert again == pytest.approx(expected)
    assert other != pytest.approx(expected)


def test_there_is_a_delay_for_every_injection():
    assert set(DELAYS) == set(KINDS)
