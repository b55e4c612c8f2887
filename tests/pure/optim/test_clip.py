"""Norms in float64, and the factor that clipping is."""

import math

import numpy as np
import pytest

from psrt.optim import clip_factor, square_sum
from psrt.partition import even_spans


def l2_norm(vector):
    return math.sqrt(square_sum(vector))


@pytest.mark.parametrize("n", [0, 1, 8191, 8192, 8193, 50_000])
def test_norm_is_that_of_float64(n):
    vector = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    want = math.sqrt(math.fsum(x * x for x in vector.astype(float)))
    assert l2_norm(vector) == pytest.approx(want, rel=1e-13)


def test_norm_does_not_blur_overflow_or_vanish():
    assert l2_norm(np.full(10**6, 0.1, np.float32)) == pytest.approx(
        1000 * float(np.float32(0.1)), rel=1e-12
    )
    assert l2_norm(np.full(4, 1e38, np.float32)) == pytest.approx(2e38)
    assert l2_norm(np.full(4, 1e-38, np.float32)) == pytest.approx(2e-38)


def test_norm_of_what_diverged_warns_nobody():
    assert math.isnan(l2_norm(np.array([1, np.nan], np.float32)))
    assert l2_norm(np.array([1, -np.inf], np.float32)) == math.inf


def test_square_sums_of_spans_add_up():
    vector = np.random.default_rng(0).standard_normal(30_000).astype(np.float32)
    parts = sum(square_sum(span.of(vector)) for span in even_spans(vector.size, 7))
    assert parts == pytest.approx(square_sum(vector), rel=1e-13)


@pytest.mark.parametrize("limit", [0.5, 1.0, 3.0])
def test_a_clipped_gradient_is_no_longer_than_the_limit(limit):
    grad = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    clipped = grad * np.float32(clip_factor(l2_norm(grad), limit))
    assert l2_norm(clipped) == pytest.approx(limit, rel=1e-6)


@pytest.mark.parametrize(("norm", "limit"), [(0.0, 1.0), (1.0, 1.0), (5.0, None), (math.inf, None)])
def test_nothing_to_clip_is_a_factor_of_exactly_one(norm, limit):
    assert clip_factor(norm, limit) == 1.0


def test_what_diverged_stays_visible():
    assert math.isnan(clip_factor(math.nan, 1.0))
    assert clip_factor(math.inf, 1.0) == 0.0
