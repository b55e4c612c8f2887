"""Optimizers against their published formulas, written out here in float64."""

import math
import tracemalloc

import numpy as np
import pytest

from psrt.errors import ConfigError
from psrt.optim import BLOCK, OPTIMIZERS, make_optimizer, step
from psrt.partition import even_spans

STEPS = 12
RATES = [0.1, 0.05, 0.2, 0.01] * 3
MU, BETA1, BETA2, EPSILON = 0.8, 0.7, 0.95, 1e-3


def sgd(theta, gradients, decay):
    for g, lr in zip(gradients, RATES, strict=True):
        theta = theta - lr * (g(theta) + decay * theta)
    return theta


def momentum(theta, gradients, decay):
    v = 0
    for g, lr in zip(gradients, RATES, strict=True):
        v = MU * v + g(theta) + decay * theta
        theta = theta - lr * v
    return theta


def nesterov(theta, gradients, decay):
    v = 0
    for g, lr in zip(gradients, RATES, strict=True):
        grad = g(theta) + decay * theta
        v = MU * v + grad
        theta = theta - lr * (grad + MU * v)
    return theta


def adagrad(theta, gradients, decay):
    s = 0
    for g, lr in zip(gradients, RATES, strict=True):
        grad = g(theta) + decay * theta
        s = s + grad**2
        theta = theta - lr * grad / (np.sqrt(s) + EPSILON)
    return theta


def adam(theta, gradients, decay, decoupled=False):
    m, v = 0, 0
    for t, (g, lr) in enumerate(zip(gradients, RATES, strict=True), start=1):
        grad = g(theta) + (0 if decoupled else decay * theta)
        m = BETA1 * m + (1 - BETA1) * grad
        v = BETA2 * v + (1 - BETA2) * grad**2
        m_hat, v_hat = m / (1 - BETA1**t), v / (1 - BETA2**t)
        if decoupled:
            theta = theta - lr * decay * theta
        theta = theta - lr * m_hat / (np.sqrt(v_hat) + EPSILON)
    return theta


def adamw(theta, gradients, decay):
    return adam(theta, gradients, decay, decoupled=True)


def sign_sgd(theta, gradients, decay):
    for g, lr in zip(gradients, RATES, strict=True):
        theta = theta * (1 - lr * decay) - lr * np.sign(g(theta))
    return theta


