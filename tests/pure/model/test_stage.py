"""Stages driven by hand, against the whole model and against float64."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.core.partition import even_spans
from psrt.model import MLP
from psrt.model.stage import Stage
from psrt.model.stage_memory import Boundary, StageShape
from psrt.pipeline.step import ALL
from support.cases import each
from support.chains import in_float64, problem, run, spans_of

SIZES = (6, 5, 7, 4, 3)
LAYERS = len(SIZES) - 1
every_case = each(
    ("activation", "loss", "targets"),
    [
        ("relu", "cross-entropy", False),
        ("tanh", "squared", False),
        ("gelu", "squared", True),
        ("gelu", "cross-entropy", False),
    ],
)


def cut(model, at, rows, micro_batches=1, *, shared=False, **shape):
    """Return the stages of a model that is cut before the layers ``at``."""
    layers, bounds = model.layers(), [0, *at, len(model.layers())]
    shapes = [
        StageShape(rows=rows, micro_batches=micro_batches, first=start == 0, **shape)
        for start in bounds[:-1]
    ]
    widths = [layers[start].inputs for start in bounds[1:-1]]
    values = [np.empty((shapes[0].kept_rows, width), np.float32) for width in widths]
    slopes = [np.empty((shapes[0].kept_rows, width), np.float32) for width in widths]
    boundaries = [
        Boundary(inputs=inputs, outputs=outputs, input_gradients=below, output_gradients=above)
        for inputs, outputs, below, above in zip(
            [None, *values], [*values, None], [None, *slopes], [*slopes, None], strict=True
        )
    ]
    return [
        Stage(
            layers[start:stop],
            shape,
            loss=model.loss if stop == len(layers) else None,
            boundary=boundary if shared else None,
        )
        for start, stop, shape, boundary in zip(
            bounds[:-1], bounds[1:], shapes, boundaries, strict=True
        )
    ]


class Pipeline:
    """Stages with a batch; passes go by hand, in any order."""

    def __init__(self, stages, theta, x, y):
        self.stages, self.x, self.y = stages, x, y
        self.spans = even_spans(len(x), stages[0].shape.micro_batches)
        self.gradient, self.losses = np.full_like(theta, np.nan), {}
        for stage, span in zip(stages, spans_of(stages), strict=True):
            stage.begin(len(x), theta[span], self.gradient[span])

    def forward(self, p, m):
        stage = self.stages[p]
        if stage.rows(m):
            below = self.stages[p - 1].output(m) if p else self.spans[m].of(self.x)
            if not np.shares_memory(below, stage.input(m)):
                stage.input(m)[...] = below
        run(stage.forward(m))

    def backward(self, p, m, name="backward", **ready):
        stage, last = self.stages[p], p == len(self.stages) - 1
        if stage.rows(m) and not last:
            above = self.stages[p + 1].input_gradient(m)
            if not np.shares_memory(above, stage.output_gradient(m)):
                stage.output_gradient(m)[...] = above
        targets = self.spans[m].of(self.y) if last else None
        loss = run(getattr(stage, name)(m, targets, **ready))
        if last:
            self.losses[m] = loss

    @property
    def result(self):
        return sum(self.losses[m] for m in sorted(self.losses)), self.gradient


def one_after_another(pipeline):
    """Each micro-batch forward and back before the next."""
    stages = range(len(pipeline.stages))
    for m in range(len(pipeline.spans)):
        for p in stages:
            pipeline.forward(p, m)
        for p in reversed(stages):
            pipeline.backward(p, m)
    return pipeline.result


def gpipe(pipeline, name="backward"):
    """All forward; then all back, where gradients wait one by one."""
    stages, micro_batches = range(len(pipeline.stages)), range(len(pipeline.spans))
    for m in micro_batches:
        for p in stages:
            pipeline.forward(p, m)
    for m in micro_batches:
        for p in reversed(stages):
            pipeline.backward(p, m, name)
    return pipeline.result


def split(pipeline, together=False):
    """Inputs first; weights later, one by one or together."""
    gpipe(pipeline, "backward_input")
    for stage in pipeline.stages:
        for m in [ALL] if together else range(len(pipeline.spans)):
            stage.backward_weight(m)
    return pipeline.result


def same(got, want):
    assert got[0] == want[0]
    np.testing.assert_array_equal(got[1], want[1])


def accumulated(model, theta, x, y, micro_batches):
    """One stage, one micro-batch after another: what every cut and order has to equal."""
    stages = cut(model, (), max(1, len(x)), micro_batches)
    return one_after_another(Pipeline(stages, theta, x, y))


#: Orders of passes, and what stages must have room for.
ORDERS = [
    (one_after_another, {"slots": 1}),
    (gpipe, {}),
    (gpipe, {"recompute": True}),
    (split, {"split": True}),
]


@every_case
@each("micro_batches", [1, 3, 11])
def test_micro_batches_add_up_to_the_gradient_in_float64(activation, loss, targets, micro_batches):
    model, theta, x, y = problem(SIZES, 11, activation=activation, loss=loss, targets=targets)
    want_loss, want, _ = in_float64(SIZES, theta, x, y, activation=activation, loss=loss)
    loss_value, got = accumulated(model, theta, x, y, micro_batches)
    assert loss_value == pytest.approx(want_loss, rel=1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    whole = np.full_like(theta, np.nan)
    whole_loss = model.loss_and_grad(theta, x, y, whole)
    if micro_batches == 1:
        same((loss_value, got), (whole_loss, whole))
    stages = cut(model, (1, 3), 11, micro_batches, split=True)
    loss_value, got = split(Pipeline(stages, theta, x, y), together=True)
    assert loss_value == pytest.approx(want_loss, rel=1e-5)
    np.testing.assert_allclose(got, whole, rtol=1e-4, atol=1e-6)
    assert all(stage.scratch_bytes == 0 for stage in stages)


@every_case
@each(("micro_batches", "shared"), [(1, False), (4, True)])
def test_every_cut_and_every_order_has_the_same_bits(
    activation, loss, targets, micro_batches, shared
):
    """9 rows are 3, 2, 2, 2."""
    model, theta, x, y = problem(SIZES, 9, activation=activation, loss=loss, targets=targets)
    want = accumulated(model, theta, x, y, micro_batches)
    for at in ((), (1,), (2,), (1, 3), (1, 2, 3)):
        for order, shape in ORDERS:
            stages = cut(model, at, 9, micro_batches, shared=shared, **shape)
            same(order(Pipeline(stages, theta, x, y)), want)


@each("rows", [9, 4, 1, 0])
def test_a_smaller_batch_is_that_of_a_smaller_model(rows):
    model, theta, x, y = problem(SIZES, 9)
    for order, shape in ORDERS:
        stages = cut(model, (2,), 9, 4, **shape)
        for before in (9, rows):  # what the batch before left must not show
            got = order(Pipeline(stages, theta, x[:before], y[:before]))
        same(got, accumulated(model, theta, x[:rows], y[:rows], 4))
        assert rows or (got[0] == 0 and not got[1].any())


@each("slots", [1, 2, 4, 5])
def test_slots_that_take_turns_have_room_for_the_largest_micro_batch(slots):
    """13 rows are 3, 2, 2, 2, 2, 2: five slots of 3 are more than all of them."""
    model, theta, x, y = problem(SIZES, 13)
    stages = cut(model, (2,), 13, 6, slots=slots)
    got = one_after_another(Pipeline(stages, theta, x, y))
    same(got, accumulated(model, theta, x, y, 6))
    assert stages[0].shape.kept_rows == min(13, 3 * slots)
    if slots < 6:  # more alive than was promised
        stages = cut(model, (), 13, 6, slots=slots)
        with pytest.raises(AssertionError, match="no slot is free"):
            gpipe(Pipeline(stages, theta, x, y))


def test_memory_is_as_the_formula_says_and_recomputing_frees_it():
    """Of 100 rows in micro-batches of 13, of layers that save as much as they give."""
    layers = MLP((60, 50, 70, 40), activation="gelu", batch_size=100).layers()
    for shape, kept, inner, late in (
        ({}, 100, 100, 13),
        ({"slots": 2}, 26, 26, 13),
        ({"split": True}, 100, 100, 100),
        ({"recompute": True}, 100, 13, 13),
    ):
        for first in (True, False):
            full = StageShape(rows=100, micro_batches=8, first=first, given=first, **shape)
            stage = Stage(layers, full)
            assert stage.activation_bytes == full.activation_bytes(layers)
        values = 50 + 70 + 40 + 50 + 70
        assert stage.activation_bytes == 4 * (kept * 60 + inner * values + late * 160 + 13 * 60)
    model, theta, x, y = problem(SIZES, 12)
    for again in (0, 4):
        stages = cut(model, (3,), 12, 4, recompute=bool(again))
        gpipe(Pipeline(stages, theta, x, y))
        found = [(it.forwards, it.recomputed, it.most_alive) for it in stages]
        assert found == [(4 + again, again, 4)] * 2


@each("name", ["backward", "backward_weight", "together"])
def test_a_layer_that_is_ready_is_done_with(name):
    """Its gradient is final, and neither it nor its parameters are looked at any more."""
    model, theta, x, y = problem(SIZES, 12, activation="tanh")
    shape = {"rows": 12, "micro_batches": 3, "split": True}
    _, want = split(Pipeline(cut(model, (), **shape), theta, x, y), together=name == "together")
    (stage,) = cut(model, (), **shape)
    pipeline, got, said = Pipeline([stage], theta, x, y), np.empty_like(theta), []

    def ready(i):
        said.append(i)
        span = stage.gradient_spans()[i]
        span.of(got)[:] = span.of(pipeline.gradient)
        span.of(pipeline.gradient)[:] = span.of(theta)[:] = np.nan

    for m in range(3):
        pipeline.forward(0, m)
    for m in range(3):
        last = {"ready": ready} if m == 2 and name == "backward" else {}
        pipeline.backward(0, m, "backward" if name == "backward" else "backward_input", **last)
    for m in {"backward": (), "backward_weight": range(3), "together": [ALL]}[name]:
        stage.backward_weight(m, ready if m in (2, ALL) else None)
    assert said == list(range(LAYERS))
    np.testing.assert_array_equal(got, want)


class Strict:
    """A layer y = tanh(x) · w that reads all it is given in every pass, also y of the last one."""

    n, inputs, outputs, saved = 3, 3, 3, 2

    def forward(self, x, params, out, saved):
        np.multiply(np.tanh(x), params, out=out)
        saved[...] = x[:, :2]

    def backward_input(self, dy, x, y, saved, params, dx):
        np.testing.assert_array_equal(y, (np.tanh(x) * params).astype(np.float32))
        np.testing.assert_array_equal(saved, x[:, :2])
        if dx is not None:
            np.multiply(dy * params, 1 - np.tanh(x) ** 2, out=dx)
        saved[...] = dy[:, :2]

    def backward_weight(self, dy, x, y, saved, out):
        np.testing.assert_array_equal(saved, dy[:, :2])
        out[...] = (dy * np.tanh(x)).sum(axis=0)


def halves(outputs, targets, rows):
    outputs -= targets
    loss = 0.5 * float((outputs**2).sum()) / rows
    outputs /= rows
    return loss


@each("shape", [{}, {"slots": 1}, {"split": True}, {"recompute": True}])
def test_a_layer_finds_what_it_left_until_its_last_pass(shape):
    rng = np.random.default_rng(1)
    theta = rng.normal(1, 0.2, 9).astype(np.float32)
    x, y = rng.standard_normal((2, 7, 3)).astype(np.float32)
    full = StageShape(rows=7, micro_batches=3, **shape)
    pipeline = Pipeline([Stage([Strict(), Strict(), Strict()], full, loss=halves)], theta, x, y)
    order = split if "split" in shape else one_after_another if "slots" in shape else gpipe
    loss, got = order(pipeline)

    def value(params):
        h = x.astype(float)
        for w in params.reshape(3, 3):
            h = np.tanh(h) * w
        return 0.5 * ((h - y) ** 2).sum() / 7

    assert loss == pytest.approx(value(theta.astype(float)), rel=1e-5)
    want = [(value(theta + d) - value(theta - d)) / 2e-6 for d in np.eye(9) * 1e-6]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_what_does_not_fit():
    with pytest.raises(ConfigError, match="activations are recomputed"):
        StageShape(rows=3, split=True, recompute=True)
    stage = Stage(MLP(SIZES, batch_size=4).layers(), StageShape(rows=4, micro_batches=2))
    params, gradient = np.zeros((2, stage.n), np.float32)
    with pytest.raises(ConfigError, match="a batch of 5 rows for a stage made for 4"):
        stage.begin(5, params, gradient)
    with pytest.raises(ConfigError, match="a batch of 3 rows for slots of 2"):
        stage.admit(0, 3, params)


def test_what_is_computed_once_more_leaves_alone_what_the_next_stage_reads(monkeypatch):
    """It was sent its gradient before the next stage was done with the outputs."""
    model, theta, x, y = problem(SIZES, 6, activation="gelu")
    pipeline = Pipeline(cut(model, (2,), 6, 2, shared=True, recompute=True), theta, x, y)
    for p, m in ((0, 0), (0, 1), (1, 0), (1, 1)):
        pipeline.forward(p, m)
    last, written = pipeline.stages[0].layers[-1], []
    forward = last.forward
    monkeypatch.setattr(last, "forward", lambda *it: (written.append(it[2]), forward(*it)))
    for p, m in ((1, 0), (0, 0), (1, 1), (0, 1)):
        pipeline.backward(p, m)
    assert len(written) == 2
    assert not any(
        np.shares_memory(it, pipeline.stages[1].input(m)) for it in written for m in (0, 1)
    )
    same(pipeline.result, accumulated(model, theta, x, y, 2))
