"""Cuts of a vector: whole, without empty spans, even, and between layers where that balances."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.errors import ConfigError
from psrt.model import MLP
from psrt.partition import ShardPlan, Span, even_span, even_spans, layered_spans


@st.composite
def cuts(draw):
    """Return n, a number of parts, and layers from the last to the first."""
    n = draw(st.integers(1, 60))
    inner = draw(st.sets(st.integers(1, n - 1), max_size=6)) if n > 1 else set()
    bounds = sorted({0, n} | inner)
    return n, draw(st.integers(1, n)), [Span(a, b) for a, b in pairwise(bounds)][::-1]


@given(cuts())
def test_the_spans_make_up_the_whole_and_none_is_empty_or_long(cut):
    n, parts, layers = cut
    spans = layered_spans(n, parts, layers)
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert (len(spans), spans[-1].stop) == (parts, n)
    sizes = [span.size for span in spans]
    assert min(sizes) > 0
    assert max(sizes) <= max(1.25 * n / parts, -(-n // parts))


@given(st.integers(1, 60), st.data())
def test_one_layer_is_cut_evenly(n, data):
    parts = data.draw(st.integers(1, n))
    assert layered_spans(n, parts, [Span(0, n)]) == even_spans(n, parts)


@pytest.mark.parametrize("parts", [2, 3, 4, 8, 16])
def test_the_cut_is_between_the_large_layers_of_a_model(parts):
    model = MLP((784, 512, 512, 10), batch_size=1)
    *_, first = model.gradient_spans()
    spans = layered_spans(model.n, parts, model.gradient_spans())
    assert first.stop in {span.stop for span in spans}


def test_a_layer_that_would_make_a_long_span_is_cut():
    assert layered_spans(100, 2, [Span(0, 70), Span(70, 100)]) == even_spans(100, 2)
    assert layered_spans(100, 2, [Span(0, 60), Span(60, 100)]) == (Span(0, 60), Span(60, 100))


@pytest.mark.parametrize("cut", [ShardPlan.even, lambda n, k: ShardPlan.layered(n, k, ())])
def test_every_shard_owns_something(cut):
    assert len(cut(3, 3).spans) == 3
    with pytest.raises(ConfigError, match="4 shards of 3 parameters: each must own at least one"):
        cut(3, 4)


@pytest.mark.parametrize("n", [0, 1, 7, 100])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_one_even_span_is_that_of_all(n, parts):
    assert tuple(even_span(n, parts, i) for i in range(parts)) == even_spans(n, parts)
