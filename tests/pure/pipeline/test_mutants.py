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

from psrt.pipeline import ALL, Kind, PipelineStep, ScheduleError
from psrt.pipeline.proof import prove
from psrt.pipeline.step import COMPUTING, SENDING
from support.pipelines import is_right

SIZES = ((2, 3), (3, 5), (4, 4), (4, 9))
#: Of each kind and size.
EACH = 5

# A mutation changes ``plan`` in place and returns whether it could.


def pick(plan, rng, suits=lambda step: True):
    places = [(s, i) for s, steps in enumerate(plan) for i, step in enumerate(steps) if suits(step)]
    return rng.choice(places) if places else None


def on_a_step(change, suits=lambda step: True):
    def mutate(plan, rng, micro_batches, chunks):
        place = pick(plan, rng, suits)
        if place is not None:
            s, i = place
            change(plan[s], i, rng, micro_batches)
        return place is not None

    return mutate


def is_message(step):
    return step.kind not in COMPUTING


def is_pass(step):
    return step.kind in COMPUTING and step.micro_batch != ALL


def replace(steps, i, **fields):
    steps[i] = steps[i]._replace(**fields)


def other(values, but, rng):
    return rng.choice([it for it in values if it != but])


def both_ends(plan, rng):
    """Return a message's two places, or None."""
    place = pick(plan, rng, lambda step: step.kind in SENDING)
    if place is None:
        return None
    s, i = place
    send = plan[s][i]
    kind = {
        Kind.SEND_ACTIVATION: Kind.RECEIVE_ACTIVATION,
        Kind.SEND_GRADIENT: Kind.RECEIVE_GRADIENT,
    }[send.kind]
    k = sum(it.kind is send.kind and it.peer == send.peer for it in plan[s][:i])
    receives = [j for j, it in enumerate(plan[send.peer]) if it.kind is kind and it.peer == s]
    return place, (send.peer, receives[k])


def lose(plan, rng, micro_batches, chunks):
    """A message, at both ends."""
    if found := both_ends(plan, rng):
        for s, i in found:
            del plan[s][i]
    return bool(found)


def send_again(plan, rng, micro_batches, chunks):
    if found := both_ends(plan, rng):
        for s, i in found:
            plan[s].insert(i, plan[s][i])
    return bool(found)


def send_another(plan, rng, micro_batches, chunks):
    """Another micro-batch's, and it is received as such."""
    if found := both_ends(plan, rng):
        s, i = found[0]
        m = other(range(micro_batches), plan[s][i].micro_batch, rng)
        for s, i in found:
            replace(plan[s], i, micro_batch=m)
    return bool(found)


def send_elsewhere(plan, rng, micro_batches, chunks):
    """To a stage that is not behind, or before; it receives it."""
    found = both_ends(plan, rng)
    if not found or len(plan) < 3:
        return False
    (s, i), (peer, j) = found
    to = rng.choice([it for it in range(len(plan)) if it not in (s, peer)])
    receive = plan[peer].pop(j)
    replace(plan[s], i, peer=to)
    plan[to].insert(rng.randrange(len(plan[to]) + 1), receive)
    return True


def rename(plan, rng, micro_batches, chunks):
    """Two micro-batches change names in all steps: all goes well, in another order of the sums."""
    one, two = rng.sample(range(micro_batches), 2)
    names = {one: two, two: one}
    for steps in plan:
        steps[:] = [
            it._replace(micro_batch=names.get(it.micro_batch, it.micro_batch)) for it in steps
        ]
    return True


def backward_reversed(plan, rng, micro_batches, chunks):
    """All backward passes and their messages in descending order, as in GPipe's paper."""
    for steps in plan:
        steps[:] = [
            it._replace(micro_batch=micro_batches - 1 - it.micro_batch)
            if it.micro_batch != ALL and it.kind.name != "FORWARD" and "ACTIV" not in it.kind.name
            else it
            for it in steps
        ]
    return True


def forward_first(plan, rng, micro_batches, chunks):
    """One more micro-batch goes forward, everywhere, before anything comes back."""
    before = [list(steps) for steps in plan]
    for steps in plan:
        forward = [it for it in steps if it.kind.name == "FORWARD" or "ACTIVATION" in it.kind.name]
        rest = [it for it in steps if it not in forward]
        steps[:] = _alternating(forward, chunks) + rest
    return plan != before


def _alternating(forward, chunks):
    """Receive, compute and send each in turn, as GPipe does; chunk by chunk."""
    order = {"RECEIVE_ACTIVATION": 0, "FORWARD": 1, "SEND_ACTIVATION": 2}
    return sorted(forward, key=lambda it: (it.chunk, it.micro_batch, order[it.kind.name]))


def shift(steps, i, rng, micro_batches):
    step = steps.pop(i)
    steps.insert(other(range(len(steps) + 1), i, rng), step)


def swap(steps, i, rng, micro_batches):
    j = rng.randrange(len(steps))
    steps[i], steps[j] = steps[j], steps[i]


def swap_chunks(plan, rng, micro_batches, chunks):
    """A step of another chunk."""
    if chunks == 1:
        return False
    s, i = pick(plan, rng)
    replace(plan[s], i, chunk=other(range(chunks), plan[s][i].chunk, rng))
    return True


