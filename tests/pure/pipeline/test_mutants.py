"""The prover is tested by breaking what it proves: every mutant is refuted, or is right after all.

A mutant is a plan with one change. It is *right after all* where it still does what the row
promises, by a program of whole numbers that shares nothing with the prover
(``support/pipelines.py``): the same gradients in the same order, no more alive, as old as promised.
Only steps that change places are ever right, such as a send that may as well wait for a gradient of
weights.
"""

from __future__ import annotations

import random

import pytest

from psrt.pipeline import ALL, Kind, ScheduleError
from psrt.pipeline.proof import prove
from psrt.pipeline.step import COMPUTING, SENDING
from support.pipelines import is_right

SIZES = ((2, 3), (3, 5), (4, 9))
#: Of each kind and size.
EACH = 4

# A mutation changes ``plan`` in place and returns whether it could.


def on_a_step(change):
    def mutate(plan, rng, micro_batches):
        steps = rng.choice(plan)
        change(steps, rng.randrange(len(steps)), rng)
        return True

    return mutate


def on_both_ends(change):
    """Of a message."""

    def mutate(plan, rng, micro_batches):
        sends = [
            (s, i)
            for s, steps in enumerate(plan)
            for i, step in enumerate(steps)
            if step.kind in SENDING
        ]
        if not sends:
            return False
        s, i = rng.choice(sends)
        send = plan[s][i]
        kind = {
            Kind.SEND_ACTIVATION: Kind.RECEIVE_ACTIVATION,
            Kind.SEND_GRADIENT: Kind.RECEIVE_GRADIENT,
        }[send.kind]
        k = sum(it.kind is send.kind and it.peer == send.peer for it in plan[s][:i])
        receives = [j for j, it in enumerate(plan[send.peer]) if it.kind is kind and it.peer == s]
        m = rng.choice([it for it in range(micro_batches) if it != send.micro_batch])
        change(plan[s], i, m)
        change(plan[send.peer], receives[k], m)
        return True

    return mutate


def swap(steps, i, rng):
    j = rng.randrange(len(steps))
    steps[i], steps[j] = steps[j], steps[i]


def shift(steps, i, rng):
    step = steps.pop(i)
    steps.insert(rng.choice([j for j in range(len(steps) + 1) if j != i]), step)


def rename(plan, rng, micro_batches):
    """Two micro-batches change names in all steps: all goes well, in another order of the sums."""
    one, two = rng.sample(range(micro_batches), 2)
    names = {one: two, two: one}
    for steps in plan:
        steps[:] = [
            it._replace(micro_batch=names.get(it.micro_batch, it.micro_batch)) for it in steps
        ]
    return True


def backward_reversed(plan, rng, micro_batches):
    """All backward passes and their messages in descending order, as in GPipe's paper."""
    for steps in plan:
        steps[:] = [
            it._replace(micro_batch=micro_batches - 1 - it.micro_batch)
            if it.micro_batch != ALL and it.kind.name != "FORWARD" and "ACTIV" not in it.kind.name
            else it
            for it in steps
        ]
    return True


MUTATIONS = {
    "swap": on_a_step(swap),
    "shift": on_a_step(shift),
    "lose": on_both_ends(lambda steps, i, m: steps.pop(i)),
    "send another": on_both_ends(
        lambda steps, i, m: steps.__setitem__(i, steps[i]._replace(micro_batch=m))
    ),
    "rename": rename,
    "backward reversed": backward_reversed,
}


def is_refuted(subject, plan, stages, micro_batches, less=None):
    """Return whether the prover is red; with ``less``, where one less may be alive there."""
    alive = subject.alive(stages, micro_batches)
    if less is not None:
        alive[less] -= 1
    try:
        prove(plan, micro_batches, subject.chunks, alive=alive, staleness=subject.late(stages))
    except ScheduleError as error:
        return less is None or error.stage == less
    return False


@pytest.mark.one_in(3)
def test_every_mutant_is_refuted_or_right(subject):
    kinds = set()
    for number, (stages, micro_batches) in enumerate(SIZES):
        sound = subject.plan(stages, micro_batches)
        for name, mutate in MUTATIONS.items():
            rng = random.Random(f"{number} {name}")
            for _ in range(EACH):
                plan = [list(steps) for steps in sound]
                if not mutate(plan, rng, micro_batches) or plan == sound:
                    continue
                right = is_right(
                    plan,
                    micro_batches,
                    subject.chunks,
                    alive=subject.alive(stages, micro_batches),
                    late=subject.late(stages),
                )
                assert is_refuted(subject, plan, stages, micro_batches) != right, (name, plan)
                # Only steps that change places are ever right.
                assert not right or name in ("swap", "shift"), (name, plan)
                if not right:
                    kinds.add(name)
    assert kinds == MUTATIONS.keys()


@pytest.mark.one_in(6)
def test_each_single_step_matters(subject):
    """Not some of them: all, at one size; left out, doubled, of another micro-batch or stage."""
    stages, micro_batches = 3, 4
    plan = subject.plan(stages, micro_batches)
    for s, steps in enumerate(plan):
        assert is_refuted(subject, plan, stages, micro_batches, less=s)  # the promise is exact
        for i, step in enumerate(steps):
            others = [
                [],
                [step, step],
                [step._replace(micro_batch=(step.micro_batch + 1) % micro_batches)],
                [step._replace(micro_batch=micro_batches)],
                [step._replace(chunk=step.chunk + 1)],
            ]
            if step.kind not in COMPUTING:
                others += [[step._replace(peer=peer)] for peer in ((step.peer + 1) % stages, s)]
            for other in others:
                mutant = [*plan[:s], [*steps[:i], *other, *steps[i + 1 :]], *plan[s + 1 :]]
                assert is_refuted(subject, mutant, stages, micro_batches), mutant
