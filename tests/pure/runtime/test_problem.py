"""Psrt's own problem, what any problem may say of its parts, and one without numbers."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.data import load_dataset
from psrt.model import MLP
from psrt.runtime.problem import Supervised, gradient_spans, matrices_of
from psrt.runtime.problem_rules import sample_counter
from psrt.runtime.timing_only import TimingOnlyProblem
from support.cases import each


class Counting:
    def samples(self, batch):
        return np.int64(batch["rows"])


@each(
    ("problem", "batch", "expected"),
    [
        (Counting(), {"rows": 3}, 3),
        (object(), (np.zeros((4, 2)), np.zeros(4)), 4),
        (object(), (np.zeros((0, 2)), np.zeros(0)), 0),
        (object(), np.zeros((5, 2)), 5),
        (object(), [1, 2], 2),
        (SimpleNamespace(samples=1000), [1, 2], 2),
        (object(), [], 0),
    ],
)
def test_samples_are_counted(problem, batch, expected):
    count = sample_counter(problem)(batch)
    assert (count, type(count)) == (expected, int)


@pytest.fixture
def problem():
    data = load_dataset("synthetic:50x4x3", seed=1)
    return Supervised(MLP([4, 6, 3], batch_size=8), data, batch_size=8, seed=5)


def test_its_parameters_are_of_the_seed_and_the_gradient_comes_in_the_models_parts(problem):
    again, other = (
        Supervised(problem.model, problem.data, batch_size=8, seed=it).initial() for it in (5, 6)
    )
    theta, batch = problem.initial(), problem.gather(np.arange(8))
    assert (theta == again).all()
    assert (theta != other).any()
    whole, parts = np.zeros((2, problem.model.n), np.float32)
    said = []
    problem.loss_and_grad(theta, batch, whole)
    problem.loss_and_grad(theta, batch, parts, said.append)
    np.testing.assert_array_equal(parts, whole)
    assert gradient_spans(problem, problem.model.n) == problem.model.gradient_spans()
    assert problem.evaluate(theta).keys() == {"loss", "accuracy"}
    assert said == list(range(len(problem.gradient_spans()))) == [0, 1]


class Parts:
    def __init__(self, *spans):
        self.gradient_spans = lambda: spans


class Matrices:
    def __init__(self, found):
        self.matrices = lambda: found


def test_a_problem_that_says_nothing_has_one_part():
    assert gradient_spans(object(), 7) == (Span(0, 7),)
    assert gradient_spans(Parts((4, 7), (4, 4), [0, 4]), 7) == (Span(4, 7), Span(4, 4), Span(0, 4))
    # Places may be numbers of numpy; the set-up sends them to all ranks as JSON.
    starts = np.cumsum([0, 3, 4])
    spans = gradient_spans(Parts(starts[1:], starts[:2]), 7)
    matrices = matrices_of(Matrices(np.array([[1, 1, 2], [3, 2, 2]])), 7)
    assert json.dumps([spans, matrices]) == "[[[3, 7], [0, 3]], [[1, 1, 2], [3, 2, 2]]]"


@each(
    "spans",
    [
        [], [(0, 6)], [(1, 7)], [(0, 4), (4, 7)], [(4, 7), (0, 3)], [(3, 7), (0, 4)],
        [(4, 7), (5, 4), (0, 5)],
    ],
)  # fmt: skip
def test_parts_that_are_not_the_whole_from_its_end_on_are_refused(spans):
    with pytest.raises(ConfigError, match=r"^gradient_spans\(\) must tile \[0, 7\) from its end"):
        gradient_spans(Parts(*spans), 7)


def test_the_matrices_are_the_weights(problem):
    theta = problem.initial()
    weights = [it for name, it in problem.tensors(theta).items() if name.endswith("weight")]
    for found, weight in zip(matrices_of(problem, theta.size), weights, strict=True):
        np.testing.assert_array_equal(found.of(theta), weight)
        assert np.shares_memory(found.of(theta), weight)
    assert matrices_of(object(), 7) == ()
    for wrong in (None, "abc", [(0, 4)], [(0.0, 2.0, 3.0)]):
        with pytest.raises(ConfigError, match=r"^matrices\(\) returned .*, expected whole numbers"):
            matrices_of(Matrices(wrong), 7)


def test_a_regression_has_no_accuracy(problem):
    given = problem.data
    targets = {
        name: np.zeros((len(x), 2), np.float32)
        for name, x in (("y_train", given.x_train), ("y_test", given.x_test))
    }
    data = dataclasses.replace(given, classes=0, **targets)
    model = MLP([4, 2], loss="squared", batch_size=8)
    regression = Supervised(model, data, batch_size=8, seed=0)
    assert regression.evaluate(regression.initial()).keys() == {"loss"}


# --- without numbers ------------------------------------------------------------------------------


def test_without_numbers_batches_are_as_many_as_was_said_and_parts_done_in_their_order():
    batches = TimingOnlyProblem(9, batch_size=6, steps=4).batches(2, 5, 0)
    assert (len(batches), list(batches)) == (4, [6, 6, 6, 6])
    batches = TimingOnlyProblem(9, batch_size=6, samples=43).batches(1, 3, 0)
    assert (len(batches), list(batches)) == (3, [6, 6, 2])
    spans = (Span(6, 9), Span(0, 6))
    problem = TimingOnlyProblem(9, batch_size=2, steps=1, spans=spans)
    assert gradient_spans(problem, 9) == spans
    assert gradient_spans(TimingOnlyProblem(9, batch_size=2, steps=1), 9) == (Span(0, 9),)
    assert problem.initial().size == 0
    done, nothing = [], np.zeros(0, np.float32)
    assert problem.loss_and_grad(nothing, 2, nothing, done.append) == 0.0
    assert done == [0, 1]
    assert problem.evaluate(nothing) == {}
