"""The problem without numbers has the batches of one that has them."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.data import BatchPlan
from psrt.partition import Span
from psrt.runtime.problem import gradient_spans
from psrt.runtime.problem_rules import sample_counter
from psrt.runtime.timing_only import TimingOnlyProblem


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("samples", [1, 6, 42, 43, 84, 100])
def test_batches_are_as_long_as_a_plan_cuts_them(samples, workers):
    problem = TimingOnlyProblem(9, batch_size=6, samples=samples)
    plan = BatchPlan(samples, batch_size=6, workers=workers, seed=0)
    for worker in range(workers):
        found = [sample_counter(problem)(batch) for batch in problem.batches(worker, workers, 3)]
        steps = range(plan.steps_per_epoch)
        assert found == [len(plan.indices(3, step, worker)) for step in steps]
        assert len(problem.batches(worker, workers, 3)) == plan.steps_per_epoch


def test_an_epoch_of_so_many_steps_has_full_batches():
    batches = TimingOnlyProblem(9, batch_size=6, steps=4).batches(2, 5, 0)
    assert (len(batches), list(batches)) == (4, [6, 6, 6, 6])


def test_nothing_is_computed():
    problem = TimingOnlyProblem(1000, batch_size=2, steps=1)
    assert problem.initial().size == 0
    assert problem.evaluate(np.zeros(0, np.float32)) == {}
    assert gradient_spans(problem, 1000) == (Span(0, 1000),)


def test_parts_are_done_in_their_order():
    spans = (Span(6, 9), Span(0, 6))
    problem = TimingOnlyProblem(9, batch_size=2, steps=1, spans=spans)
    assert gradient_spans(problem, 9) == spans
    done = []
    nothing = np.zeros(0, np.float32)
    assert problem.loss_and_grad(nothing, 2, nothing, done.append) == 0.0
    assert done == [0, 1]
