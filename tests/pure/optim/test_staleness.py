"""Each staleness-aware rate against its rule, and the settings that make it none at all."""

import math
import tracemalloc

import numpy as np
import pytest

from psrt.errors import ConfigError
from psrt.optim import BLOCK, STALENESS_RATES, make_staleness_rate
from psrt.partition import Span, even_spans

SCALAR = ["constant", "inverse", "mean-inverse", "power", "exponential", "drop"]
ELEMENTWISE = ["delay-compensated", "gap-aware"]
MAX_LR = 0.2


def make(name, n=1, **knobs):
    if name == "drop":
        knobs = {"limit": 3} | knobs
    return make_staleness_rate(name, n, **({"max_lr": MAX_LR} | knobs))


def noise(n, seed, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def turned(rate, grad, now, read):
    """The gradient as the rule makes it, block by block."""
    out = np.full(grad.size, np.nan, np.float32)
    for start in range(0, grad.size, BLOCK):
        span = Span(start, min(start + BLOCK, grad.size))
        rate.block(span, span.of(grad), span.of(now), span.of(read), span.of(out))
    return out


def observe(rate, before, after, lr):
    for start in range(0, before.size, BLOCK):
        span = Span(start, min(start + BLOCK, before.size))
        rate.observe(span, span.of(before), span.of(after), lr)


def test_every_rate_is_of_one_kind():
    assert set(STALENESS_RATES) == {*SCALAR, *ELEMENTWISE}
    for name in STALENESS_RATES:
        rate = make(name)
        assert rate.elementwise == rate.needs_read == (name in ELEMENTWISE)


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("name", STALENESS_RATES)
def test_a_fresh_gradient_counts_fully(name):
    assert make(name).scale(0) == 1.0


@pytest.mark.parametrize("name", STALENESS_RATES)
def test_only_drop_drops(name):
    knobs = {"power": {"power": 1e6}, "exponential": {"decay": 1e6}}.get(name, {})
    factor = make(name, **knobs).scale(10**6)
    assert (factor == 0) == (name == "drop")
    assert (np.float32(factor) == 0) == (name == "drop")


@pytest.mark.parametrize("window", [1, 3, 8])
def test_mean_inverse_is_over_the_last_gradients(window):
    rate = make("mean-inverse", window=window)
    taus = [int(tau) for tau in np.random.default_rng(0).integers(0, 9, 40)] + [0] * 10
    for i, tau in enumerate(taus):
        last = taus[max(0, i + 1 - window) : i + 1]
        want = 1 / max(1.0, sum(last) / len(last))
        assert rate.scale(tau) == pytest.approx(want, rel=1e-12)


def test_mean_inverse_of_a_steady_staleness_is_inverse():
    rate = make("mean-inverse")
    assert {rate.scale(4) for _ in range(100)} == {0.25}


@pytest.mark.parametrize("knobs", [{}, {"dc_lambda": 0.5}])
def test_delay_compensation(knobs):
    grad, now, read = noise(99, 0), noise(99, 1), noise(99, 2)
    lam = knobs.get("dc_lambda", 0.04)
    g, gap = grad.astype(float), now.astype(float) - read
    got = turned(make("delay-compensated", 99, **knobs), grad, now, read)
    np.testing.assert_allclose(got, g + lam * g * g * gap, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("knobs", [{}, {"dc_lambda": 0.5}])
def test_adaptive_delay_compensation(knobs):
    rate = make("delay-compensated", 99, adaptive=True, **knobs)
    lam0, mean_square = knobs.get("dc_lambda", 2.0), np.zeros(99)
    for i in range(6):
        grad, now, read = noise(99, i), noise(99, i + 100), noise(99, i + 200)
        g, gap = grad.astype(float), now.astype(float) - read
        mean_square = 0.95 * mean_square + 0.05 * g * g
        lam = lam0 / np.sqrt(mean_square + 1e-7)
        got = turned(rate, grad, now, read)
        np.testing.assert_allclose(got, g + lam * g * g * gap, rtol=1e-5, atol=1e-5)


def test_gap_awareness():
    rate, mean_square = make("gap-aware", 99), np.zeros(99)
    theta = noise(99, 0)
    for t in range(1, 6):
        lr, before = 0.05 * t, theta
        theta = (before - lr * noise(99, t)).astype(np.float32)
        observe(rate, before, theta, lr)
        step = (before.astype(float) - theta) / lr
        mean_square = 0.999 * mean_square + 0.001 * step * step
        unit = MAX_LR * (np.sqrt(mean_square / (1 - 0.999**t)) + 1e-8)
        grad, read = noise(99, t + 50), noise(99, t + 80)
        gap = np.abs(theta.astype(float) - read)
        np.testing.assert_allclose(
            turned(rate, grad, theta, read), grad / (1 + gap / unit), rtol=1e-4
        )


def test_a_gap_of_one_large_step_halves_a_gradient():
    rate = make("gap-aware", 3)
    theta = np.zeros(3, np.float32)
    after = np.array([-0.1, 0.2, 0.3], np.float32)  # steps of 1, 2, 3 at unit rate
    observe(rate, theta, after, 0.1)
    now = MAX_LR * np.array([1, -2, 3], np.float32)
    got = turned(rate, np.full(3, 8, np.float32), now, theta)
    np.testing.assert_allclose(got, 4, rtol=1e-5)


def test_a_parameter_that_never_moved_keeps_its_gradient():
    rate, theta = make("gap-aware", 2), np.ones(2, np.float32)
    observe(rate, theta, np.array([1, 0], np.float32), 0.1)
    grad = np.array([5, 5], np.float32)
    got = turned(rate, grad, np.array([1, 0], np.float32), theta)
    assert got[0] == 5
    assert got[1] < 5


def test_gap_awareness_counts_updates_and_not_blocks():
    n = 2 * BLOCK + 5
    large, small = make("gap-aware", n), make("gap-aware", 1)
    theta, one = np.zeros(n, np.float32), np.zeros(1, np.float32)
    for _ in range(2):
        observe(large, theta, theta - 1, 0.1)
        observe(small, one, one - 1, 0.1)
    got = turned(large, theta + 1, theta + 1, theta)
    np.testing.assert_array_equal(got, turned(small, one + 1, one + 1, one)[0])


@pytest.mark.parametrize("lr", [0.0, 1e-5])
def test_gap_awareness_passes_over_updates_with_next_to_no_rate(lr):
    plain, warmed = make("gap-aware", 5), make("gap-aware", 5)
    theta, grad = noise(5, 0), noise(5, 1)
    observe(warmed, theta, theta - np.float32(lr), lr)
    np.testing.assert_array_equal(turned(warmed, grad, theta - 1, theta), grad)
    for rate in (plain, warmed):
        observe(rate, theta, theta - 1, 0.1)
    got = [turned(rate, grad, theta - 1, theta) for rate in (plain, warmed)]
    np.testing.assert_array_equal(*got)
    assert (got[0] != grad).all()


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("delay-compensated", {"dc_lambda": 0.0}),
        ("delay-compensated", {"dc_lambda": 0.0, "adaptive": True}),
        ("gap-aware", {"max_lr": math.inf}),  # C = ∞
    ],
)
def test_settings_that_leave_every_bit_as_it_is(name, knobs):
    n = BLOCK + 5
    rate = make(name, n, **knobs)
    grad, now, read = noise(n, 0), noise(n, 1), noise(n, 2)
    grad[:3] = [0.0, -0.0, 1e-40]
    observe(rate, read, now, 0.1)
    assert turned(rate, grad, now, read).tobytes() == grad.tobytes()
    assert rate.scale(7) == 1.0


