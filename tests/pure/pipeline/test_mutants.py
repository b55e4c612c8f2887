"""The prover is tested by breaking what it proves: every mutant is refuted, or is right after all.

A mutant is a plan with one change. It is *right after all* where it still does what the row
promises, by a program of whole numbers that shares nothing with the prover
(``support/pipelines.py``): the same gradients in the same order, no more alive, as old as promised.
Only steps that change places are ever right, such as a send that may as well wait for a gradient of
weights.
"""

from __future__ import annotations

import pytest

from psrt.pipeline import ScheduleError
from psrt.pipeline.proof import prove
from psrt.pipeline.step import COMPUTING
from support.pipelines import is_right

STAGES, MICRO_BATCHES = 3, 4


def is_refuted(subject, plan, less=None):
    """Return whether the prover is red; with ``less``, where one less may be alive there."""
    alive = subject.alive(STAGES, MICRO_BATCHES)
    if less is not None:
        alive[less] -= 1
    try:
        prove(plan, MICRO_BATCHES, subject.chunks, alive=alive, staleness=subject.late(STAGES))
    except ScheduleError as error:
        return less is None or error.stage == less
    return False


@pytest.mark.one_in(4)
def test_each_single_step_matters(subject):
    """Not some of them: all, at one size; left out, doubled, of another micro-batch or stage."""
    plan = subject.plan(STAGES, MICRO_BATCHES)
    for s, steps in enumerate(plan):
        assert is_refuted(subject, plan, less=s)  # the promise is the least that holds
        for i, step in enumerate(steps):
            others = [
                [],
                [step, step],
                [step._replace(micro_batch=(step.micro_batch + 1) % MICRO_BATCHES)],
                [step._replace(micro_batch=MICRO_BATCHES)],
                [step._replace(chunk=step.chunk + 1)],
            ]
            if step.kind not in COMPUTING:
                others += [[step._replace(peer=peer)] for peer in ((step.peer + 1) % STAGES, s)]
            for other in others:
                mutant = [*plan[:s], [*steps[:i], *other, *steps[i + 1 :]], *plan[s + 1 :]]
                assert is_refuted(subject, mutant), mutant


@pytest.mark.one_in(3)
def test_two_steps_that_change_places_are_refuted_or_right(subject):
    plan, alive = subject.plan(STAGES, MICRO_BATCHES), subject.alive(STAGES, MICRO_BATCHES)
    refuted = 0
    for s, steps in enumerate(plan):
        for i in range(len(steps)):
            for j in (i + 1, i + 4):
                mutant = [list(it) for it in plan]
                mutant[s][i : j + 1] = [*steps[i + 1 : j + 1], steps[i]]
                if mutant == plan:
                    continue
                right = is_right(
                    mutant, MICRO_BATCHES, subject.chunks, alive=alive, late=subject.late(STAGES)
                )
                refuted += not right
                assert is_refuted(subject, mutant) != right, mutant
    assert refuted
