"""The one place where an update is computed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from psrt.optim import BLOCK, OPTIMIZERS, Schedule, make_optimizer, make_staleness_rate
from psrt.partition import even_spans
from psrt.runtime.updater import Contribution, Updater

LARGE = 2 * BLOCK + 77


def updater(n, name="sgd", lr=0.1, rate=None, **knobs):
    return Updater(
        n, make_optimizer(name, n, **knobs), Schedule("constant", lr, epochs=1), rate=rate
    )


def vectors(n, count, seed=0):
    return list(np.random.default_rng(seed).normal(size=(count, n)).astype(np.float32))


@pytest.mark.parametrize("n", [1, 1000, LARGE])
@pytest.mark.parametrize("weights", [(1.0,), (0.5,), (1.0, 1.0), (0.2, 0.3, 0.5), (1.0, 0.0, 2.0)])
def test_a_step_along_the_weighted_sum(n, weights):
    theta, *gradients = vectors(n, 1 + len(weights))
    before = [vector.copy() for vector in gradients]
    out = np.empty_like(theta)
    terms = [Contribution(g, w) for g, w in zip(gradients, weights, strict=True)]
    updater(n).apply(theta, terms, out, progress=0.0)
    expected = theta - 0.1 * sum(
        w * g.astype(np.float64) for g, w in zip(gradients, weights, strict=True)
    )
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    for gradient, unchanged in zip(gradients, before, strict=True):
        np.testing.assert_array_equal(gradient, unchanged)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("weights", [(1.0,), (0.3, 0.7)])
def test_neither_cuts_nor_places_show_in_the_bits(name, weights):
    """In place or not, and in shards of any cut."""
    theta, *gradients = vectors(LARGE, 3)
    terms = [Contribution(g, w) for g, w in zip(gradients, weights, strict=False)]
    whole, apart = updater(LARGE, name), updater(LARGE, name)
    in_place, current = theta.copy(), theta
    for _ in range(3):
        whole.apply(in_place, terms, in_place, progress=0.0)
        following = np.empty_like(current)
        apart.apply(current, terms, following, progress=0.0)
        current = following
    np.testing.assert_array_equal(in_place, current)
    for span in even_spans(LARGE, 3):
        part, shard = span.of(theta).copy(), updater(span.size, name)
        cut = [term._replace(vector=span.of(term.vector)) for term in terms]
        for _ in range(3):
            shard.apply(part, cut, part, progress=0.0)
        np.testing.assert_array_equal(part, span.of(in_place))


def test_the_rate_is_the_schedules_at_this_progress():
    it = Updater(2, make_optimizer("sgd", 2), Schedule("constant", 1.0, epochs=4, warmup_epochs=4))
    theta = np.zeros(2, np.float32)
    for progress in (1.0, 2.0):
        it.apply(theta, [Contribution(np.ones(2, np.float32))], theta, progress=progress)
    np.testing.assert_allclose(theta, -0.25 - 0.5)
    assert it.optimizer.updates == 2


def test_accumulating_and_then_applying_is_applying_all():
    theta, *gradients = vectors(LARGE, 4)
    it, total = updater(LARGE), np.zeros(LARGE, np.float32)
    for gradient in gradients:
        it.accumulate(total, Contribution(gradient, 0.5), theta)
    np.testing.assert_allclose(total, 0.5 * sum(gradients), rtol=1e-5, atol=1e-6)


def test_elementwise_rates_are_asked_for_each_gradient_and_shown_each_step():
    theta, first, second, read = vectors(LARGE, 4)
    rate = make_staleness_rate("delay-compensated", LARGE, dc_lambda=0.5)
    seen = []
    rate.observe = lambda span, before, after, lr: seen.append(
        (span, before.copy(), after.copy(), lr)
    )
    it, out = updater(LARGE, rate=rate), theta.copy()
    terms = [Contribution(first, 0.25, read), Contribution(second, 0.75, theta)]
    it.apply(out, terms, out, progress=0.0)  # in place: the rate must see what was before
    compensated = first + 0.5 * first * first * (theta - read)
    expected = theta - 0.1 * (0.25 * compensated + 0.75 * second)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    assert [span.size for span, *_ in seen] == [BLOCK, BLOCK, 77]
    for span, before, after, lr in seen:
        np.testing.assert_array_equal(before, span.of(theta))
        np.testing.assert_array_equal(after, span.of(out))
        assert lr == 0.1


def test_vectors_that_come_and_go_are_not_held_for_ever():
    it, theta = updater(LARGE), np.zeros(LARGE, np.float32)
    shared = np.zeros(LARGE, np.float32)
    for _ in range(600):
        it.apply(theta, [Contribution(shared[:], 0.5)], theta, progress=0.0)
    assert len(it._views) <= 256


def test_views_are_of_the_vector_that_is_given_and_not_of_one_long_gone():
    it, theta = updater(LARGE), np.zeros(LARGE, np.float32)
    for value in itertools.islice(itertools.cycle([1.0, 2.0]), 20):
        gradient = np.full(LARGE, value, np.float32)
        before = theta[0]
        it.apply(theta, [Contribution(gradient)], theta, progress=0.0)
        np.testing.assert_allclose(theta, before - 0.1 * value, rtol=1e-5)
        del gradient