MUTATIONS = {
    "drop": on_a_step(lambda steps, i, rng, m: steps.pop(i)),
    "double": on_a_step(lambda steps, i, rng, m: steps.insert(i, steps[i])),
    "repeat later": on_a_step(
        lambda steps, i, rng, m: steps.insert(rng.randrange(i, len(steps)) + 1, steps[i])
    ),
    "swap": on_a_step(swap),
    "shift": on_a_step(shift),
    "redirect": on_a_step(
        lambda steps, i, rng, m: replace(steps, i, peer=other(range(-1, 5), steps[i].peer, rng)),
        is_message,
    ),
    "renumber": on_a_step(
        lambda steps, i, rng, m: replace(
            steps, i, micro_batch=other(range(-2, m + 2), steps[i].micro_batch, rng)
        )
    ),
    "of none": on_a_step(
        lambda steps, i, rng, m: replace(steps, i, micro_batch=rng.choice([m, -2]))
    ),
    "another chunk": on_a_step(lambda steps, i, rng, m: replace(steps, i, chunk=9)),
    "another kind": on_a_step(
        lambda steps, i, rng, m: replace(steps, i, kind=other(Kind, steps[i].kind, rng))
    ),
    "half a backward pass": on_a_step(
        lambda steps, i, rng, m: replace(
            steps,
            i,
            kind=rng.choice([Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT])
            if steps[i].kind is Kind.BACKWARD
            else Kind.BACKWARD,
        ),
        lambda step: is_pass(step) and step.kind is not Kind.FORWARD,
    ),
    "all at once, too": on_a_step(
        lambda steps, i, rng, m: steps.append(PipelineStep(Kind.BACKWARD_WEIGHT, ALL))
    ),
    "lose": lose,
    "send again": send_again,
    "send another": send_another,
    "send elsewhere": send_elsewhere,
    "rename": rename,
    "backward reversed": backward_reversed,
    "chunks": swap_chunks,
    "forward first": forward_first,
}
#: Those that change no more than the place of a step.
PLACES = ("swap", "shift", "forward first")


def is_refuted(subject, plan, stages, micro_batches):
    try:
        prove(
            plan,
            micro_batches,
            subject.chunks,
            alive=subject.alive(stages, micro_batches),
            staleness=subject.late(stages),
        )
    except ScheduleError:
        return True
    return False


def is_right_after_all(subject, plan, stages, micro_batches):
    return is_right(
        plan,
        micro_batches,
        subject.chunks,
        alive=subject.alive(stages, micro_batches),
        late=subject.late(stages),
    )


@pytest.mark.one_in(3)
def test_every_mutant_is_refuted_or_right(subject):
    kinds = set()
    for number, (stages, micro_batches) in enumerate(SIZES):
        sound = subject.plan(stages, micro_batches)
        for name, mutate in MUTATIONS.items():
            rng = random.Random(f"{number} {name}")
            for _ in range(EACH):
                plan = [list(steps) for steps in sound]
                if not mutate(plan, rng, micro_batches, subject.chunks) or plan == sound:
                    continue
                right = is_right_after_all(subject, plan, stages, micro_batches)
                assert is_refuted(subject, plan, stages, micro_batches) != right, (name, plan)
                assert not right or name in PLACES, (name, plan)
                if not right:
                    kinds.add(name)
    allowed = {"chunks"} if subject.chunks == 1 else set()
    # All at once and GPipe's order are what such a schedule has; both are no mutants of it.
    if subject.deferred or subject.row.name == "gpipe":
        allowed |= {"forward first"}
    if subject.deferred:
        allowed |= {"half a backward pass"} - kinds
    missing = set(MUTATIONS) - kinds - allowed
    assert not missing
    assert len(kinds) >= 15


def changed(plan, s, i, **fields):
    mutant = [list(steps) for steps in plan]
    mutant[s][i] = mutant[s][i]._replace(**fields)
    return mutant


def test_each_single_step_matters(subject):
    """Not some of them: all, at one size; left out, doubled, of another micro-batch or stage."""
    stages, micro_batches = 3, 4
    plan = subject.plan(stages, micro_batches)
    for s, steps in enumerate(plan):
        for i, step in enumerate(steps):
            mutants = [
                [*plan[:s], steps[:i] + steps[i + 1 :], *plan[s + 1 :]],
                [*plan[:s], [*steps[:i], step, *steps[i:]], *plan[s + 1 :]],
                changed(plan, s, i, micro_batch=(step.micro_batch + 1) % micro_batches),
                changed(plan, s, i, chunk=step.chunk + 1),
            ]
            if is_message(step):
                mutants.append(changed(plan, s, i, peer=(step.peer + 1) % stages))
                mutants.append(changed(plan, s, i, peer=s))
            for mutant in mutants:
                assert is_refuted(subject, mutant, stages, micro_batches), mutant


def test_what_is_not_broken_is_not_refuted(subject):
    for stages, micro_batches in SIZES:
        plan = subject.plan(stages, micro_batches)
        assert not is_refuted(subject, plan, stages, micro_batches)
        assert is_right_after_all(subject, plan, stages, micro_batches)


@pytest.mark.parametrize("less", [0, 1])
def test_one_less_alive_is_refuted(subject, less):
    """The promise is the least that holds: with one less at any stage the prover is red."""
    stages, micro_batches = 4, 9
    plan = subject.plan(stages, micro_batches)
    for s in range(stages):
        alive = subject.alive(stages, micro_batches)
        alive[s] -= less
        try:
            prove(plan, micro_batches, subject.chunks, alive=alive)
        except ScheduleError as error:
            assert (less, error.stage) == (1, s)  # noqa: PT017
        else:
            assert not less
