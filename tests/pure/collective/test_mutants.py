"""The prover is tested by breaking what it proves: every mutant is refuted, or is right after all.

A mutant is a sound plan with one seeded change. It is *equivalent* where it still computes what the
task asks for, by the simulator of numbers alone, which shares nothing with the prover: random whole
numbers of 62 bits, whose sums agree by accident once in 10**18 times, garbage wherever nothing is
defined, rendezvous sends, and three random orders in which the messages go through. Everything owed
must be right in all, and floats must come to the same bits on all ranks that are owed the
same.

Only swapped steps are ever equivalent: where neither needs the other, as two messages to different
children of a tree, or where the owner of a sum adds in another order and the others copy it.

The table of what was refuted is printed by ``python -m pytest -s`` on this file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from psrt.collective import Step
from psrt.collective.analysis.proof import prove
from psrt.collective.analysis.rendezvous import ScheduleError
from psrt.core.partition import Span
from support.numbers import SUBJECTS, expected, perform

every_subject = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)

SIZES = (2, 3, 5, 6, 8)
#: Per kind and size, of which 5 each make 50; fewer where a schedule combines nothing, or a rank
#: has but one step.
EACH = 2


class Mutant(NamedTuple):
    kind: str
    size: int
    what: str
    plan: list[list[Step]]


# Each mutation changes ``plan`` in place and tells what it did, or returns None if it cannot.


def pick(plan, rng, suits=lambda rank, step: True):
    """Return the place of a random step that ``suits``: (rank, index, step), or None."""
    places = [
        (rank, i, step)
        for rank, steps in enumerate(plan)
        for i, step in enumerate(steps)
        if suits(rank, step)
    ]
    return places[rng.integers(len(places))] if places else None


def other_end(plan, rank, index):
    """Return (rank, index) of the receive that takes what this step sends: the k-th of each."""
    to = plan[rank][index].send_to
    k = sum(step.send_to == to for step in plan[rank][:index])
    return to, [j for j, step in enumerate(plan[to]) if step.receive_from == rank][k]


def swap(plan, rng, n):
    if place := pick(plan, rng, lambda rank, step: len(plan[rank]) > 1):
        rank = place[0]
        i, j = sorted(int(x) for x in rng.choice(len(plan[rank]), 2, replace=False))
        plan[rank][i], plan[rank][j] = plan[rank][j], plan[rank][i]
        return f"rank {rank} with steps {i} and {j} swapped"
    return None


def moved(span, rng, n):
    by = int(rng.choice([-2, -1, 1, 2]))
    return Span(span.start + by, span.stop + by)


def shift(plan, rng, n):
    """Move what is sent, or where it lands, but not both."""
    if place := pick(plan, rng, lambda rank, step: step.send.size or step.receive.size):
        rank, i, step = place
        halves = [half for half in ("send", "receive") if getattr(step, half).size]
        half = halves[rng.integers(len(halves))]
        plan[rank][i] = step._replace(**{half: moved(getattr(step, half), rng, n)})
        return f"rank {rank}, step {i}: {half} shifted to {getattr(plan[rank][i], half)}"
    return None


def shift_both(plan, rng, n):
    """Move a message at both ends alike, so that only what it contains can tell."""
    place = pick(plan, rng, lambda rank, step: step.send_to not in (None, rank) and step.send.size)
    if not place:
        return None
    rank, i, step = place
    to, j = other_end(plan, rank, i)
    by = int(rng.choice([-1, 1]))
    by = by if step.send.start + by >= 0 and step.send.stop + by <= n else -by
    for end, k, half in ((rank, i, "send"), (to, j, "receive")):
        span = getattr(plan[end][k], half)
        plan[end][k] = plan[end][k]._replace(**{half: Span(span.start + by, span.stop + by)})
    return f"rank {rank}, step {i}: shifted by {by} on both ends"


def double(plan, rng, n):
    """Repeat what is combined, right after itself: a message at both ends, or a local step.

    A copy that is repeated is harmless, see below.
    """
    return _repeat(plan, rng, combine=True)


def _repeat(plan, rng, *, combine):
    def suits(rank, step):
        if step.send_to is None:
            return False
        to, j = other_end(plan, rank, plan[rank].index(step)) if step.send_to != rank else (0, 0)
        return (step if step.send_to == rank else plan[to][j]).combine == combine

    if not (place := pick(plan, rng, suits)):
        return None
    rank, i, step = place
    if step.send_to == rank:
        plan[rank].insert(i, step)
        return f"rank {rank}: local step {i} twice, {step}"
    to, j = other_end(plan, rank, i)
    plan[rank].insert(i + 1, Step.sending(to, step.send))
    plan[to].insert(j + 1, Step.receiving(rank, plan[to][j].receive, combine=combine))
    return f"rank {rank}, step {i}: sent twice to {to}, {step}"


def redirect(plan, rng, n):
    """Send to, or receive from, another rank; itself is one, too."""
    if place := pick(plan, rng):
        rank, i, step = place
        halves = [half for half in ("send_to", "receive_from") if getattr(step, half) is not None]
        half = halves[rng.integers(len(halves))]
        wrong = [r for r in range(len(plan)) if r != getattr(step, half)]
        plan[rank][i] = step._replace(**{half: int(rng.choice(wrong))})
        return f"rank {rank}, step {i}: {half} is {getattr(plan[rank][i], half)}"
    return None


MUTATIONS = {m.__name__: m for m in (swap, shift, shift_both, double, redirect)}


def length(name, size):
    """Elements such that every chunk and block has some, and not all as many."""
    return 2 * size * size + 3 if name == "all-to-all" else 6 * size + 3


def mutants(subject):
    """Return the seeded mutants of ``subject``."""
    made = []
    for number, size in enumerate(SIZES):
        n = length(subject.name, size)
        for kind, (name, mutate) in enumerate(MUTATIONS.items()):
            rng = np.random.default_rng([number, kind])
            for _ in range(EACH):
                plan = subject.plan(size, n)
                if what := mutate(plan, rng, n):
                    made.append(Mutant(name, size, what, plan))
    return made


def is_refuted(subject, mutant):
    try:
        prove(subject.spec(mutant.size, length(subject.name, mutant.size)), mutant.plan)
    except ScheduleError:
        return True
    return False


def is_equivalent(subject, mutant):
    """Whether numbers come out right, as the top of this file defines it."""
    size, n = mutant.size, length(subject.name, mutant.size)
    task = subject.spec(size, n)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        numbers = list(rng.integers(-(2**61), 2**61, (size, n)))
        floats = list(rng.standard_normal((size, n)).astype(np.float32))
        try:
            got = perform(task, mutant.plan, numbers, rng=rng).buffers
            rounded = perform(task, mutant.plan, floats, rng=rng).buffers
        except AssertionError:
            return False
        bits = {}
        for rank, owed in enumerate(expected(task, numbers)):
            for (span, due), (_, source) in zip(owed, task.owed[rank], strict=True):
                mine = span.of(rounded[rank]).tobytes()
                if bits.setdefault((span, source), mine) != mine:
                    return False
                if not np.array_equal(span.of(got[rank]), due):
                    return False
    return True


@every_subject
def test_every_mutant_is_refuted_or_equivalent(subject, record_property):
    made = mutants(subject)
    assert len(made) >= 35
    survivors = [m for m in made if not is_refuted(subject, m)]
    wrong = [m for m in survivors if not is_equivalent(subject, m)]
    assert not wrong, [(m.size, m.what) for m in wrong]
    assert {m.kind for m in survivors} <= {"swap"}
    record_property("mutants", [subject.name, len(made) - len(survivors), len(survivors)])


@every_subject
def test_each_single_step_matters(subject):
    """Left out, or copying what is to be combined, or the other way round: all, for 5 ranks."""
    n = length(subject.name, 5)
    task, plan = subject.spec(5, n), subject.plan(5, n)
    for rank, steps in enumerate(plan):
        for i, step in enumerate(steps):
            for instead in (
                [],
                *([[step._replace(combine=not step.combine)]] * (step.receive_from is not None)),
            ):
                mine = [*steps[:i], *instead, *steps[i + 1 :]]
                with pytest.raises(ScheduleError):
                    prove(task, [*plan[:rank], mine, *plan[rank + 1 :]])


@every_subject
def test_what_is_not_broken_is_not_refuted_nor_is_a_copy_that_is_sent_twice(subject):
    """The prover does not refute what is merely wasteful."""
    for seed, size in enumerate(SIZES):
        plan = subject.plan(size, length(subject.name, size))
        assert is_equivalent(subject, Mutant("none", size, "", plan))
        if what := _repeat(plan, np.random.default_rng(seed), combine=False):
            mutant = Mutant("again", size, what, plan)
            assert not is_refuted(subject, mutant), what
            assert is_equivalent(subject, mutant), what
