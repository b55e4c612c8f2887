"""Staleness-aware rates against their rules in float64, and the settings that make them none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.core.partition import Span, even_spans
from psrt.optim import BLOCK, STALENESS_RATES
from psrt.optim.staleness import MeanInverse
from support.cases import each
from support.reference import StalenessRule

ELEMENTWISE = ["delay-compensated", "gap-aware"]
#: Element-wise rates with their knobs.
VARIANTS = [
    ("delay-compensated", {}), ("delay-compensated", {"strength": 0.5}),
    ("delay-compensated", {"adaptive": True}),
    ("delay-compensated", {"adaptive": True, "strength": 0.5}), ("gap-aware", {}),
]  # fmt: skip
MAX_LR = 0.2


def make(name, n=1, **knobs):
    max_lr = knobs.pop("max_lr", MAX_LR)
    return replace(STALENESS_RATES[name], **knobs).make(n, max_lr=max_lr)


def noise(n, seed, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def blocks(n):
    return [Span(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]


def turned(rate, grad, now, read):
    """Return the gradient as the rule makes it, block by block."""
    out = np.full(grad.size, np.nan, np.float32)
    for span in blocks(grad.size):
        rate.block(span, span.of(grad), span.of(now), span.of(read), span.of(out))
    return out


def observe(rate, before, after, lr):
    for span in blocks(before.size):
        rate.observe(span, span.of(before), span.of(after), lr)


@each("name", list(STALENESS_RATES))
def test_a_fresh_gradient_counts_fully_and_only_drop_drops(name):
    rate = make(name, 40)
    assert rate.elementwise == rate.needs_read == (name in ELEMENTWISE)
    assert rate.scale(0) == 1.0
    theta, grad = noise(40, 0), noise(40, 1)
    np.testing.assert_array_equal(turned(rate, grad, theta, theta), grad)
    knobs = {"power": {"power": 1e6}, "exponential": {"decay": 1e6}}.get(name, {})
    factor = make(name, **knobs).scale(10**6)
    assert (factor == 0) == (np.float32(factor) == 0) == (name == "drop")


@each(
    ("name", "knobs", "rule"),
    [
        ("constant", {}, lambda tau: 1),
        ("inverse", {}, lambda tau: 1 / tau if tau else 1),
        ("power", {"power": 0.7}, lambda tau: (1 + tau) ** -0.7),
        ("power", {}, lambda tau: (1 + tau) ** -0.5),
        ("exponential", {"decay": 0.3}, lambda tau: math.exp(-0.3 * tau)),
        ("exponential", {}, lambda tau: math.exp(-0.2 * tau)),
        ("drop", {"limit": 4}, lambda tau: 0 if tau > 4 else 1),
        ("drop", {"limit": 0}, lambda tau: 0 if tau else 1),
    ],
)
def test_factors(name, knobs, rule):
    rate = make(name, **knobs)
    for tau in (0, 1, 2, 4, 5, 30):
        assert rate.scale(tau) == pytest.approx(rule(tau), rel=1e-12)


@each("window", [1, 3, 8, None])
def test_mean_inverse_is_over_the_last_gradients(window):
    rate, last = MeanInverse(**{"window": window} if window else {}), window or 32
    taus = [int(tau) for tau in np.random.default_rng(0).integers(0, 9, 80)] + [0] * 40
    for i, tau in enumerate(taus):
        window_now = taus[max(0, i + 1 - last) : i + 1]
        want = 1 / max(1.0, sum(window_now) / len(window_now))
        assert rate.scale(tau) == pytest.approx(want, rel=1e-12)


@each(("name", "knobs"), VARIANTS)
def test_the_rule_of_each_element(name, knobs):
    rate, square = make(name, 99, **knobs), np.zeros(99)
    config = {"staleness_rate": name, "lr": MAX_LR}
    oracle, rtol = StalenessRule(config | knobs), 1e-4 if name == "gap-aware" else 1e-5
    theta = noise(99, 0)
    for t in range(1, 7):
        lr, before = 0.05 * t, theta
        theta = (before - lr * noise(99, t)).astype(np.float32)
        if not knobs.get("adaptive"):
            observe(rate, before, theta, lr)
            oracle.learn(before.astype(float), theta.astype(float), lr)
        grad, read = noise(99, t + 50), noise(99, t + 80)
        g, gap = grad.astype(float), theta.astype(float) - read
        if knobs.get("adaptive"):
            square = 0.95 * square + 0.05 * g * g
            due = g + knobs.get("strength", 2.0) / np.sqrt(square + 1e-7) * g * g * gap
        else:
            due = oracle(g, 1, theta.astype(float), read.astype(float))
        np.testing.assert_allclose(turned(rate, grad, theta, read), due, rtol=rtol, atol=1e-5)


def test_gap_awareness_counts_updates_and_not_blocks_nor_those_with_next_to_no_rate():
    n = 2 * BLOCK + 5
    large, small, warmed = (make("gap-aware", it) for it in (n, 1, 1))
    theta, one = np.zeros(n, np.float32), np.zeros(1, np.float32)
    for lr in (0.0, 1e-5):
        observe(warmed, one, one - np.float32(lr), lr)
        assert turned(warmed, one + 1, one + 1, one) == 1
    for _ in range(2):
        observe(large, theta, theta - 1, 0.1)
        observe(small, one, one - 1, 0.1)
        observe(warmed, one, one - 1, 0.1)
    got = turned(large, theta + 1, theta + 1, theta)
    np.testing.assert_array_equal(got, turned(small, one + 1, one + 1, one)[0])
    np.testing.assert_array_equal(got, turned(warmed, one + 1, one + 1, one)[0])
    assert got[0] != 1


@each(
    ("name", "knobs"),
    [
        ("delay-compensated", {"strength": 0.0}),
        ("delay-compensated", {"strength": 0.0, "adaptive": True}),
        ("gap-aware", {"max_lr": math.inf}),  # C = ∞
    ],
)
def test_settings_that_leave_every_bit_as_it_is(name, knobs):
    rate, (grad, now, read) = make(name, 99, **knobs), (noise(99, seed) for seed in range(3))
    grad[:3] = [0.0, -0.0, 1e-40]
    observe(rate, read, now, 0.1)
    assert turned(rate, grad, now, read).tobytes() == grad.tobytes()


@each(("name", "knobs"), VARIANTS)
def test_shards_of_any_cut_in_place_or_not_give_the_bits_of_one(name, knobs):
    n, spans = 1001, even_spans(1001, 3)
    whole, parts = make(name, n, **knobs), [make(name, span.size, **knobs) for span in spans]
    for i in range(3):
        grad, now, read = noise(n, i), noise(n, i + 10), noise(n, i + 20)
        now.flags.writeable = read.flags.writeable = False
        want = turned(whole, grad, now, read)
        for part, span in zip(parts, spans, strict=True):
            own = span.of(grad)
            part.block(Span(0, span.size), own, span.of(now), span.of(read), own)
            observe(part, span.of(read), span.of(now), 0.1)
        np.testing.assert_array_equal(grad, want)
        observe(whole, read, now, 0.1)


@each(
    ("name", "knobs", "message"),
    [
        ("drop", {"limit": -1}, "^drop: limit must be at least 0, got -1"),
        ("power", {"power": -0.5}, "power must be at least 0, got -0.5"),
        ("exponential", {"decay": math.nan}, "decay must be a finite number, got nan"),
        ("delay-compensated", {"strength": -1.0}, "strength must be at least 0, got -1"),
        ("gap-aware", {"max_lr": 0.0}, "peak rate of 0.0"),
    ],
)
def test_knobs_that_cannot_be(name, knobs, message):
    with pytest.raises(ConfigError, match=message):
        make(name, 3, **knobs)
