"""The MLP against one in float64, whose gradient is found by finite differences."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.model import MLP
from support.cases import each
from support.chains import in_float64
from support.chains import problem as problem_of

ACTIVATIONS = ["relu", "tanh", "gelu"]
LOSSES = ["cross-entropy", "squared"]
every_kind = each(("activation", "loss"), [(a, loss) for a in ACTIVATIONS for loss in LOSSES])


def problem(sizes=(5, 4, 3), rows=8, *, activation="relu", loss="cross-entropy", room=0, seed=0):
    """Return a model for some rows more, its parameters and a batch."""
    _, theta, x, y = problem_of(sizes, rows, activation=activation, loss=loss, seed=seed)
    model = MLP(sizes, activation=activation, loss=loss, batch_size=rows + room)
    return model, theta, x, y


def gradient_of(model, theta, x, y, *ready):
    out = np.full(model.n, np.nan, np.float32)
    return model.loss_and_grad(theta, x, y, out, *ready), out


@every_kind
@each(("sizes", "rows"), [([5, 3], 1), ([5, 4, 3], 7), ([5, 6, 4, 3], 3)])
def test_loss_and_every_element_of_the_gradient(sizes, activation, loss, rows):
    model, theta, x, y = problem(sizes, rows, activation=activation, loss=loss, room=7 - rows)
    got_loss, got = gradient_of(model, theta, x, y)

    def value(params):
        return in_float64(sizes, params, x, y, activation=activation, loss=loss)[0]

    wide, h = theta.astype(float), 1e-6
    assert got_loss == pytest.approx(value(wide), rel=1e-5)
    want = [(value(wide + d) - value(wide - d)) / (2 * h) for d in h * np.eye(model.n)]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@each("activation", ACTIVATIONS)
def test_evaluate_is_the_loss_over_all_rows_in_blocks(activation):
    sizes = [5, 6, 3]
    _, theta, x, y = problem(sizes, 11)
    loss, accuracy = MLP(sizes, activation=activation, batch_size=4).evaluate(theta, x, y)
    want, _, outputs = in_float64(sizes, theta, x, y, activation=activation)
    assert loss == pytest.approx(want, rel=1e-5)
    assert accuracy == np.mean(outputs.argmax(axis=1) == y)
    targets = np.random.default_rng(5).standard_normal((11, 3)).astype(np.float32)
    model = MLP(sizes, activation=activation, loss="squared", batch_size=4)
    want, *_ = in_float64(sizes, theta, x, targets, activation=activation, loss="squared")
    assert model.evaluate(theta, x, targets) == (pytest.approx(want, rel=1e-5), None)


def test_no_rows_have_no_loss_no_gradient_and_make_nothing_ready():
    model, theta, x, y = problem()
    said = []
    loss, got = gradient_of(model, theta, x[:0], y[:0], said.append)
    assert (loss, said) == (0, [])
    np.testing.assert_array_equal(got, 0)
    assert all(map(math.isnan, model.evaluate(theta, x[:0], y[:0])))


def test_vectors_and_evaluations_in_turn_change_no_bit():
    model, theta, x, y = problem(activation="gelu")
    _, first, *batch = problem(seed=1)
    want = [gradient_of(problem(activation="gelu")[0], it, x, y) for it in (theta, first)]
    for _ in range(2):
        for vector, (loss, grad) in zip((theta, first), want, strict=True):
            got_loss, got = gradient_of(model, vector, x, y)
            assert got_loss == loss
            np.testing.assert_array_equal(got, grad)
            model.evaluate(first, *batch)
    theta *= 2  # what is changed in place is seen
    assert gradient_of(model, theta, x, y)[0] != want[0][0]


@every_kind
@each("value", [np.nan, np.inf, 1e30])
def test_divergence_shows_in_the_loss_and_warns_nobody(activation, loss, value):
    model, theta, x, y = problem(activation=activation, loss=loss)
    theta[:] = value
    theta[:20] *= np.float32(-1) ** np.arange(20)
    x[:, 0] = 1e10
    found, (evaluated, _) = gradient_of(model, theta, x, y)[0], model.evaluate(theta, x, y)
    if value == 1e30 and (activation, loss) == ("tanh", "cross-entropy"):
        # Three outputs that are all 5e30: a loss of log 3 is no divergence.
        assert found == pytest.approx(math.log(3))
    else:
        assert not math.isfinite(found)
        assert not math.isfinite(evaluated)


@every_kind
def test_a_step_allocates_no_array(activation, loss):
    sizes = [256, 512, 128, 10]  # 128 KiB of values in the first layer, 784 KiB of parameters
    model, theta, x, y = problem(sizes, 33, activation=activation, loss=loss, room=31)
    out = np.empty(model.n, np.float32)
    ready = [None, None, None].__getitem__  # takes a layer's number and makes nothing
    model.loss_and_grad(theta, x, y, out, ready)
    tracemalloc.start()
    try:
        model.loss_and_grad(theta, x, y, out, ready)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(3):
            model.loss_and_grad(theta, x, y, out, ready)
        growth = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert growth < 8192


def test_tensors_are_named_views_and_spans_are_layers_from_the_last_on():
    model = MLP([5, 4, 3], batch_size=1)
    theta = np.arange(model.n, dtype=np.float32)
    tensors = model.tensors(theta)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "layers.0.weight": (5, 4),
        "layers.0.bias": (4,),
        "layers.1.weight": (4, 3),
        "layers.1.bias": (3,),
    }
    joined = np.concatenate([tensor.reshape(-1) for tensor in tensors.values()])
    np.testing.assert_array_equal(joined, theta)
    assert model.gradient_spans() == ((24, 39), (0, 24))
    tensors["layers.1.bias"][:] = 7
    np.testing.assert_array_equal(theta[-3:], 7)


@each(("activation", "variance"), [("relu", 2 / 400), ("gelu", 2 / 400), ("tanh", 2 / (400 + 300))])
def test_initial_parameters_have_the_published_variance(activation, variance):
    model = MLP([400, 300, 5], activation=activation, batch_size=1)
    first, again, other = (model.initial(np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    tensors = model.tensors(first)
    weight = tensors["layers.0.weight"]
    assert np.var(weight) == pytest.approx(variance, rel=0.02)
    assert abs(np.mean(weight)) < 0.02 * math.sqrt(variance)
    np.testing.assert_array_equal(tensors["layers.0.bias"], 0)
    # A uniform distribution ends at √3 standard deviations, a normal one has a tail.
    widest = np.abs(weight).max() / math.sqrt(variance)
    assert widest <= 1.7321 if activation == "tanh" else widest > 3.5


@each(
    ("x", "rows", "vector", "message"),
    [
        (np.zeros((2, 5)), 2, None, "expected float32 rows of 5"),
        (np.zeros((2, 5), np.float32), 3, None, "3 targets"),
        (np.zeros((9, 5), np.float32), 9, None, "a batch of 9 rows for a model made for 8"),
        (np.zeros((2, 5), np.float32), 2, np.zeros(36, np.float32)[::2], "18 contiguous float32"),
        (np.zeros((2, 5), np.float32), 2, np.zeros(18), "18 contiguous float32"),
    ],
)
def test_what_does_not_fit(x, rows, vector, message):

    model, theta, *_ = problem([5, 3])
    out = np.zeros(18, np.float32) if vector is None else vector
    with pytest.raises(ConfigError, match=message):
        model.loss_and_grad(theta, x, np.zeros(rows, int), out)
