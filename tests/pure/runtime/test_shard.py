"""What a shard makes of what the policy decided, and the one place where it computes that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from psrt.core.messages import Push
from psrt.optim import BLOCK, Schedule
from psrt.optim.table import OPTIMIZERS, STALENESS_RATES, Always, DelayCompensated, GapAware, Sgd
from psrt.runtime.shard import Shard
from psrt.runtime.updater import Contribution, Updater
from support.cases import each

#: More than a block, so that what is kept and what a rate remembers is of several.
N = BLOCK + 3


def push(worker, *, clock=0, version=0, samples=4, progress=0.0):
    return Push(worker, clock, version, samples, progress)


class Case:
    """A shard at zero with a learning rate of 1, and the gradients 1, 2, 4, … of its workers."""

    def __init__(self, *, by_samples=False, rate=None, schedule=None, initial=0.0):
        self.gradients = [np.full(N, 2.0**w, np.float32) for w in range(4)]
        known = {"delay-compensated": DelayCompensated(0.5)}
        rule = rate and known.get(rate, STALENESS_RATES[rate]).make(N, max_lr=0.1)
        schedule = schedule or Schedule(Always(), 1.0, epochs=4)
        elementwise = rule if rule and rule.elementwise else None
        self.shard = Shard(
            [np.zeros(N, np.float32) for _ in range(3)],
            np.full(N, initial, np.float32),
            Updater(N, Sgd().make(N), schedule, rate=elementwise),
            payload=self.gradients.__getitem__,
            workers=4,
            by_samples=by_samples,
            rate=rule,
        )

    def apply(self, *pushes, buffer=0):
        before = self.shard.theta.copy()
        self.shard.apply(pushes, buffer)
        [step] = set((before - self.shard.theta).tolist())
        return step


def test_gradients_are_weighed_by_samples_in_rounds_and_one_without_any_is_a_version():
    case = Case(by_samples=True)
    assert case.apply(push(0, samples=6), push(1, samples=2), push(2, samples=0)) == 1.25
    assert case.apply(push(0, samples=0), push(1, samples=0), buffer=1) == 0
    assert case.apply(buffer=1) == 0
    assert (case.shard.version, case.shard.newest) == (3, 0)


@each("buffer", [0, 1, 2])
def test_a_version_goes_into_the_buffer_that_is_given(buffer):
    case = Case(initial=5.0)
    case.apply(push(0), buffer=buffer)
    assert case.shard.newest == buffer
    assert case.shard.theta is case.shard.buffers[buffer]
    assert case.shard.theta.tolist() == [4.0] * N
    others = [b[0] for i, b in enumerate(case.shard.buffers) if i != buffer]
    assert others == ([0.0, 0.0] if buffer == 0 else [5.0, 0.0])


def test_kept_gradients_are_those_of_the_time_they_were_kept():
    case = Case()
    case.shard.keep(push(0))
    case.gradients[0][:] = 100  # its worker goes on
    case.shard.keep(push(1))
    case.gradients[1][:] = 100
    assert case.apply(push(0), push(1), push(2)) == pytest.approx((1 + 2 + 4) / 3)
    case = Case()
    for _ in range(3):  # the next sum starts anew
        case.shard.keep(push(0))
        assert case.apply(push(0), push(1)) == 1.5
    case.shard.keep(push(2))
    assert case.apply(push(2)) == 4.0  # all of the quorum was kept: somebody left


def test_rates_look_at_each_gradients_own_staleness():
    case = Case(rate="inverse")
    for _ in range(4):
        case.apply(push(0))
    case.shard.keep(push(1, version=0))  # 4 versions ago
    assert case.apply(push(1, version=0), push(2, version=2)) == pytest.approx((2 / 4 + 4 / 2) / 2)
    assert case.shard.counts.stats.histogram == [1, 1, 2, 1, 1]


def test_an_elementwise_rate_gets_what_the_worker_read():
    case = Case(rate="delay-compensated", initial=1.0)
    case.shard.read_by(2)
    case.apply(push(0))  # θ: 1 → 0
    case.shard.read_by(3)
    # G + λ·G²·(θ_now − θ_read): 4 + 0.5·16·(0 − 1) and 8 + 0.5·64·0
    assert case.apply(push(2), push(3)) == ((4 - 8) + 8) / 2
    # Worker 1 has read the initial parameters only.
    assert case.apply(push(1)) == 2 + 0.5 * 4 * (-2 - 1)


def test_a_kept_gradient_is_compensated_too():
    case = Case(rate="delay-compensated", initial=1.0)
    case.apply(push(0))
    case.shard.keep(push(2))
    case.shard.read_by(2)  # it goes on with newer parameters
    case.gradients[2][:] = 0
    assert case.apply(push(2), push(1, samples=1)) == ((4 - 8) + (2 - 2)) / 2


@each("by_samples", [True, False])
def test_an_update_goes_with_the_mean_progress_of_its_pushes(by_samples):
    schedule = Schedule(Always(warmup=4), 1.0, epochs=4)
    case = Case(by_samples=by_samples, schedule=schedule)
    assert case.apply(push(0, progress=3.0), push(0, progress=1.0)) == 0.5
    assert case.apply(push(1, progress=1.0)) == 0.5


# --- updates --------------------------------------------------------------------------------------

LARGE = 2 * BLOCK + 77


def updater(n, name="sgd", lr=0.1, rate=None, **knobs):
    return Updater(
        n, replace(OPTIMIZERS[name], **knobs).make(n), Schedule(Always(), lr, epochs=1), rate=rate
    )


def vectors(n, count, seed=0):
    return list(np.random.default_rng(seed).normal(size=(count, n)).astype(np.float32))


@each("n", [1, 1000, LARGE])
@each("weights", [(1.0,), (0.5,), (1.0, 1.0), (0.2, 0.3, 0.5), (1.0, 0.0, 2.0)])
def test_a_step_along_the_weighted_sum_in_place_or_not(n, weights):
    theta, *gradients = vectors(n, 1 + len(weights))
    before = [vector.copy() for vector in gradients]
    out, in_place = np.empty_like(theta), theta.copy()
    terms = [Contribution(g, w) for g, w in zip(gradients, weights, strict=True)]
    updater(n).apply(theta, terms, out, progress=0.0)
    updater(n).apply(in_place, terms, in_place, progress=0.0)
    np.testing.assert_array_equal(in_place, out)
    expected = theta - 0.1 * sum(
        w * g.astype(np.float64) for g, w in zip(gradients, weights, strict=True)
    )
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    for gradient, unchanged in zip(gradients, before, strict=True):
        np.testing.assert_array_equal(gradient, unchanged)


def test_elementwise_rates_are_asked_for_each_gradient_and_shown_each_step():
    theta, first, second, read = vectors(LARGE, 4)
    rate = DelayCompensated(0.5).make(LARGE, max_lr=0.1)
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


def test_views_are_of_the_vector_that_is_given_and_not_held_for_ever():
    it, theta = updater(LARGE), np.zeros(LARGE, np.float32)
    shared = np.zeros(LARGE, np.float32)
    for _ in range(300):
        it.apply(theta, [Contribution(shared[:], 0.5)], theta, progress=0.0)
    assert len(it._views) <= 256
    for value in [1.0, 2.0] * 10:
        gradient = np.full(LARGE, value, np.float32)
        before = theta[0]
        it.apply(theta, [Contribution(gradient)], theta, progress=0.0)
        np.testing.assert_allclose(theta, before - 0.1 * value, rtol=1e-5)
        del gradient


def test_equal_elements_stay_equal_across_blocks():
    """What was wrong once: every block after the first counted its own update as an earlier one."""
    rate = GapAware().make(N, max_lr=0.1)
    it = updater(N, rate=rate)
    gradient, theta, read = np.ones(N, np.float32), *np.zeros((2, N), np.float32)
    for _ in range(2):
        it.apply(theta, [Contribution(gradient, 1.0, read)], theta, progress=0.0)
    np.testing.assert_allclose(theta, -0.15, rtol=1e-6)
