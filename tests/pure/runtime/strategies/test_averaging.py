"""Replacing the parameters by a mean, plainly or through an outer optimizer."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.optim import BLOCK, Schedule, make_optimizer
from psrt.partition import Span
from psrt.runtime.strategies.averaging import OuterStep, PlainAverage
from psrt.runtime.updater import Contribution, Updater


@pytest.mark.parametrize("n", [3, BLOCK + 5])
def test_plainly_the_mean_is_the_next(n):
    rng = np.random.default_rng(0)
    theta, first, second = rng.normal(size=(3, n)).astype(np.float32)
    average = PlainAverage()
    updater = Updater(n, average, Schedule("constant", 1.0, epochs=1))
    terms = [Contribution(first, 0.25), Contribution(second, 0.75)]
    updater.apply(theta, terms, theta, progress=3.0)
    np.testing.assert_allclose(theta, 0.25 * first + 0.75 * second, rtol=1e-5, atol=1e-6)
    assert (average.updates, average.state) == (1, {})


@pytest.mark.parametrize("n", [3, BLOCK + 5])
def test_diloco(n):
    """θ ← θ − 0.7·(Δ + 0.9·v) with v ← 0.9·v + Δ and Δ = θ − mean."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(4, n)).astype(np.float32)
    theta = rng.normal(size=n).astype(np.float32)
    expected, velocity = theta.astype(np.float64), np.zeros(n)
    outer = OuterStep(make_optimizer("nesterov", n, momentum=0.9))
    updater = Updater(n, outer, Schedule("constant", 0.7, epochs=1))
    for mean in means:
        before = mean.copy()
        updater.apply(theta, [Contribution(mean)], theta, progress=0.0)
        np.testing.assert_array_equal(mean, before)
        delta = expected - mean
        velocity = 0.9 * velocity + delta
        expected = expected - 0.7 * (delta + 0.9 * velocity)
    np.testing.assert_allclose(theta, expected, rtol=1e-4, atol=1e-5)
    assert outer.updates == len(means)


def test_what_the_outer_optimizer_keeps_is_what_a_checkpoint_keeps():
    inner = make_optimizer("nesterov", 2, momentum=0.9)
    outer = OuterStep(inner)
    outer.begin(0.7)
    zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
    outer.update(Span(0, 2), zero, one, zero)
    assert outer.state is inner.state
    [velocity] = outer.state.values()
    assert velocity.tolist() == [-1.0, -1.0]
