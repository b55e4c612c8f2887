"""Losses against their formulas in float64, their gradients against finite differences."""

import math

import numpy as np
import pytest

from psrt.errors import ConfigError
from psrt.model import LOSSES
from support.cases import each

ROWS, WIDTH = 5, 4


def cross_entropy(z, y):
    return float(
        np.mean([math.log(sum(np.exp(row))) - row[k] for row, k in zip(z, y, strict=True)])
    )


def squared(z, y):
    t = np.eye(z.shape[1])[y] if y.dtype.kind == "i" else y
    return float(np.mean([0.5 * sum((row - goal) ** 2) for row, goal in zip(z, t, strict=True)]))


def finite_difference(formula, z, y, h=1e-6):
    gradient = np.zeros_like(z)
    for at in np.ndindex(*z.shape):
        up, down = z.copy(), z.copy()
        up[at] += h
        down[at] -= h
        gradient[at] = (formula(up, y) - formula(down, y)) / (2 * h)
    return gradient


def outputs(rows=ROWS, scale=2.0):
    return (scale * np.random.default_rng(1).standard_normal((rows, WIDTH))).astype(np.float32)


LABELS = np.array([3, 0, 1, 1, 2])
TARGETS = np.random.default_rng(2).standard_normal((ROWS, WIDTH)).astype(np.float32)
CASES = [
    pytest.param("cross-entropy", cross_entropy, LABELS, id="cross-entropy"),
    pytest.param("squared", squared, LABELS, id="squared-labels"),
    pytest.param("squared", squared, TARGETS, id="squared-targets"),
]


@pytest.mark.parametrize(("name", "formula", "targets"), CASES)
@pytest.mark.parametrize("rows", [1, 2, ROWS])
def test_value_and_gradient(name, formula, targets, rows):
    z, y = outputs(rows), targets[:rows]
    wide = z.astype(float)
    loss = LOSSES[name](ROWS, WIDTH)(z, y)
    assert loss == pytest.approx(formula(wide, y), rel=1e-6)
    np.testing.assert_allclose(z, finite_difference(formula, wide, y), atol=1e-6)


@pytest.mark.parametrize(("name", "formula", "targets"), CASES)
def test_parts_of_a_batch_add_up_to_it(name, formula, targets):
    loss, whole = LOSSES[name](ROWS, WIDTH), outputs()
    want = loss(whole, targets)
    parts = [outputs()[:3], outputs()[3:]]
    sums = [loss(z, t, ROWS) for z, t in zip(parts, (targets[:3], targets[3:]), strict=True)]
    assert sum(sums) == pytest.approx(want, rel=1e-6)
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_every_loss_is_tested():
    assert set(LOSSES) == {case.values[0] for case in CASES}


def test_the_same_loss_twice():
    loss = LOSSES["cross-entropy"](ROWS, WIDTH)
    first = loss(outputs(), LABELS)
    loss(outputs(2), LABELS[:2])
    assert loss(outputs(), LABELS) == first


def test_cross_entropy_of_huge_outputs_is_exact():
    z = np.array([[1000, 0, -1000, 5]], np.float32)
    assert LOSSES["cross-entropy"](1, WIDTH)(z, np.array([1])) == 1000
    np.testing.assert_array_equal(z, [[1, -1, 0, 0]])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_any_integer_labels(name, kind, order):
    labels = LABELS.astype(order + kind)
    got, want = outputs(), outputs()
    assert LOSSES[name](ROWS, WIDTH)(got, labels) == LOSSES[name](ROWS, WIDTH)(want, LABELS)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", LOSSES)
def test_labels_that_lie_apart(name):
    labels = np.repeat(LABELS, 2)[::2]
    assert LOSSES[name](ROWS, WIDTH)(outputs(), labels) == LOSSES[name](ROWS, WIDTH)(
        outputs(), LABELS
    )


@pytest.mark.parametrize("name", LOSSES)
@each("kind", ["<i8", ">i8", ">i2", "i1", ">u2", "u8"])
@each("label", [-1, WIDTH, 256, 512, 2**40])
def test_a_label_that_is_no_class(name, label, kind):
    dtype = np.dtype(kind)
    if not np.iinfo(dtype).min <= label <= np.iinfo(dtype).max:
        label = np.iinfo(dtype).max
    with pytest.raises(ConfigError, match=f"model of {WIDTH} classes"):
        LOSSES[name](ROWS, WIDTH)(outputs(2), np.array([0, label], dtype))


@pytest.mark.parametrize(
    ("name", "targets", "message"),
    [
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
