"""How vectors of several learners become one, and outer steps along it, against float64.

Also where they must agree to the bit: one learner, nothing trimmed, momentum that is not delayed.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from psrt.core.messages import Push
from psrt.core.partition import Span
from psrt.optim import BLOCK, Schedule
from psrt.optim.table import MERGES, OUTER_STEPS, STALENESS_RATES, Always, Sgd
from psrt.runtime.paces import Paces, Slack, pace_of
from psrt.runtime.shard import Shard
from psrt.runtime.updater import Contribution, Updater
from support.cases import each
from support.reference import merge_of

#: Fewer than a block, just more than one, and several.
SIZES = (1, 7, BLOCK + 3, 2 * BLOCK + 1)
COUNTS = (1, 2, 3, 4, 5, 8)
#: Merges, by name, with their knobs.
RULES = {
    "mean": MERGES["mean"], "radial": MERGES["radial"], "median": MERGES["median"],
    **{f"trimmed {b}": replace(MERGES["trimmed"], trim=b) for b in (0, 1, 2)},
}  # fmt: skip


def noise(n, seed):
    return np.random.default_rng([n, seed]).standard_normal(n).astype(np.float32)


def tensors(n):
    """Return three tensors that make up a vector, if it is long enough."""
    edges = sorted({0, n // 3, n - n // 4, n})
    return [Span(*it) for it in itertools.pairwise(edges)]


def by_the_book(name, vectors, weights, spans):
    name, _, trim = name.partition(" ")
    return merge_of(name, np.array(vectors, float), weights, spans, trim=int(trim or 0))


def merged(name, vectors, weights, lr=1.0):
    """Return what an updater moves by along a merge."""
    n = len(vectors[0])
    updater = Updater(
        n, Sgd().make(n), Schedule(Always(), lr, epochs=1), merge=RULES[name].make(tensors(n))
    )
    out, theta = np.empty(n, np.float32), np.zeros(n, np.float32)
    terms = [Contribution(*it) for it in zip(vectors, weights, strict=True)]
    updater.apply(theta, terms, out, progress=0.0)
    return -out


@each(("name", "n", "count"), itertools.product(RULES, SIZES, COUNTS))
def test_a_merge_is_what_the_book_says(name, n, count):
    vectors = [noise(n, seed) for seed in range(count)]
    weights = np.full(count, 1 / count)
    if RULES[name].weighs:
        weights = np.arange(1.0, count + 1)
        weights /= weights.sum()
    due = by_the_book(name, vectors, weights, tensors(n))
    np.testing.assert_allclose(merged(name, vectors, weights), due, rtol=2e-5, atol=2e-6)


@each("name", RULES)
def test_what_is_stale_is_scaled_down(name):
    n, count = 50, 3
    weights = [1 / 3, 0.5 / 3, 0.25 / 3]
    vectors = [noise(n, seed) for seed in range(count)]
    due = by_the_book(name, vectors, weights, tensors(n))
    np.testing.assert_allclose(merged(name, vectors, weights), due, rtol=2e-5, atol=1e-6)


@each("name", RULES)
def test_of_one_learner_every_merge_is_what_it_has_learnt(name):
    for n in SIZES:
        assert merged(name, [noise(n, 0)], [1.0]).tobytes() == (noise(n, 0) + 0.0).tobytes()


@each("count", [2, 3, 4, 5, 8])
def test_nothing_trimmed_is_the_mean_of_equal_weights(count):
    vectors = [noise(BLOCK + 3, seed) for seed in range(count)]
    weights = [1 / count] * count
    mean, trimmed = (merged(it, vectors, weights) for it in ("mean", "trimmed 0"))
    assert mean.tobytes() == trimmed.tobytes()


@each("name", RULES)
def test_vectors_of_zeros(name):
    """All of them, or one, or one whose length has no inverse in float32; none makes a NaN."""
    n = 12
    zero, tiny = np.zeros(n, np.float32), np.full(n, 1e-40, np.float32)
    assert not merged(name, [zero] * 3, [1 / 3] * 3).any()
    for odd in (zero, tiny):
        vectors = [odd, noise(n, 1), noise(n, 2)]
        due = by_the_book(name, [zero, *vectors[1:]], [1 / 3] * 3, tensors(n))
        np.testing.assert_allclose(merged(name, vectors, [1 / 3] * 3), due, rtol=1e-5, atol=1e-6)


def test_the_length_stays_where_directions_differ_and_the_mean_is_taken_where_they_cancel():
    """Four orthogonal vectors have a mean of half their length; opposite ones have no direction."""
    rows = list(3 * np.eye(4, dtype=np.float32))
    n, weights = 4, [0.25] * 4
    updater = RULES["radial"].make([Span(0, n)])
    out = np.empty(n, np.float32)
    updater.merge(rows, weights, out)
    assert np.linalg.norm(out) == pytest.approx(3.0)
    x = noise(n, 0)
    updater.merge([x, -3 * x], [0.5, 0.5], out)
    np.testing.assert_allclose(out, -x, rtol=1e-6)


def test_a_wrong_learner_moves_a_median_and_a_trimmed_mean_nowhere_far():
    vectors = [noise(100, seed) for seed in range(4)] + [np.full(100, 1e9, np.float32)]
    for name in ("median", "trimmed 1"):
        assert np.abs(merged(name, vectors, [0.2] * 5)).max() < 5
    assert merged("mean", vectors, [0.2] * 5).min() > 1e8


# --- outer steps --------------------------------------------------------------------------------


def stepped(row, deltas, lr):
    """Return the parameters after outer steps along some vectors."""
    n = len(deltas[0])
    updater = Updater(n, row.make(n), Schedule(Always(), lr, epochs=1))
    theta = noise(n, 99)
    for it in deltas:
        updater.step(theta, it, theta, 0.0)
    return theta


def by_equation(name, deltas, lr, momentum=0.9, period=1):
    """Return the same in float64."""
    theta = noise(len(deltas[0]), 99).astype(float)
    v, total = np.zeros_like(theta), np.zeros_like(theta)
    for i, delta in enumerate(deltas):
        g = delta.astype(float)
        if name == "plain":
            theta -= lr * g
        elif name == "nesterov":
            v = momentum * v + g
            theta -= lr * (g + momentum * v)
        else:
            theta -= lr * g / period
            total += g / period
            if (i + 1) % period == 0:
                v = momentum * v + total
                theta -= lr * momentum * v
                total[:] = 0
    return theta


OUTER = {
    "plain": (OUTER_STEPS["plain"], {}),
    "nesterov": (replace(OUTER_STEPS["nesterov"], momentum=0.8), {"momentum": 0.8}),
    **{
        f"delayed-nesterov, {n}": (
            replace(OUTER_STEPS["delayed-nesterov"], momentum=0.8, period=n),
            {"momentum": 0.8, "period": n},
        )
        for n in (1, 2, 3, 8)
    },
}


@each(("name", "n"), itertools.product(OUTER, SIZES))
def test_an_outer_step_is_its_equation(name, n):
    row, knobs = OUTER[name]
    deltas = [noise(n, seed) for seed in range(11)]
    deltas[4][:] = 0
    due = by_equation(name.partition(",")[0], deltas, 0.7, **knobs)
    np.testing.assert_allclose(stepped(row, deltas, 0.7), due, rtol=1e-5, atol=2e-5)


def test_momentum_that_is_not_delayed_is_nesterovs_to_the_bit():
    deltas = [noise(BLOCK + 3, seed) for seed in range(6)]
    one, other = (stepped(OUTER[it][0], deltas, 0.7) for it in ("nesterov", "delayed-nesterov, 1"))
    assert one.tobytes() == other.tobytes()


# --- weights, rates, paces ----------------------------------------------------------------------


def shard_of(weigh, rate, gradients):
    n = len(gradients[0])
    return Shard(
        [np.zeros(n, np.float32) for _ in range(3)],
        np.zeros(n, np.float32),
        Updater(n, Sgd().make(n), Schedule(Always(), 1.0, epochs=1)),
        payload=gradients.__getitem__,
        workers=len(gradients),
        by_samples=False,
        weigh=weigh,
        rate=None if rate is None else STALENESS_RATES[rate].make(n, max_lr=1.0),
    )


@each(("by", "weigh"), [
    ("samples", lambda push: push.samples), ("equal", lambda push: 1.0),
    ("quality", lambda push: push.samples**2 / push.steps),
])  # fmt: skip
def test_a_rate_scales_what_was_learnt_and_not_its_weight(by, weigh):
    """Σ w r Δ / Σ w: of one learner that is late, too, or of several that are as late."""
    gradients = [noise(20, seed) for seed in range(3)]
    samples, steps = (8, 24, 16), (2, 3, 8)
    shard = shard_of(weigh, "inverse", gradients)
    shard.apply([Push(0, 0, 0, 8, 0.0)], 1)
    shard.apply([Push(0, 1, 1, 8, 0.0)], 0)
    theta = shard.theta.astype(float)
    pushes = [Push(i, 0, 0, samples[i], 0.0, 0, steps[i]) for i in range(3)]
    shard.apply(pushes, 1)  # all two versions old
    weights = {"samples": [8, 24, 16], "equal": [1, 1, 1], "quality": [32, 192, 32]}[by]
    due = np.average(np.array(gradients, float), axis=0, weights=weights) / 2
    np.testing.assert_allclose(theta - shard.theta, due, rtol=1e-5, atol=1e-6)
    before = shard.theta.copy()
    shard.apply([Push(1, 1, 1, 24, 0.0, 0, 3)], 2)
    np.testing.assert_allclose(before - shard.theta, gradients[1] / 2, rtol=1e-5, atol=1e-6)


def test_who_has_no_samples_has_no_weight():
    gradients = [noise(20, seed) for seed in range(3)]
    shard = shard_of(lambda push: 1.0, None, gradients)
    shard.apply([Push(0, 0, 0, 4, 0.0), Push(1, 0, 0, 0, 0.0), Push(2, 0, 0, 4, 0.0)], 1)
    due = -(gradients[0].astype(float) + gradients[2]) / 2
    np.testing.assert_allclose(shard.theta, due, rtol=1e-6)
    before = shard.theta.copy()
    shard.apply([Push(1, 1, 1, 0, 0.0)], 2)
    assert shard.theta.tobytes() == before.tobytes()
    assert shard.version == 2


def test_learners_that_are_as_fast_take_the_fixed_steps():
    paces = Paces(local_steps=7)
    for worker, pace in enumerate([3.3] * 4):
        paces.note(worker, pace)
        assert [paces.steps(it) for it in range(4)] == [7] * 4
    paces.note(0, 3.3 * (1 + 1e-6))  # rounding of a clock
    assert [paces.steps(it) for it in range(4)] == [7] * 4


@each("local_steps", [1, 2, 8, 50])
def test_steps_are_in_proportion_to_paces(local_steps):
    paces = Paces(local_steps=local_steps)
    speeds = {0: 10.0, 1: 5.0, 2: 2.6, 3: 0.01}
    for worker, pace in speeds.items():
        paces.note(worker, pace)
    due = [max(1, int(local_steps * it / 10.0)) for it in speeds.values()]
    assert [paces.steps(it) for it in speeds] == due
    paces.forget(0)  # now the second one is the fastest
    assert paces.steps(1) == local_steps


def test_a_window_is_what_computing_hides_of_the_slowest():
    """γ(T·ξ_step − ξ_quorum − ξ_sync); one that no time has passed for has no pace."""
    paces, slack = Paces(), Slack(delay=6, sync_s=0.25)
    assert paces.slowest_s == 0.0
    for worker, (steps, seconds) in enumerate([(8, 2.0), (4, 2.0), (3, 0.0)]):
        paces.note(worker, pace_of(steps, seconds))
    assert paces.slowest_s == 0.5
    assert slack.seconds(paces.slowest_s, 0.75) == pytest.approx(0.8 * (6 * 0.5 - 0.75 - 0.25))
    assert slack.seconds(paces.slowest_s, 9.0) == 0.0
