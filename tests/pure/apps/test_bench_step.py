"""The step benchmark verifies what it measures, and says what it measured."""

import json

import numpy as np
import pytest
import step as bench

from psrt.bench.figures import table, to_json
from psrt.errors import PsrtError

SIZES = (20, 30, 16, 10)


def test_rows_and_table():
    rows = bench.run(models=[SIZES], batch_size=8, rounds=3)
    (row,) = json.loads(to_json(rows))
    assert row["model"] == "20-30-16-10"
    assert row["parameters"] == 21 * 30 + 31 * 16 + 17 * 10
    assert row["products"]["readings"] == row["with_sgd_ratio"]["readings"] == 3
    assert row["gradient_error"] < 1e-5
    assert row["allocated_bytes"] < 8192
    header, _, line = table(rows, bench.COLUMNS).splitlines()
    assert header.startswith("model")
    assert line.startswith("20-30-16-10")


def test_bare_products_are_those_of_a_step():
    problem = bench.Problem.make(SIZES, 8, seed=0)
    made = []
    dot = np.dot
    run = bench.bare_products(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            np, "dot", lambda a, b, out: made.append((a.shape, b.shape)) or dot(a, b, out=out)
        )
        run()
        bare, made[:] = list(made), []
        problem.model.loss_and_grad(problem.theta, problem.x, problem.y, problem.gradient)
    within_a_step = [shapes for shapes in made if shapes[1] != (10, 1)]  # the softmax's row sums
    assert bare == within_a_step
    assert len(bare) == 8


@pytest.mark.parametrize("wrong", ["gradient", "update"])
def test_a_wrong_result_is_no_result(wrong, monkeypatch):
    if wrong == "gradient":
        right = bench.MLP.loss_and_grad

        def off(self, theta, x, y, out):
            loss = right(self, theta, x, y, out)
            out[3] += 0.01
            return loss

        monkeypatch.setattr(bench.MLP, "loss_and_grad", off)
    else:
        monkeypatch.setattr(bench, "step", lambda *args: None)
    with pytest.raises(PsrtError, match=wrong):
        bench.run(models=[SIZES], batch_size=8, rounds=1)


def test_peak_growth_counts_what_is_held_for_a_moment():
    assert bench.peak_growth(lambda: np.zeros(50_000, np.uint8)) >= 50_000
    kept = {}
    assert bench.peak_growth(lambda: kept.setdefault("array", np.zeros(50_000, np.uint8))) < 1 << 20
    buffer = np.zeros(50_000, np.uint8)
    assert bench.peak_growth(lambda: buffer.fill(1)) < 2000
