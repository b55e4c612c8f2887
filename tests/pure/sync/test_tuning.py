"""What --tune tries, and what it chooses by their times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psrt.core.partition import even_spans
from psrt.runtime.strategies.buckets import buckets_of
from psrt.sync.tuning import buckets_to_try, fastest, fewest_averages

SECONDS = st.floats(1e-6, 1e3)


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

    sizes = buckets_to_try(count, 4 * n, usual=1 << 20)
    counts = [count(it) for it in sizes]
    assert sizes[0] == 1 << 20
    assert len({*counts}) == len(counts) <= 9
    assert 1 in counts
    assert max(counts) >= count(1 << 16)
