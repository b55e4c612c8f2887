"""Optimizers against the equations in float64, their rates and clipping at points that define them.

The law of references holds whole jobs against the same equations; here every knob has a value of
its own, and blocks, shards, state and memory are as promised.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.core.partition import even_spans
from psrt.optim import (
    BLOCK,
    OPTIMIZERS,
    SCHEDULES,
    Schedule,
    clip_factor,
    square_sum,
    step,
)
from support.cases import each
from support.reference import Optimizer

RATES = [0.1, 0.05, 0.2, 0.01] * 3
KNOBS = {"momentum": 0.8, "beta1": 0.7, "beta2": 0.95, "epsilon": 1e-3}

every_optimizer = each(("name", "decay"), [(it, decay) for it in OPTIMIZERS for decay in (0, 0.3)])


def make(name, n, decay=0.0):
    taken = {knob: KNOBS[knob] for knob in OPTIMIZERS[name].knobs}
    return replace(OPTIMIZERS[name], **taken).make(n, weight_decay=decay)


def noise(n, seed):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def run(name, n, decay=0.0, steps=3):
    """Return the parameters after some steps on gradients that do not depend on them."""
    optimizer, theta = make(name, n, decay), noise(n, 0)
    for i in range(steps):
        step(optimizer, theta, noise(n, i + 1), theta, RATES[i])
    return theta, optimizer


@every_optimizer
def test_the_equation(name, decay):
    n, curvature = 50, np.linspace(0.1, 3, 50)
    theta, optimizer = noise(n, 0), make(name, n, decay)
    config = KNOBS | {
        "optimizer": {"demo": "sign-sgd"}.get(name, name),  # the other half is a codec
        "weight_decay": decay, "schedule": "constant",
    }  # fmt: skip
    oracle, due = Optimizer(config), theta.astype(float)
    for lr in RATES:
        grad = (curvature * theta - 1).astype(np.float32)
        step(optimizer, theta, grad, theta, lr)
        config["lr"] = lr
        due = oracle(due, curvature * due - 1, 0.0)
    np.testing.assert_allclose(theta, due, rtol=2e-5, atol=2e-6)
    assert optimizer.updates == len(RATES)


@every_optimizer
def test_shards_and_blocks_in_any_order_and_out_of_place_give_the_bits_of_one(name, decay):
    n = BLOCK + 17
    want, _ = run(name, n, decay)
    theta, split = noise(n, 0), noise(n, 0)
    optimizer = make(name, n, decay)
    parts = [(span, make(name, span.size, decay)) for span in even_spans(n, 3)]
    for i in range(3):
        grad, out = noise(n, i + 1), np.full(n, np.nan, np.float32)
        for span, own in parts:
            step(own, span.of(split), span.of(grad), span.of(split), RATES[i])
        theta.flags.writeable = grad.flags.writeable = False
        optimizer.begin(RATES[i])
        for span in reversed(even_spans(n, 7 + i)):
            optimizer.update(span, span.of(theta), span.of(grad), span.of(out))
        theta = out
    np.testing.assert_array_equal(theta, want)
    np.testing.assert_array_equal(split, want)


@every_optimizer
def test_state_and_updates_are_all_there_is_to_keep(name, decay):
    want, _ = run(name, 100, decay, steps=6)
    theta, stopped = run(name, 100, decay)
    resumed = make(name, 100, decay)
    assert set(resumed.state) == set(stopped.state)
    for key, array in stopped.state.items():
        assert (array.dtype, array.shape) == (np.float32, (100,))
        resumed.state[key][:] = array
    resumed.updates = stopped.updates
    for i in range(3, 6):
        step(resumed, theta, noise(100, i + 1), theta, RATES[i])
    np.testing.assert_array_equal(theta, want)


@every_optimizer
def test_what_diverges_shows_and_warns_nobody(name, decay):
    """The sign of infinity is as good as any, but nothing that diverges may end with numbers."""
    optimizer, theta = make(name, 3, decay), np.full(3, 1e38, np.float32)
    for _ in range(3):
        step(optimizer, theta, np.array([np.nan, np.inf, -3e38], np.float32), theta, 1e3)
    assert np.isnan(theta[0])
    for infinite in (np.inf, -np.inf):
        theta, grad = np.ones(2 * BLOCK, np.float32), np.full(2 * BLOCK, 1e30, np.float32)
        grad[BLOCK + 3] = infinite
        step(make(name, theta.size, decay), theta, grad, theta, 1e-3)
        assert np.flatnonzero(~np.isfinite(theta)).tolist() == [BLOCK + 3]


def test_knobs_have_defaults_and_bounds_and_some_optimizers_coast():
    for name, knobs in (
        ("adam", {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}),
        ("adagrad", {"epsilon": 1e-8}),
        ("momentum", {"momentum": 0.9}),
    ):
        one, other = np.ones(3, np.float32), np.ones(3, np.float32)
        for theta, given in ((one, knobs), (other, {})):
            optimizer = replace(OPTIMIZERS[name], **given).make(3)
            for i in range(5):
                step(optimizer, theta, 1e-8 * noise(3, i), theta, 0.1)  # beside which ε counts
        np.testing.assert_array_equal(one, other)
    for name, row in OPTIMIZERS.items():  # whether an element without a gradient moves
        optimizer, theta = make(name, 1), np.ones(1, np.float32)
        step(optimizer, theta, np.ones(1, np.float32), theta, 0.1)
        before = theta.copy()
        step(optimizer, theta, np.zeros(1, np.float32), theta, 0.1)
        assert (theta != before).all() == row.coasts
    for name, knobs, message in (
        ("momentum", {"momentum": 1.0}, "momentum: momentum must be below 1, got 1"),
        ("momentum", {"momentum": -0.1}, "momentum must be at least 0, got -0.1"),
        ("adam", {"beta2": math.nan}, "beta2 must be a finite number"),
        ("adam", {"epsilon": 0.0}, "epsilon must be at least 1e-30, got 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            replace(OPTIMIZERS[name], **knobs)


# --- the rate by progress -----------------------------------------------------------------------


@each("kind", SCHEDULES)
def test_warm_up_is_linear_from_zero_to_the_peak_which_nothing_passes(kind):
    for warmup in (0.0, 0.5, 4.0, 10.0):
        schedule = Schedule(replace(SCHEDULES[kind], warmup=warmup), 0.4, epochs=10)
        rates = [schedule.rate(i / 100) for i in range(1201)]
        assert 0 <= min(rates) <= max(rates) <= schedule.peak == 0.4
        for share in (0, 0.25, 0.625, 0.75) if warmup else ():
            assert schedule.rate(share * warmup) == pytest.approx(0.4 * share)
        assert schedule.rate(warmup) == pytest.approx(0.4)


@each(
    ("kind", "points"),
    [
        ("constant", {0: 2, 1.5: 2, 9: 2, 99: 2}),
        (
            "step:epochs=3,factor=0.5,warmup=1",
            {1: 2, 3.99: 2, 4: 1, 6.99: 1, 7: 0.5, 10: 0.25},
        ),
        (
            "cosine:warmup=1",
            {it: 1 + math.cos(math.pi * (it - 1) / 8) for it in (1, 2, 4.2, 5, 8.5, 9)} | {20: 0},
        ),
        ("cosine:warmup=9", {9: 2}),  # all warm-up: it ends at its peak
    ],
)  # fmt: skip
def test_the_curve_from_the_warm_up_on(kind, points):
    schedule = Schedule(SCHEDULES.read(kind), 2.0, epochs=9)
    assert [schedule.rate(it) for it in points] == pytest.approx(list(points.values()), abs=1e-12)


@each(
    ("kind", "lr", "message"),
    [
        ("constant", 0.0, "learning rate 0.0"),
        ("constant", math.inf, "learning rate inf"),
        ("constant:warmup=11", 0.1, "warm-up of 11 epochs in a run of 10"),
    ],
)
def test_numbers_that_make_no_curve(kind, lr, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(SCHEDULES.read(kind), lr, epochs=10)


# --- clipping -----------------------------------------------------------------------------------


@each("n", [0, 1, 8191, 8192, 8193, 50_000])
def test_a_norm_is_that_of_float64_and_spans_add_up(n):
    vector = noise(n, n)
    due = math.fsum(x * x for x in vector.astype(float))
    assert square_sum(vector) == pytest.approx(due, rel=1e-13)
    parts = sum(square_sum(span.of(vector)) for span in even_spans(n, 7))
    assert parts == pytest.approx(due, rel=1e-13)
    blurred = np.full(10**5 + n, 0.1, np.float32)
    assert square_sum(blurred) == pytest.approx(blurred.size * float(blurred[0]) ** 2, rel=1e-12)
    assert square_sum(np.full(4, 1e38, np.float32)) == pytest.approx(4e76)  # nor does it overflow
    assert math.isnan(square_sum(np.array([1, np.nan], np.float32)))


@each(
    ("norm", "limit", "factor"),
    [
        (4.0, 0.5, 0.125), (4.0, 3.0, 0.75), (0.0, 1.0, 1.0), (1.0, 1.0, 1.0), (5.0, None, 1.0),
        (math.inf, None, 1.0), (math.inf, 1.0, 0.0), (math.nan, 1.0, math.nan),
    ],
)  # fmt: skip
def test_what_is_longer_than_the_limit_is_scaled_to_it(norm, limit, factor):
    np.testing.assert_equal(clip_factor(norm, limit), factor)
