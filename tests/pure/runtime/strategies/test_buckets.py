"""Buckets: what of a gradient is summed at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.partition import Span
from psrt.runtime.strategies.buckets import buckets_of


def spans_of(sizes):
    """Return spans of these sizes that tile a vector from its end to its beginning."""
    stop, spans = sum(sizes), []
    for size in sizes:
        spans.append(Span(stop - size, stop))
        stop -= size
    return spans


SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=12)


@given(SIZES, st.integers(0, 500))
def test_they_tile_the_vector_in_order_and_end_where_a_span_does(sizes, bucket_bytes):
    spans = spans_of(sizes)
    buckets = buckets_of(spans, bucket_bytes)
    bounds = [sum(sizes), *(bucket.span.start for bucket in buckets)]
    assert [bucket.span.stop for bucket in buckets] == bounds[:-1]
    assert bounds[-1] == 0
    assert all(bucket.span.start == spans[bucket.last].start for bucket in buckets)
    lasts = [bucket.last for bucket in buckets]
    assert lasts == sorted(set(lasts))
    assert all(bucket.span.size for bucket in buckets)


@given(SIZES, st.integers(0, 500))
def test_they_are_as_short_as_may_be(sizes, bucket_bytes):
    """All but the last are long enough, and would not be without their last span."""
    spans = spans_of(sizes)
    buckets = buckets_of(spans, bucket_bytes)
    assert all(4 * bucket.span.size >= bucket_bytes for bucket in buckets[:-1])
    for bucket in buckets:
        without = bucket.span.size - spans[bucket.last].size
        assert without == 0 or 4 * without < bucket_bytes
    if sum(sizes):
        assert buckets  # whatever is there is in one of them
    assert all(a.last < b.last for a, b in pairwise(buckets))


@pytest.mark.parametrize(
    ("sizes", "bucket_bytes", "expected"),
    [
        ([10, 20, 70], 1, [(90, 100), (70, 90), (0, 70)]),
        ([10, 20, 70], 40, [(90, 100), (70, 90), (0, 70)]),
        ([10, 20, 70], 41, [(70, 100), (0, 70)]),
        ([70, 20, 10], 81, [(30, 100), (0, 30)]),  # what is left over is short
        ([10, 20, 70], 10**9, [(0, 100)]),
        ([0, 5, 0], 1, [(0, 5)]),
        ([0], 1, []),
    ],
)
def test_some_by_hand(sizes, bucket_bytes, expected):
    assert [tuple(b.span) for b in buckets_of(spans_of(sizes), bucket_bytes)] == expected
