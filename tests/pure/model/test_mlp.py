"""The MLP against a float64 model written here, its gradient against finite differences."""

import math
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from psrt.errors import ConfigError
from psrt.model import MLP

ACTIVATION = {
    "relu": lambda z: np.maximum(z, 0),
    "tanh": np.tanh,
    "gelu": lambda z: 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
}
SIZES = [[5, 3], [5, 4, 3], [5, 6, 4, 3]]

every_shape = pytest.mark.parametrize("sizes", SIZES, ids=str)
every_activation = pytest.mark.parametrize("activation", ACTIVATION)
every_loss = pytest.mark.parametrize("loss", ["cross-entropy", "squared"])


def reference_outputs(sizes, activation, theta, x):
    """Outputs in the precision of ``theta``, with the layout of the flat vector spelled out."""
    h, at = x, 0
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        weight = theta[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
        at += fan_in * fan_out
        h = h @ weight + theta[at : at + fan_out]
        at += fan_out
        if i < len(sizes) - 2:
            h = ACTIVATION[activation](h)
    assert at == theta.size
    return h


def reference_loss(sizes, activation, loss, theta, x, y):
    z = reference_outputs(sizes, activation, theta, x)
    picked = z[np.arange(len(y)), y] if y.ndim == 1 else None
    if loss == "cross-entropy":
        return float(np.mean(np.log(np.exp(z).sum(axis=1)) - picked))
    targets = np.eye(sizes[-1])[y] if y.ndim == 1 else y
    return float(0.5 * np.mean(((z - targets) ** 2).sum(axis=1)))


def problem(sizes, rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, sizes[0])).astype(np.float32)
    return x, rng.integers(0, sizes[-1], rows)


def parameters(model, seed=3):
    """Parameters with biases that are not zero, so that nothing about them goes unseen."""
    rng = np.random.default_rng(seed)
    return model.initial(rng) + rng.normal(0, 0.1, model.n).astype(np.float32)


def gradient_of(model, theta, x, y):
    out = np.full(model.n, np.nan, np.float32)
    return model.loss_and_grad(theta, x, y, out), out


