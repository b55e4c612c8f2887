"""Seconds of layers, by a clock that counts what was called."""

import numpy as np
import pytest

from psrt.model import MLP
from psrt.model.layer_times import layer_seconds


class Clock:
    """Time that passes in calls alone."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Layer:
    n, inputs, outputs, saved = 2, 3, 3, 1

    def __init__(self, clock, costs, hurry=()):
        self.clock, self.costs, self.slow, self.calls = clock, costs, list(hurry), []

    def forward(self, x, params, out, saved):
        self.calls.append("forward")
        self.clock.now += self.costs[0] + (self.slow.pop(0) if self.slow else 0)

    def backward_input(self, dy, x, y, saved, params, dx):
        self.calls.append("input" if dx is not None else "no input")
        self.clock.now += self.costs[1]

    def backward_weight(self, dy, x, y, saved, out):
        self.calls.append("weight")
        assert out.shape == (2,)
        self.clock.now += self.costs[2]


def test_every_pass_counts_and_the_first_round_and_outliers_do_not():
    clock = Clock()
    layers = [Layer(clock, (1, 2, 4), hurry=[100, 0, 50]), Layer(clock, (8, 16, 32), hurry=[1000])]
    found = layer_seconds(layers, np.zeros(4, np.float32), 5, clock=clock, repetitions=3)
    assert found == (7, 56)
    assert layers[0].calls == ["forward", "no input", "weight"] * 4
    assert layers[1].calls == ["forward", "input", "weight"] * 4


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_mlps_layers_can_be_measured(activation):
    model = MLP([6, 5, 4, 3], activation=activation, batch_size=8)
    theta = model.initial(np.random.default_rng(0))
    kept, clock = theta.copy(), Clock()

    def ticking():
        clock.now += 1
        return clock.now

    assert layer_seconds(model.layers(), theta, 8, clock=ticking) == (2, 2, 2)
    np.testing.assert_array_equal(theta, kept)