@pytest.mark.parametrize("name", STALENESS_RATES)
def test_parameters_that_did_not_move_leave_the_gradient(name):
    rate, theta = make(name, 40), noise(40, 0)
    grad = noise(40, 1)
    np.testing.assert_array_equal(turned(rate, grad, theta, theta), grad)


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("adaptive", [False, True])
def test_shards_of_any_cut_give_the_bits_of_one(name, adaptive):
    knobs = {"adaptive": adaptive} if name == "delay-compensated" else {}
    n, spans = 1001, even_spans(1001, 3)
    whole, parts = make(name, n, **knobs), [make(name, span.size, **knobs) for span in spans]
    for i in range(3):
        grad, now, read = noise(n, i), noise(n, i + 10), noise(n, i + 20)
        want = turned(whole, grad, now, read)
        cut = [
            turned(part, span.of(grad), span.of(now), span.of(read))
            for part, span in zip(parts, spans, strict=True)
        ]
        np.testing.assert_array_equal(np.concatenate(cut), want)
        observe(whole, read, now, 0.1)
        for part, span in zip(parts, spans, strict=True):
            observe(part, span.of(read), span.of(now), 0.1)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_in_place_is_out_of_place_which_reads_only(name):
    rate = make(name, 50)
    observe(rate, noise(50, 5), noise(50, 6), 0.1)
    grad, now, read = noise(50, 0), noise(50, 1), noise(50, 2)
    for array in (grad, now, read):
        array.flags.writeable = False
    want, inside = turned(rate, grad, now, read), grad.copy()
    rate.block(Span(0, 50), inside, now, read, inside)
    np.testing.assert_array_equal(inside, want)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_blocks_allocate_no_array_and_warn_nobody(name):
    n = BLOCK
    knobs = {"adaptive": True} if name == "delay-compensated" else {}
    rate, out = make(name, n, **knobs), np.empty(n, np.float32)
    grad, now, read = noise(n, 0, 5e37), noise(n, 1, 5e37), noise(n, 2, 5e37)
    grad[0] = np.inf
    span = Span(0, n)
    tracemalloc.start()
    try:
        rate.block(span, grad, now, read, out)
        rate.observe(span, read, now, 0.1)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        rate.block(span, grad, now, read, out)
        rate.observe(span, read, now, 0.1)
        growth = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert growth < 4096


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("linear", {}, "unknown staleness rate 'linear', expected one of constant, inverse"),
        ("inverse", {"power": 1.0}, "inverse takes no power"),
        ("constant", {"adaptive": True}, "constant takes no adaptive"),
        ("drop", {}, "drop needs limit"),
        ("drop", {"limit": -1}, "limit -1"),
        ("power", {"power": -0.5}, "power -0.5"),
        ("exponential", {"decay": math.nan}, "decay nan"),
        ("mean-inverse", {"window": 0}, "last 0 gradients"),
        ("delay-compensated", {"dc_lambda": -1.0}, "strength -1.0"),
        ("gap-aware", {}, "gap-aware needs max_lr"),
        ("gap-aware", {"max_lr": 0.0}, "peak rate of 0.0"),
    ],
)
def test_knobs_that_cannot_be(name, knobs, message):
    with pytest.raises(ConfigError, match=message):
        make_staleness_rate(name, 3, **knobs)