@every_shape
@every_activation
@every_loss
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_loss_and_every_element_of_the_gradient(sizes, activation, loss, rows):
    model = MLP(sizes, activation=activation, loss=loss, batch_size=7)
    theta, (x, y) = parameters(model), problem(sizes, rows)
    got_loss, got = gradient_of(model, theta, x, y)

    wide, wide_x, h = theta.astype(float), x.astype(float), 1e-6
    want = np.empty(model.n)
    for i in range(model.n):
        ends = []
        for sign in (1, -1):
            moved = wide.copy()
            moved[i] += sign * h
            ends.append(reference_loss(sizes, activation, loss, moved, wide_x, y))
        want[i] = (ends[0] - ends[1]) / (2 * h)
    assert got_loss == pytest.approx(
        reference_loss(sizes, activation, loss, wide, wide_x, y), rel=1e-5
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_squared_loss_of_real_targets():
    model = MLP([5, 4, 3], activation="tanh", loss="squared", batch_size=7)
    theta, (x, _) = parameters(model), problem([5, 4, 3], 6)
    y = np.random.default_rng(5).standard_normal((6, 3)).astype(np.float32)
    want = reference_loss([5, 4, 3], "tanh", "squared", theta.astype(float), x.astype(float), y)
    assert gradient_of(model, theta, x, y)[0] == pytest.approx(want, rel=1e-5)
    loss, accuracy = model.evaluate(theta, x, y)
    assert loss == pytest.approx(want, rel=1e-5)
    assert accuracy is None


@every_loss
def test_gradient_is_that_of_the_mean(loss):
    model = MLP([5, 4, 3], loss=loss, batch_size=8)
    theta, (x, y) = parameters(model), problem([5, 4, 3], 8)
    whole = gradient_of(model, theta, x, y)[1]
    parts = [gradient_of(model, theta, x[i : i + 2], y[i : i + 2])[1] for i in range(0, 8, 2)]
    np.testing.assert_allclose(np.mean(parts, axis=0), whole, rtol=1e-5, atol=1e-7)


def test_an_empty_batch_adds_nothing():
    model = MLP([5, 4, 3], batch_size=8)
    x, y = problem([5, 4, 3], 0)
    loss, got = gradient_of(model, parameters(model), x, y)
    assert loss == 0
    np.testing.assert_array_equal(got, 0)


@every_activation
def test_evaluate_is_the_loss_over_all_rows_in_blocks(activation):
    sizes = [5, 6, 3]
    model = MLP(sizes, activation=activation, batch_size=4)
    theta, (x, y) = parameters(model), problem(sizes, 11)
    loss, accuracy = model.evaluate(theta, x, y)
    z = reference_outputs(sizes, activation, theta.astype(float), x.astype(float))
    want = reference_loss(sizes, activation, "cross-entropy", theta.astype(float), x, y)
    assert loss == pytest.approx(want, rel=1e-5)
    assert accuracy == np.mean(z.argmax(axis=1) == y)


def test_evaluate_of_no_rows_is_nan():
    model = MLP([5, 3], batch_size=4)
    loss, accuracy = model.evaluate(parameters(model), *problem([5, 3], 0))
    assert math.isnan(loss)
    assert math.isnan(accuracy)


def test_evaluate_between_steps_changes_no_bit():
    model = MLP([5, 4, 3], activation="gelu", batch_size=8)
    theta, (x, y) = parameters(model), problem([5, 4, 3], 8)
    _, want = gradient_of(model, theta, x, y)
    model.evaluate(theta, *problem([5, 4, 3], 11, seed=9))
    _, got = gradient_of(model, theta, x, y)
    np.testing.assert_array_equal(got, want)


def test_alternating_vectors_are_not_mixed_up():
    model = MLP([5, 4, 3], batch_size=8)
    x, y = problem([5, 4, 3], 8)
    thetas = [parameters(model, seed) for seed in range(3)]
    want = [gradient_of(MLP([5, 4, 3], batch_size=8), theta, x, y) for theta in thetas]
    for _ in range(2):
        for theta, (loss, grad) in zip(thetas, want, strict=True):
            got_loss, got = gradient_of(model, theta, x, y)
            assert got_loss == loss
            np.testing.assert_array_equal(got, grad)


def test_parameters_changed_in_place_are_seen():
    model = MLP([5, 4, 3], batch_size=8)
    theta, (x, y) = parameters(model), problem([5, 4, 3], 8)
    first, _ = gradient_of(model, theta, x, y)
    theta *= 2
    assert gradient_of(model, theta, x, y)[0] != first


@every_activation
@every_loss
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_divergence_shows_in_the_loss_and_warns_nobody(activation, loss, value):
    model = MLP([5, 4, 3], activation=activation, loss=loss, batch_size=8)
    theta, (x, y) = np.full(model.n, value, np.float32), problem([5, 4, 3], 8)
    theta[:20] *= np.float32(-1) ** np.arange(20)
    x[:, 0] = 1e10
    loss_value, _ = gradient_of(model, theta, x, y)
    evaluated, _ = model.evaluate(theta, x, y)
    if value == 1e30 and (activation == "tanh" and loss == "cross-entropy"):
        # Three outputs that are all 5e30: a loss of log 3 is no divergence.
        assert loss_value == pytest.approx(math.log(3))
    else:
        assert not math.isfinite(loss_value)
        assert not math.isfinite(evaluated)


@every_activation
@every_loss
@pytest.mark.parametrize("rows", [64, 33])
def test_a_step_allocates_no_array(activation, loss, rows):
    sizes = [256, 512, 128, 10]  # 128 KiB of values in the first layer, 784 KiB of parameters
    model = MLP(sizes, activation=activation, loss=loss, batch_size=64)
    theta, out = parameters(model), np.empty(model.n, np.float32)
    x, y = problem(sizes, rows)
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


@every_shape
@every_activation
@every_loss
def test_a_layer_that_is_ready_is_done_with(sizes, activation, loss):
    """Its gradient is final, and neither it nor its parameters are looked at any more."""
    model = MLP(sizes, activation=activation, loss=loss, batch_size=7)
    theta, (x, y) = parameters(model), problem(sizes, 7)
    expected_loss, expected = gradient_of(model, theta, x, y)
    spans = model.gradient_spans()
    out, got, said = np.empty(model.n, np.float32), np.empty(model.n, np.float32), []

    def ready(i):
        said.append(i)
        span = spans[i]
        span.of(got)[:] = span.of(out)
        span.of(out)[:] = span.of(theta)[:] = np.nan

    assert model.loss_and_grad(theta, x, y, out, ready) == expected_loss
    assert said == list(range(len(sizes) - 1))
    np.testing.assert_array_equal(got, expected)


def test_the_spans_of_a_gradient_are_the_layers_from_the_last_on():
    model = MLP([5, 4, 3, 2], batch_size=1)
    tensors = model.tensors(np.arange(model.n, dtype=np.float32))
    for i, (start, stop) in enumerate(model.gradient_spans()):
        layer = 2 - i
        assert tensors[f"layers.{layer}.weight"][0, 0] == start
        assert tensors[f"layers.{layer}.bias"][-1] == stop - 1


def test_an_empty_batch_makes_nothing_ready():
    model, said = MLP([5, 3], batch_size=4), []
    x, y = problem([5, 3], 0)
    assert model.loss_and_grad(parameters(model), x, y, np.ones(18, np.float32), said.append) == 0
    assert said == []


def test_tensors_are_named_views():
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
    tensors["layers.1.bias"][:] = 7
    np.testing.assert_array_equal(theta[-3:], 7)


@pytest.mark.parametrize(
    ("activation", "variance"),
    [("relu", 2 / 400), ("gelu", 2 / 400), ("tanh", 2 / (400 + 300))],
)
def test_initial_parameters_have_the_published_variance(activation, variance):
    model = MLP([400, 300, 5], activation=activation, batch_size=1)
    tensors = model.tensors(model.initial(np.random.default_rng(0)))
    weight = tensors["layers.0.weight"]
    assert np.var(weight) == pytest.approx(variance, rel=0.02)
    assert abs(np.mean(weight)) < 0.02 * math.sqrt(variance)
    np.testing.assert_array_equal(tensors["layers.0.bias"], 0)
    # A uniform distribution ends at √3 standard deviations, a normal one has a tail.
    widest = np.abs(weight).max() / math.sqrt(variance)
    assert widest <= 1.7321 if activation == "tanh" else widest > 3.5


def test_initial_parameters_are_the_generators():
    model = MLP([5, 4, 3], batch_size=1)
    first, again, other = (model.initial(np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("sizes", [[5], [5, 0, 3], []], ids=str)
def test_sizes_that_are_no_model(sizes):
    with pytest.raises(ConfigError, match="no MLP"):
        MLP(sizes, batch_size=1)


def test_unknown_names():
    with pytest.raises(ConfigError, match="unknown activation 'step', expected one of relu"):
        MLP([5, 3], activation="step", batch_size=1)
    with pytest.raises(ConfigError, match="unknown loss 'hinge', expected one of cross-entropy"):
        MLP([5, 3], loss="hinge", batch_size=1)


@pytest.mark.parametrize(
    ("x", "rows", "message"),
    [
        (np.zeros((2, 4), np.float32), 2, "expected float32 rows of 5"),
        (np.zeros((2, 5)), 2, "expected float32 rows of 5"),
        (np.zeros((2, 5), np.float32), 3, "3 targets"),
        (np.zeros((9, 5), np.float32), 9, "a batch of 9 rows for a model made for 8"),
    ],
)
def test_inputs_that_do_not_fit(x, rows, message):
    model = MLP([5, 3], batch_size=8)
    out = np.empty(model.n, np.float32)
    with pytest.raises(ConfigError, match=message):
        model.loss_and_grad(parameters(model), x, np.zeros(rows, int), out)


@pytest.mark.parametrize(
    "vector", [np.zeros(17, np.float32), np.zeros(18), np.zeros(36, np.float32)[::2]]
)
def test_vectors_that_do_not_fit(vector):
    model = MLP([5, 3], batch_size=8)
    x, y = problem([5, 3], 4)
    with pytest.raises(ConfigError, match="18 contiguous float32 parameters"):
        model.loss_and_grad(parameters(model), x, y, vector)
    with pytest.raises(ConfigError, match="18 contiguous float32 parameters"):
        model.evaluate(vector, x, y)
