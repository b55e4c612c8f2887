"""What a chain must keep to, one line per broken rule; and seconds of its layers, by a clock."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.model import MLP
from psrt.model.chain import chain_layers, layer_spans
from support.cases import each


def layer(inputs, outputs, n):
    return SimpleNamespace(inputs=inputs, outputs=outputs, n=n, saved=0)


class Chain:
    def __init__(self, *layers):
        self.layers = lambda: layers

    def loss(self, outputs, targets, rows):
        raise NotImplementedError


def test_the_mlp_is_a_chain():
    model = MLP([5, 4, 3], activation="gelu", batch_size=2)
    layers = chain_layers(model, model.n)
    assert [(it.inputs, it.outputs, it.saved, it.n) for it in layers] == [
        (5, 4, 4, 24),
        (4, 3, 0, 15),
    ]
    assert layer_spans(layers) == (Span(0, 24), Span(24, 39)) == model.gradient_spans()[::-1]
    spans = layer_spans(chain_layers(Chain(layer(np.int64(5), 4, np.int64(25))), 25))
    assert json.dumps(spans) == "[[0, 25]]"  # of sizes that are numpy's


@each(
    ("problem", "message"),
    [
        (SimpleNamespace(), "the problem, SimpleNamespace, is not a chain .* no layers.* no loss"),
        (Chain(), "layers.. of the problem, Chain, gave none"),
        (SimpleNamespace(layers=lambda: None, loss=list), "gave no sequence of layers: None"),
        (Chain(layer(5, 4, 25.0)), "n of layer 0 is 25.0, expected a whole number"),
        (Chain(layer(5, 0, 25)), "outputs of layer 0 is 0, expected a whole number of at least 1"),
        (Chain(layer(5, 4, 20), layer(3, 2, 5)), "layer 0 gives rows of 4, and layer 1 takes .* 3"),
        (Chain(layer(5, 4, 20), layer(4, 2, 6)), "the layers have 26 parameters, and theta has 25"),
    ],
)
def test_what_is_no_chain(problem, message):
    with pytest.raises(ConfigError, match=message) as caught:
        chain_layers(problem, 25)
    assert "\n" not in str(caught.value)
