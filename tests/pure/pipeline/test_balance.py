"""Cuts of layers: none of all cuts is better, by trying them all."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from psrt.errors import ConfigError
from psrt.partition import Span
from psrt.pipeline.balance import balanced, imbalance
from support.cases import each


def all_cuts(layers, stages):
    for inner in combinations(range(1, layers), stages - 1):
        yield tuple(Span(a, b) for a, b in pairwise((0, *inner, layers)))


def merit(costs, cut):
    stages = [sum(costs[a:b]) for a, b in cut]
    return max(stages), sum(it * it for it in stages)


def test_no_cut_is_better():
    rng = random.Random(1)
    for layers in range(1, 10):
        for stages in range(1, layers + 1):
            for most in (1, 3, 20):
                costs = [rng.randrange(most + 1) for _ in range(layers)]
                cut = balanced(costs, stages)
                assert [it.start for it in cut] + [layers] == [0, *(it.stop for it in cut)]
                assert all(it.size for it in cut)
                assert merit(costs, cut) == min(merit(costs, it) for it in all_cuts(layers, stages))


def test_seconds_need_not_be_whole():
    rng = random.Random(2)
    for _ in range(50):
        costs = [rng.random() * 1e-3 for _ in range(8)]
        most, _ = merit(costs, balanced(costs, 3))
        due = min(merit(costs, it)[0] for it in all_cuts(8, 3))
        assert most == pytest.approx(due, rel=1e-12)


@each(
    ("costs", "stages", "due"),
    [
        ([5], 1, [1]),
        ([1, 1, 1, 1], 2, [2, 2]),
        ([1, 1, 1, 1], 4, [1, 1, 1, 1]),
        ([8, 1, 1, 1], 3, [1, 1, 2]),  # the dearest is 8 whatever the rest is: that is cut evenly
        ([1, 1, 1, 8], 3, [1, 2, 1]),
        ([784, 1024, 1024, 1024, 1024, 10], 2, [3, 3]),
    ],
)
def test_cuts(costs, stages, due):
    assert [it.size for it in balanced(costs, stages)] == due


def test_imbalance():
    assert imbalance([1, 2, 3], (Span(0, 2), Span(2, 3))) == 1
    assert imbalance([1, 1, 4], (Span(0, 2), Span(2, 3))) == pytest.approx(4 / 3)


@each(("layers", "stages"), [(3, 4), (0, 1), (3, 0)])
def test_more_stages_than_layers(layers, stages):
    with pytest.raises(ConfigError, match=f"{layers} layers cannot be cut into {stages} stages"):
        balanced([1.0] * layers, stages)
