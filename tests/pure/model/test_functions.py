"""Activations and losses against their formulas in float64; slopes by finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.model import ACTIVATIONS, LOSSES
from psrt.model.workspace import Workspace
from support.cases import each

FORMULAS = {
    "relu": lambda z: max(z, 0.0),
    "tanh": math.tanh,
    "gelu": lambda z: 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
}
POINTS = np.array([-30, -6, -3, -1.5, -0.75, -0.1, 0.1, 0.5, 1, 2, 4.5, 30], np.float32)

#: That of all tests: it serves many shapes, one after the other.
SPACE = Workspace()

every_activation = each("name", ACTIVATIONS)
every_loss = each("name", LOSSES)


def slope(formula, z, h=1e-6):
    return (formula(z + h) - formula(z - h)) / (2 * h)


def forward_backward(name, z, delta=1.0):
    """Return the values, and the delta times the slopes."""
    activation, space = ACTIVATIONS[name], SPACE
    values, saved = z.copy(), np.full_like(z, np.nan)
    delta = np.full_like(z, 1) * np.float32(delta)
    activation.forward(values, saved, space)
    assert np.isnan(z).any() or np.isnan(saved).all() != activation.saves
    kept = values.copy()
    space.scratch(*z.shape).fill(np.nan)
    activation.backward(values, saved, delta, space)
    np.testing.assert_array_equal(values, kept)  # the next layer's input
    assert not space.zeros(*z.shape).any()
    return kept, delta


@every_activation
def test_values_and_slopes(name):
    values, slopes = forward_backward(name, POINTS[None])
    wide, formula = POINTS.astype(float), FORMULAS[name]
    np.testing.assert_allclose(values[0], [formula(z) for z in wide], rtol=2e-6, atol=2e-7)
    due = [slope(formula, z) for z in wide]
    np.testing.assert_allclose(slopes[0], due, rtol=2e-5, atol=2e-6)
    if name == "gelu":  # which is near the one that is no approximation
        exact = [z * 0.5 * (1 + math.erf(z / math.sqrt(2))) for z in wide]
        np.testing.assert_allclose(values[0], exact, atol=1e-3)
    if name == "relu":
        assert not forward_backward(name, np.zeros((1, 3), np.float32))[1].any()


@every_activation
def test_backward_multiplies_the_delta_and_nan_stays_nan(name):
    z = np.tile(POINTS, (3, 1))
    delta = np.arange(z.size, dtype=np.float32).reshape(z.shape) - 7
    _, slopes = forward_backward(name, z)
    np.testing.assert_allclose(forward_backward(name, z, delta)[1], slopes * delta, rtol=1e-6)
    assert np.isnan(forward_backward(name, np.full((1, 40), np.nan, np.float32))[0]).all()


# --- losses -------------------------------------------------------------------------------------

ROWS, WIDTH = 5, 4
LABELS = np.array([3, 0, 1, 1, 2])
TARGETS = np.random.default_rng(2).standard_normal((ROWS, WIDTH)).astype(np.float32)


def cross_entropy(z, y):
    return np.mean([math.log(sum(np.exp(row))) - row[k] for row, k in zip(z, y, strict=True)])


def squared(z, y):
    t = np.eye(z.shape[1])[y] if y.dtype.kind == "i" else y
    return np.mean([0.5 * sum((row - goal) ** 2) for row, goal in zip(z, t, strict=True)])


def outputs(rows=ROWS):
    return (2 * np.random.default_rng(1).standard_normal((rows, WIDTH))).astype(np.float32)


@each(
    ("name", "formula", "targets"),
    [
        ("cross-entropy", cross_entropy, LABELS),
        ("squared", squared, LABELS),
        ("squared", squared, TARGETS),
    ],
)
def test_value_and_gradient_whole_and_in_parts(name, formula, targets):
    loss = LOSSES[name](ROWS, WIDTH)
    for rows in (ROWS, 1, 2, ROWS):
        z, y = outputs(rows), targets[:rows]
        wide = z.astype(float)
        assert loss(z, y) == pytest.approx(formula(wide, y), rel=1e-6)
        due = np.zeros_like(wide)
        for at in np.ndindex(*wide.shape):
            d = np.zeros_like(wide)
            d[at] = 1e-6
            due[at] = (formula(wide + d, y) - formula(wide - d, y)) / 2e-6
        np.testing.assert_allclose(z, due, atol=1e-6)
    parts = [outputs()[:3], outputs()[3:]]
    sums = [loss(it, t, ROWS) for it, t in zip(parts, (targets[:3], targets[3:]), strict=True)]
    assert sum(sums) == pytest.approx(formula(outputs().astype(float), targets), rel=1e-6)
    np.testing.assert_array_equal(np.concatenate(parts), z)


def test_cross_entropy_of_huge_outputs_is_exact():
    z = np.array([[1000, 0, -1000, 5]], np.float32)
    assert LOSSES["cross-entropy"](1, WIDTH)(z, np.array([1])) == 1000
    np.testing.assert_array_equal(z, [[1, -1, 0, 0]])


@every_loss
@each("kind", ["i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "u1", ">u2", "<u4", "u8", "apart"])
def test_any_integer_labels(name, kind):
    labels = np.repeat(LABELS, 2)[::2] if kind == "apart" else LABELS.astype(kind)
    got, want = outputs(), outputs()
    assert LOSSES[name](ROWS, WIDTH)(got, labels) == LOSSES[name](ROWS, WIDTH)(want, LABELS)
    np.testing.assert_array_equal(got, want)


@each(
    ("name", "targets", "message"),
    [
        *(
            (name, np.array([0, 1, 2, 3, label], kind), f"model of {WIDTH} classes")
            for name in LOSSES
            for label, kind in ((-1, ">i2"), (WIDTH, "i1"), (WIDTH, "u8"), (2**40, ">i8"))
        ),
        ("cross-entropy", TARGETS, "expected class labels"),
        ("cross-entropy", LABELS[:, None], "expected class labels"),
        ("cross-entropy", LABELS.astype(float), "expected class labels"),
        ("squared", TARGETS[:, :2], "expected"),
        ("squared", TARGETS[:, 0], "expected"),
    ],
)
def test_targets_that_do_not_fit(name, targets, message):
    with pytest.raises(ConfigError, match=message):
        LOSSES[name](ROWS, WIDTH)(outputs(), targets)
