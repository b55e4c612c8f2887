"""Slices of an MLP in one process, against the whole model and against float64."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.core.partition import even_spans
from psrt.model import LOSSES, MLP
from psrt.model.sliced_loss import SLICED_LOSSES
from psrt.model.stage import Stage
from psrt.model.stage_memory import StageShape
from psrt.model.tensor import TensorSlice
from support.cases import each
from support.chains import Lockstep, in_float64, problem

#: Odd and even numbers of layers, widths that few numbers of slices divide.
SHAPES = [(6, 7), (6, 7, 3), (6, 9, 5, 8), (5, 7, 6, 11, 4), (4, 6, 3, 5, 3, 7)]
CASES = [
    ("relu", "cross-entropy", False),
    ("tanh", "squared", False),
    ("gelu", "squared", True),
    ("gelu", "cross-entropy", False),
]
every_shape = each("sizes", SHAPES)
every_case = each(("activation", "loss", "targets"), CASES)


class Slices:
    """All slices of a model, each a row of stages, in lockstep."""

    def __init__(self, model, theta, slices, *, micro_batches=1, cut=None, rows=9):
        self.lockstep = Lockstep(slices)
        groups = self.lockstep.groups
        self.slices = [TensorSlice(model, slices, t, group) for t, group in enumerate(groups)]
        self.thetas = [it.part.take(theta) for it in self.slices]
        self.gradients = [np.full_like(it, np.nan) for it in self.thetas]
        bounds = [0, *([cut] if cut else []), len(model.layers())]
        self.rows = [
            [
                Stage(
                    it.layers()[start:stop],
                    StageShape(rows=rows, micro_batches=micro_batches, first=start == 0),
                    loss=it.loss if stop == len(model.layers()) else None,
                    group=group,
                )
                for start, stop in pairwise(bounds)
            ]
            for it, group in zip(self.slices, groups, strict=True)
        ]

    def step(self, x, y):
        """Return the loss and the gradient of the whole, of a batch."""
        for stages, theta, gradient in zip(self.rows, self.thetas, self.gradients, strict=True):
            at = 0
            for stage in stages:
                own = slice(at, at := at + stage.n)
                stage.begin(len(x), theta[own], gradient[own])
        columns = list(zip(*self.rows, strict=True))
        spans = even_spans(len(x), self.rows[0][0].shape.micro_batches)
        loss = 0.0
        for m, span in enumerate(spans):
            if not span.size:
                continue
            for p, stages in enumerate(columns):
                for t, stage in enumerate(stages):
                    stage.input(m)[...] = columns[p - 1][t].output(m) if p else span.of(x)
                self.lockstep.run([stage.forward(m) for stage in stages])
            for p in range(len(columns) - 1, -1, -1):
                last = p == len(columns) - 1
                if not last:
                    for t, stage in enumerate(columns[p]):
                        stage.output_gradient(m)[...] = columns[p + 1][t].input_gradient(m)
                losses = self.lockstep.run(
                    [stage.backward(m, span.of(y) if last else None) for stage in columns[p]]
                )
                assert len(set(losses)) == 1
                loss += losses[0]
        whole = np.full(sum(it.size for it in self.thetas), np.nan, np.float32)
        for it, gradient in zip(self.slices, self.gradients, strict=True):
            it.part.put(gradient, whole)
        return loss, whole


@every_shape
@every_case
@each("slices", [2, 3])
def test_slices_compute_the_whole_models_gradient(sizes, activation, loss, targets, slices):
    model, theta, x, y = problem(sizes, 9, activation=activation, loss=loss, targets=targets)
    want_loss, want, _ = in_float64(sizes, theta, x, y, activation=activation, loss=loss)
    whole = np.empty_like(theta)
    whole_loss = model.loss_and_grad(theta, x, y, whole)
    for micro_batches in (1, 4):
        made = Slices(model, theta, slices, micro_batches=micro_batches)
        got_loss, got = made.step(x, y)
        assert got_loss == pytest.approx(want_loss, rel=1e-5)
        assert got_loss == pytest.approx(whole_loss, rel=1e-6)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-6)


@each("at", [1, 2, 3])
def test_slices_that_are_cut_into_stages_have_the_same_bits(at):
    """Also between the two layers of a pair, where each slice sends its columns."""
    sizes = (5, 7, 6, 11, 4)
    model, theta, x, y = problem(sizes, 9, activation="gelu")
    want = Slices(model, theta, 3, micro_batches=2).step(x, y)
    got = Slices(model, theta, 3, micro_batches=2, cut=at).step(x, y)
    assert got[0] == want[0]
    np.testing.assert_array_equal(got[1], want[1])


@each(
    ("sizes", "sums", "maxima", "elements"),
    [
        # A pair has a sum forward, and one back but for the model's input. Of the last layer that
        # is alone: a sum back, two numbers a row, and a maximum.
        ((6, 7, 3), 1, 0, 9 * 3),
        ((6, 7, 3, 8, 5), 3, 0, 9 * (3 + 5 + 3)),
        ((6, 7), 1, 1, 9 * 3),
        ((6, 7, 3, 8), 3, 1, 9 * (3 + 3 + 3)),
    ],
)
def test_a_pair_of_layers_has_one_sum_forward_and_one_back(sizes, sums, maxima, elements):
    model, theta, x, y = problem(sizes, 9)
    made = Slices(model, theta, 2)
    made.step(x, y)
    lockstep = made.lockstep
    assert (lockstep.sums, lockstep.maxima, lockstep.elements) == (sums, maxima, elements)


def test_what_a_slice_has():
    """Columns 0–2 of 5 and rows 0–2 with the bias, then columns 3–4 and rows 3–4."""
    theta = np.arange(27, dtype=np.float32)
    model = MLP([2, 5, 2], batch_size=1)
    first, second = (TensorSlice(model, 2, index).part.take(theta) for index in (0, 1))
    assert first.tolist() == [0, 1, 2, 5, 6, 7, 10, 11, 12, *range(15, 21), 25, 26]
    assert second.tolist() == [3, 4, 8, 9, 13, 14, *range(21, 25)]


def sliced(name, z, targets, slices, batch_rows):
    """Return the loss and the gradient of outputs whose columns are cut."""
    lockstep, rows = Lockstep(slices), len(z)
    spans = even_spans(z.shape[1], slices)
    parts = [np.ascontiguousarray(z[:, start:stop]) for start, stop in spans]
    losses = lockstep.run(
        [
            SLICED_LOSSES[name](rows + 3, z.shape[1], span)(part, targets, batch_rows, group)
            for span, part, group in zip(spans, parts, lockstep.groups, strict=True)
        ]
    )
    assert len(set(losses)) == 1
    return losses[0], np.concatenate(parts, axis=1)


@each("name", LOSSES)
@each("slices", [1, 3, 7])
@each("kind", ["<i8", ">i8", "u1", "<u8", "float"])
@each("scale", [1, 100])
def test_a_sliced_loss_is_the_whole_one(name, slices, kind, scale):
    rng = np.random.default_rng(0)
    z = (scale * rng.standard_normal((11, 7))).astype(np.float32)
    targets = rng.integers(0, 7, 11)
    if kind != "float":
        targets = targets.astype(kind)
    elif name == "squared":
        targets = rng.standard_normal((11, 7)).astype(np.float32)
    whole = z.copy()
    want = LOSSES[name](11, 7)(whole, targets, 20)
    loss, gradient = sliced(name, z, targets, slices, 20)
    assert loss == pytest.approx(want, rel=1e-6)
    np.testing.assert_allclose(gradient, whole, rtol=1e-5, atol=1e-8)


@each("name", LOSSES)
def test_targets_that_do_not_fit_are_an_error_for_all_slices(name):
    cases = [(np.array([0, label]), "model of 7 classes") for label in (-1, 7, 2**40)]
    if name == "squared":
        line = r"targets of shape \(2, 3\), expected \(2, 7\)"
        cases.append((np.zeros((2, 3), np.float32), line))
    for (targets, line), span in product(cases, even_spans(7, 3)):
        loss = SLICED_LOSSES[name](4, 7, span)
        with pytest.raises(ConfigError, match=line):
            loss(np.zeros((2, span.size), np.float32), targets, 2, None).send(None)