FORMULAS = {
    "sgd": sgd,
    "momentum": momentum,
    "nesterov": nesterov,
    "adagrad": adagrad,
    "adam": adam,
    "adamw": adamw,
    "sign-sgd": sign_sgd,
    "demo": sign_sgd,
}
KNOBS = {
    "momentum": {"momentum": MU},
    "nesterov": {"momentum": MU},
    "adagrad": {"epsilon": EPSILON},
    "adam": {"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON},
    "adamw": {"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON},
}

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_decay = pytest.mark.parametrize("decay", [0.0, 0.3])


def make(name, n, decay=0.0):
    return make_optimizer(name, n, weight_decay=decay, **KNOBS.get(name, {}))


def noise(n, seed):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def run(name, n, decay=0.0, steps=STEPS):
    """Parameters after some steps on gradients that do not depend on them."""
    optimizer, theta = make(name, n, decay), noise(n, 0)
    for i in range(steps):
        step(optimizer, theta, noise(n, i + 1), theta, RATES[i])
    return theta, optimizer


def test_every_optimizer_has_a_formula_here():
    assert set(OPTIMIZERS) == set(FORMULAS)


@every_optimizer
@every_decay
def test_published_formula(name, decay):
    n, curvature = 50, np.linspace(0.1, 3, 50)
    theta, optimizer = noise(n, 0), make(name, n, decay)
    start = theta.astype(float)
    for lr in RATES:
        grad = (curvature * theta - 1).astype(np.float32)
        step(optimizer, theta, grad, theta, lr)
    want = FORMULAS[name](start, [lambda theta: curvature * theta - 1] * STEPS, decay)
    np.testing.assert_allclose(theta, want, rtol=2e-5, atol=2e-6)
    assert optimizer.updates == STEPS


def test_sgd_to_the_bit():
    theta, grad = noise(1000, 0), noise(1000, 1)
    out = np.empty_like(theta)
    step(make("sgd", 1000), theta, grad, out, 0.1)
    np.testing.assert_array_equal(out, theta - grad * np.float32(0.1))


@every_optimizer
@every_decay
@pytest.mark.parametrize("shards", [2, 3, 7])
def test_shards_of_any_cut_give_the_bits_of_one(name, decay, shards):
    n = 2 * BLOCK + 17
    want, _ = run(name, n, decay, steps=3)
    theta = noise(n, 0)
    parts = [(span, make(name, span.size, decay)) for span in even_spans(n, shards)]
    for i in range(3):
        grad = noise(n, i + 1)
        for span, optimizer in parts:
            step(optimizer, span.of(theta), span.of(grad), span.of(theta), RATES[i])
    np.testing.assert_array_equal(theta, want)


@every_optimizer
@every_decay
def test_blocks_of_any_cut_and_order_give_the_bits_of_one(name, decay):
    n = 1000
    want, _ = run(name, n, decay, steps=3)
    theta, optimizer = noise(n, 0), make(name, n, decay)
    for i in range(3):
        grad = noise(n, i + 1)
        optimizer.begin(RATES[i])
        for span in reversed(even_spans(n, 7 + i)):
            optimizer.update(span, span.of(theta), span.of(grad), span.of(theta))
    np.testing.assert_array_equal(theta, want)


@every_optimizer
@every_decay
def test_out_of_place_is_in_place_and_reads_only(name, decay):
    n = BLOCK + 3
    want, _ = run(name, n, decay, steps=2)
    theta, optimizer = noise(n, 0), make(name, n, decay)
    for i in range(2):
        grad, out = noise(n, i + 1), np.full(n, np.nan, np.float32)
        theta.flags.writeable = grad.flags.writeable = False
        step(optimizer, theta, grad, out, RATES[i])
        theta = out
    np.testing.assert_array_equal(theta, want)


@every_optimizer
@every_decay
def test_state_and_updates_are_all_there_is_to_keep(name, decay):
    want, _ = run(name, 100, decay, steps=6)
    theta, stopped = run(name, 100, decay, steps=3)
    resumed = make(name, 100, decay)
    assert set(resumed.state) == set(stopped.state)
    for key, array in stopped.state.items():
        assert array.dtype == np.float32
        assert array.shape == (100,)
        resumed.state[key][:] = array
    resumed.updates = stopped.updates
    for i in range(3, 6):
        step(resumed, theta, noise(100, i + 1), theta, RATES[i])
    np.testing.assert_array_equal(theta, want)


@every_optimizer
@every_decay
def test_a_step_allocates_no_array(name, decay):
    n = 3 * BLOCK
    optimizer, theta, grad = make(name, n, decay), noise(n, 0), noise(n, 1)
    step(optimizer, theta, grad, theta, 0.1)
    tracemalloc.start()
    try:
        step(optimizer, theta, grad, theta, 0.1)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        step(optimizer, theta, grad, theta, 0.1)
        growth = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert growth < 4096


@every_optimizer
@every_decay
def test_a_diverged_gradient_warns_nobody(name, decay):
    optimizer = make(name, 3, decay)
    theta = np.full(3, 1e38, np.float32)
    for _ in range(3):
        step(optimizer, theta, np.array([np.nan, np.inf, -3e38], np.float32), theta, 1e3)
    assert np.isnan(theta[0])


@every_optimizer
@every_decay
@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_an_infinite_gradient_does_not_go_on_in_silence(name, decay, infinite):
    """Its sign is as good as any, but nothing that diverges may end with numbers."""
    theta, small = np.ones(2 * BLOCK, np.float32), np.full(2 * BLOCK, 1e30, np.float32)
    small[BLOCK + 3] = infinite
    step(make(name, theta.size, decay), theta, small, theta, 1e-3)
    assert np.flatnonzero(~np.isfinite(theta)).tolist() == [BLOCK + 3]


def test_the_first_step_of_adam_is_the_rate():
    theta = np.zeros(3, np.float32)
    step(make_optimizer("adam", 3), theta, np.array([1e-3, -5, 100], np.float32), theta, 0.1)
    np.testing.assert_allclose(theta, [-0.1, 0.1, -0.1], rtol=1e-4)


def test_defaults_of_the_knobs():
    given = make_optimizer("adam", 3, beta1=0.9, beta2=0.999, epsilon=1e-8)
    implied = make_optimizer("adam", 3)
    thetas = [np.ones(3, np.float32), np.ones(3, np.float32)]
    for optimizer, theta in zip((given, implied), thetas, strict=True):
        for i in range(5):
            step(optimizer, theta, noise(3, i), theta, 0.1)
    np.testing.assert_array_equal(*thetas)
    theta = np.zeros(1, np.float32)
    heavy = make_optimizer("momentum", 1)
    for _ in range(2):
        step(heavy, theta, np.ones(1, np.float32), theta, 1.0)
    assert theta[0] == pytest.approx(-(1 + 1.9))


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("lion", {}, "unknown optimizer 'lion', expected one of sgd, momentum"),
        ("sgd", {"momentum": 0.9}, "sgd takes no momentum"),
        ("adagrad", {"beta1": 0.9}, "adagrad takes no beta1"),
        ("momentum", {"momentum": 1.0}, "momentum 1.0"),
        ("momentum", {"momentum": -0.1}, "momentum -0.1"),
        ("adam", {"beta2": math.nan}, "beta2 nan"),
        ("adam", {"epsilon": 0.0}, "epsilon 0.0"),
        ("sgd", {"weight_decay": -1.0}, "weight decay -1.0"),
    ],
)
def test_knobs_that_cannot_be(name, knobs, message):
    with pytest.raises(ConfigError, match=message):
        make_optimizer(name, 3, **knobs)
