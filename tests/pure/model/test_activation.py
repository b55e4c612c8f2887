"""Activations against their formulas in float64 and their slopes against finite differences."""

import math

import numpy as np
import pytest

from psrt.model import ACTIVATIONS
from psrt.model.workspace import Workspace

FORMULAS = {
    "relu": lambda z: max(z, 0.0),
    "tanh": math.tanh,
    "gelu": lambda z: 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
}
POINTS = np.array([-30, -6, -3, -1.5, -0.75, -0.1, 0.1, 0.5, 1, 2, 4.5, 30], np.float32)

every_activation = pytest.mark.parametrize("name", ACTIVATIONS)


def slope(formula, z, h=1e-6):
    return (formula(z + h) - formula(z - h)) / (2 * h)


def forward_backward(name, z, delta, space=None):
    activation, space = ACTIVATIONS[name], space or Workspace()
    values, saved, delta = z.copy(), np.full_like(z, np.nan), delta.copy()
    activation.forward(values, saved, space)
    kept = values.copy()
    space.scratch(*z.shape).fill(np.nan)
    activation.backward(values, saved, delta, space)
    np.testing.assert_array_equal(values, kept)  # the next layer's input
    assert not space.zeros(*z.shape).any()
    return kept, delta


def test_every_activation_has_a_formula_here():
    assert set(ACTIVATIONS) == set(FORMULAS)


@every_activation
def test_values(name):
    got, _ = forward_backward(name, POINTS[None], np.ones((1, POINTS.size), np.float32))
    want = [FORMULAS[name](z) for z in POINTS.astype(float)]
    np.testing.assert_allclose(got[0], want, rtol=2e-6, atol=2e-7)


@every_activation
def test_slope_is_the_finite_difference(name):
    _, got = forward_backward(name, POINTS[None], np.ones((1, POINTS.size), np.float32))
    want = [slope(FORMULAS[name], z) for z in POINTS.astype(float)]
    np.testing.assert_allclose(got[0], want, rtol=2e-5, atol=2e-6)


@every_activation
def test_backward_multiplies_the_delta(name):
    z = np.tile(POINTS, (3, 1))
    delta = np.arange(z.size, dtype=np.float32).reshape(z.shape) - 7
    _, slopes = forward_backward(name, z, np.ones_like(z))
    _, got = forward_backward(name, z, delta)
    np.testing.assert_allclose(got, slopes * delta, rtol=1e-6)


@every_activation
def test_a_workspace_serves_many_shapes(name):
    z, space = np.tile(POINTS, (2, 1)), Workspace()
    whole = forward_backward(name, z, np.ones_like(z))
    for rows in (2, 5, 1, 2):
        more = np.resize(z, (rows, z.shape[1]))
        got = forward_backward(name, more, np.ones_like(more), space)
        np.testing.assert_array_equal(np.array(got)[:, :2], np.array(whole)[:, :rows])


@every_activation
def test_what_is_saved_is_saved_where_it_says_so(name):
    z = POINTS[None].copy()
    saved = np.full_like(z, np.nan)
    ACTIVATIONS[name].forward(z, saved, Workspace())
    assert np.isnan(saved).all() != ACTIVATIONS[name].saves


@every_activation
def test_nan_stays_nan(name):
    got, _ = forward_backward(
        name, np.full((1, 40), np.nan, np.float32), np.ones((1, 40), np.float32)
    )
    assert np.isnan(got).all()


def test_relu_is_flat_at_zero():
    _, got = forward_backward("relu", np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(got, 0)


def test_gelu_is_near_the_exact_one():
    got, _ = forward_backward("gelu", POINTS[None], np.ones((1, POINTS.size), np.float32))
    exact = [z * 0.5 * (1 + math.erf(z / math.sqrt(2))) for z in POINTS.astype(float)]
    np.testing.assert_allclose(got[0], exact, atol=1e-3)
