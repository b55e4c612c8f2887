"""Stages that follow the steps of every pipeline schedule, in the memory that its row promises."""

from __future__ import annotations

import numpy as np
import own_chain
import pytest

from psrt.model.stage import Stage
from psrt.model.stage_memory import StageShape
from psrt.partition import even_spans
from psrt.pipeline.registry import PIPELINES
from psrt.pipeline.schedule import most_alive
from psrt.pipeline.step import ALL, Kind
from support.cases import each
from support.chains import problem, run, spans_of

SIZES = (6, 5, 7, 4, 6, 5, 3, 4, 3)  # eight layers
SYNCHRONOUS = [name for name, row in PIPELINES.items() if not row.asynchronous]


class Run:
    """All stages of a plan; messages wait for whoever receives them."""

    def __init__(self, chain, theta, plan, *, rows, micro_batches, chunks=1, given=False, **shape):
        layers, self.stages = chain.layers(), len(plan)
        self.plan, self.chunks = plan, chunks
        #: What was computed and will be sent, and what was sent.
        self.done, self.mail = {}, {}
        pieces = [
            layers[start:stop] for start, stop in even_spans(len(layers), self.stages * chunks)
        ]
        alive = [most_alive(steps, chunks) for steps in plan]
        slots = [alive[v % self.stages][v // self.stages] for v in range(len(pieces))]
        shapes = [
            StageShape(
                rows=rows if micro_batches else rows * it,  # or a batch in each slot
                micro_batches=micro_batches or it,
                slots=it,
                first=v == 0,
                given=given and v == 0,
                **shape,
            )
            for v, it in enumerate(slots)
        ]
        self.made = [
            Stage(piece, it, loss=chain.loss if piece is pieces[-1] else None)
            for piece, it in zip(pieces, shapes, strict=True)
        ]
        self.spans, self.theta = spans_of(self.made), theta
        self.losses = {}

    def step(self, x, y):
        """Return the loss and the gradient of a batch."""
        gradient = np.full_like(self.theta, np.nan)
        for stage, span in zip(self.made, self.spans, strict=True):
            stage.begin(len(x), self.theta[span], gradient[span], x if stage.shape.given else None)
        rows = even_spans(len(x), self.made[0].shape.micro_batches)
        self.follow(lambda m: rows[m].of(x), lambda m: rows[m].of(y))
        return sum(self.losses[m] for m in sorted(self.losses)), gradient

    def follow(self, x, y, before=lambda step, v: None, after=lambda step, v: None):
        left = [list(steps)[::-1] for steps in self.plan]
        while any(left):
            moved = False
            for s, steps in enumerate(left):
                while steps and self.can(s, steps[-1]):
                    step, moved = steps.pop(), True
                    v = step.chunk * self.stages + s
                    before(step, v)
                    self.take(step, v, x, y)
                    after(step, v)
            assert moved, "stages wait for each other"
        assert not self.mail

    def can(self, s, step):
        v = step.chunk * self.stages + s
        if step.kind is Kind.RECEIVE_ACTIVATION:
            return ("y", v - 1, step.micro_batch) in self.mail
        if step.kind is Kind.RECEIVE_GRADIENT:
            return ("dx", v + 1, step.micro_batch) in self.mail
        return True

    def take(self, step, v, x, y):
        stage, m, last = self.made[v], step.micro_batch, v == len(self.made) - 1
        there = m == ALL or stage.rows(m) > 0
        if step.kind is Kind.FORWARD:
            if there and v == 0:
                assert stage.shape.given == np.shares_memory(stage.input(m), x(m))
                stage.input(m)[...] = x(m)
            elif there and self.stages == 1:  # nothing is sent to oneself
                stage.input(m)[...] = self.done["y", v - 1, m]
            run(stage.forward(m))
            self.done["y", v, m] = stage.output(m).copy() if there else None
        elif step.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            if there and self.stages == 1 and not last:
                stage.output_gradient(m)[...] = self.done["dx", v + 1, m]
            name = step.kind.value.replace("-", "_")
            loss = run(getattr(stage, name)(m, y(m) if last else None))
            if last:
                self.losses[m] = loss
            if v > 0:
                self.done["dx", v, m] = stage.input_gradient(m).copy() if there else None
        elif step.kind is Kind.BACKWARD_WEIGHT:
            stage.backward_weight(m)
        elif step.kind is Kind.SEND_ACTIVATION:
            self.mail["y", v, m] = self.done["y", v, m]
        elif step.kind is Kind.SEND_GRADIENT:
            self.mail["dx", v, m] = self.done["dx", v, m]
        else:
            up = step.kind is Kind.RECEIVE_ACTIVATION
            found = self.mail.pop(("y", v - 1, m) if up else ("dx", v + 1, m))
            if there:
                (stage.input(m) if up else stage.output_gradient(m))[...] = found


def accumulated(chain, theta, x, y, micro_batches):
    plan = PIPELINES["sequential"].plan(1, micro_batches)
    made = Run(chain, theta, plan, rows=max(1, len(x)), micro_batches=micro_batches)
    return made.step(x, y)


@pytest.mark.parametrize("name", SYNCHRONOUS)
@each("stages", [1, 2, 3, 4])
@each("micro_batches", [1, 3, 6])
@each("rows", [13, 4])
def test_every_schedule_has_the_bits_of_one_stage(name, stages, micro_batches, rows):
    row = PIPELINES[name]
    chunks = 2 if row.chunked else 1
    model, theta, x, y = problem(SIZES, 13, activation="gelu")
    x, y = x[:rows], y[:rows]
    want = accumulated(model, theta, x, y, micro_batches)
    for deferred, recompute in [(False, False), (False, True), (True, False)]:
        if (deferred and not row.defers) or (recompute and row.splits):
            continue
        plan = row.plan(stages, micro_batches, chunks, deferred=deferred)
        made = Run(
            model,
            theta,
            plan,
            rows=13,
            micro_batches=micro_batches,
            chunks=chunks,
            given=True,
            split=deferred or row.splits,
            recompute=recompute,
        )
        loss, gradient = made.step(x, y)
        assert loss == want[0]
        if deferred:
            np.testing.assert_allclose(gradient, want[1], rtol=1e-4, atol=1e-7)
        else:
            np.testing.assert_array_equal(gradient, want[1])
        for s in range(stages):
            promise = row.most_alive(s, stages, micro_batches, chunks, deferred=deferred)
            assert all(stage.most_alive <= promise for stage in made.made[s::stages])


@each("stages", [1, 2, 3, 4])
def test_pipedream_is_sgd_whose_stages_are_late(stages):
    """Stage s computes with parameters as they were P − s − 1 updates before; both ways."""
    batches, rate = 9, np.float32(0.1)
    model, theta, x, y = problem(SIZES, 8 * batches, activation="tanh")
    plan = PIPELINES["pipedream"].plan(stages, batches)
    made = Run(model, theta, plan, rows=8, micro_batches=None)
    now, gradient = theta.copy(), np.empty_like(theta)
    versions = [[theta[span].copy()] for span in made.spans]

    def before(step, v):
        if step.kind in (Kind.RECEIVE_ACTIVATION, Kind.FORWARD) and (
            v == 0 or step.kind is Kind.RECEIVE_ACTIVATION
        ):
            made.made[v].admit(step.micro_batch, 8, versions[v][-1])
        elif step.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            made.made[v].collect(gradient[made.spans[v]])

    def after(step, v):
        if step.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            span = made.spans[v]
            now[span] -= rate * gradient[span]
            versions[v].append(now[span].copy())

    made.follow(
        lambda m: x[8 * m : 8 * m + 8], lambda m: y[8 * m : 8 * m + 8], before=before, after=after
    )

    late, out = [theta.copy()], np.empty_like(theta)
    for k in range(batches):
        read = np.empty_like(theta)
        for s, span in enumerate(made.spans):
            read[span] = late[max(0, k - (stages - s - 1))][span]
        loss = model.loss_and_grad(read, x[8 * k : 8 * k + 8], y[8 * k : 8 * k + 8], out)
        assert made.losses[k] == loss
        late.append(late[-1] - rate * out)
    np.testing.assert_array_equal(now, late[-1])


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_chain_of_ones_own_can_be_cut(name):
    row, chain = PIPELINES[name], own_chain.Spirals()
    theta, (x, y) = chain.initial(), next(iter(chain.batches(0, 1, 0)))
    whole = np.full_like(theta, np.nan)
    loss = chain.loss_and_grad(theta, (x, y), whole)
    chunks = 2 if row.chunked else 1
    for deferred in (False, row.defers):
        plan = row.plan(3, 4, chunks, deferred=deferred)
        split = deferred or row.splits
        made = Run(chain, theta, plan, rows=64, micro_batches=4, chunks=chunks, split=split)
        got_loss, got = made.step(x, y)
        assert got_loss == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(got, whole, rtol=1e-4, atol=1e-6)


def test_the_gradient_of_ones_own_chain_is_the_finite_difference():
    chain = own_chain.Spirals()
    theta, (x, y) = chain.initial(), next(iter(chain.batches(0, 1, 0)))
    gradient, out = np.empty_like(theta), np.empty_like(theta)
    chain.loss_and_grad(theta, (x, y), gradient)
    direction = np.random.default_rng(0).standard_normal(theta.size).astype(np.float32)
    ends = [chain.loss_and_grad(theta + h * direction, (x, y), out) for h in (1e-3, -1e-3)]
    assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(float(gradient @ direction), rel=2e-3)
