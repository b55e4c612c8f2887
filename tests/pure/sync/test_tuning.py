"""What a tuner tries when, and what it chooses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.checkpoint import restore, state_of
from psrt.core.partition import even_spans
from psrt.runtime.strategies.buckets import buckets_of
from psrt.sync.tuning import ROUNDS, Tuner, Use, buckets_to_try, fastest, fewest_averages

SECONDS = st.floats(1e-6, 1e3)


def tried(tuner, seconds, rounds):
    """Let rounds pass, each as long as its value takes; return the values."""
    values = []
    for _ in range(rounds):
        values.append(tuner.value)
        tuner.passed(seconds[tuner.value], tuner.median if tuner.asks else 0.0)
    return values


def test_it_tries_each_value_as_long_and_stays_with_the_fastest():
    tuner = Tuner([4, 1, 2], fastest)
    assert tried(tuner, {4: 1.0, 1: 0.5, 2: 0.7}, 30) == [4] * 8 + [1] * 8 + [2] * 8 + [1] * 6
    assert tuner.uses == ((0, 4, 1.0), (8, 1, 0.5), (16, 2, 0.7), (24, 1, None))


def test_one_value_is_no_trial():
    tuner = Tuner([3], fastest)
    assert not tuner.is_trying
    assert not tuner.asks
    assert (tuner.value, tuner.uses) == (3, ())


def test_a_time_is_the_median_without_the_first_and_the_last_round():
    tuner = Tuner([1, 2], fastest)
    for seconds in (99.0, 1.0, None, 5.0, 2.0, 3.0, 70.0):
        assert not tuner.asks
        tuner.passed(seconds, 0.0)
    assert tuner.asks
    assert tuner.median == 3.0
    tuner.passed(80.0, 2.5)
    assert tuner.uses == ((0, 1, 2.5),)
    assert tuner.value == 2
    assert tuner.median == 0.0


def test_a_replay_measures_nothing_and_chooses_alike():
    uses = [Use(0, 4, 1.0), Use(8, 1, 0.5), Use(16, 2, 0.7), Use(24, 1, None)]
    again = Tuner([4, 1, 2], fastest, uses)
    for _ in range(30):
        assert not again.asks
        again.passed(9.0, 0.0)
    assert list(again.uses) == uses


@pytest.mark.parametrize("after", range(3 * ROUNDS))
def test_it_resumes_after_any_round(after):
    seconds = {4: 1.0, 1: 0.5, 2: 0.7}
    whole, before, resumed = (Tuner([4, 1, 2], fastest) for _ in range(3))
    due = tried(whole, seconds, 4 * ROUNDS)
    assert tried(before, seconds, after) == due[:after]
    restore(resumed, state_of(before))
    assert tried(resumed, seconds, 4 * ROUNDS - after) == due[after:]
    assert resumed.uses == whole.uses


@given(st.lists(SECONDS, min_size=2, max_size=6))
def test_the_fastest_is_better_by_more_than_noise(seconds):
    values = list(range(len(seconds)))
    best = fastest(values, seconds)
    if best == 0:
        assert all(it >= 0.98 * seconds[0] for it in seconds)
    else:
        assert seconds[best] == min(seconds) < 0.98 * seconds[0]


@given(step=SECONDS, average=st.floats(0, 1e3), most=st.integers(2, 200))
def test_the_fewest_averages_that_take_a_tenth(step, average, most):
    pair = (1, min(4, most))
    chosen = fewest_averages(pair, [step + average / it for it in pair], most=most)

    def share(period):
        return average / period / (step + average / period)

    assert 1 <= chosen <= most
    assert chosen == most or share(chosen) <= 0.1 + 1e-3
    assert chosen == 1 or share(chosen - 1) > 0.1 - 1e-3


def test_noise_is_no_reason_for_longer_periods():
    assert fewest_averages([1, 4], [1.0, 1.1], most=64) == 1


@given(st.integers(1, 3_000_000), st.integers(1, 60))
def test_buckets_that_are_tried_differ_and_are_not_too_many(n, layers):
    spans = [it for it in even_spans(n, layers)[::-1] if it.size]

    def count(nbytes):
        return len(buckets_of(spans, nbytes))

    sizes = buckets_to_try(count, 4 * n, usual=1 << 20, most=100)
    counts = [count(it) for it in sizes]
    assert len({*counts}) == len(counts)
    assert 1 in counts
    assert sum(counts) <= 100
    # The usual size, if that is not one bucket per size already.
    assert sizes[0] == 1 << 20 or count(1 << 20) > 50
