"""Broken schedules must be refuted, or the tests of the sound ones say nothing."""

import numpy as np
import pytest

from psrt.collective import ALGORITHMS, Step
from psrt.partition import Span

CASES = [(name, size) for name in ALGORITHMS for size in (2, 3, 4, 5, 8)]
N = 16

broken = pytest.mark.parametrize(("name", "size"), CASES)


def schedules(name, size):
    return [list(ALGORITHMS[name](rank, size, N)) for rank in range(size)]


def places(name, size):
    """Return where each step is: (rank, index)."""
    return [(r, i) for r, steps in enumerate(schedules(name, size)) for i in range(len(steps))]


@pytest.fixture
def refuted(contributions):
    def check(mutant):
        try:
            counts = contributions(mutant, N)
        except AssertionError:
            return True
        return not (counts == 1).all()

    return check


@broken
def test_sound_schedules_are_not_refuted(refuted, name, size):
    assert not refuted(schedules(name, size))


@broken
def test_a_dropped_step(refuted, name, size):
    for rank, i in places(name, size):
        mutant = schedules(name, size)
        del mutant[rank][i]
        assert refuted(mutant), (rank, i)


def moved(span):
    return Span(span.start + 1, span.stop + 1) if span.stop < N else Span(0, span.size - 1)


@broken
def test_a_shifted_span_at_one_end(refuted, name, size):
    for rank, i in places(name, size):
        mutant = schedules(name, size)
        step = mutant[rank][i]
        field = "send" if step.send_to is not None else "receive"
        mutant[rank][i] = step._replace(**{field: moved(getattr(step, field))})
        assert refuted(mutant), (rank, i)


def messages(plan):
    """Pair the ends of every message: k-th send of a to b with k-th receive of b from a."""
    for rank, steps in enumerate(plan):
        for i, step in enumerate(steps):
            if step.send_to is None:
                continue
            k = sum(s.send_to == step.send_to for s in steps[:i])
            peer = plan[step.send_to]
            ends = [j for j, s in enumerate(peer) if s.receive_from == rank]
            yield rank, i, step.send_to, ends[k]


@broken
def test_a_shifted_span_at_both_ends(refuted, name, size):
    """The ends agree, so that only counting the contributions can tell."""
    plan = schedules(name, size)
    for sender, i, receiver, j in messages(plan):
        mutant = schedules(name, size)
        span = moved(plan[sender][i].send)
        mutant[sender][i] = mutant[sender][i]._replace(send=span)
        mutant[receiver][j] = mutant[receiver][j]._replace(receive=span)
        assert refuted(mutant), (sender, i)


@broken
def test_a_doubled_combine(refuted, name, size):
    """The message is sent again, and what came is added a second time."""
    plan = schedules(name, size)
    combines = [m for m in messages(plan) if plan[m[2]][m[3]].combine]
    assert combines
    for sender, i, receiver, j in combines:
        mutant = schedules(name, size)
        span = plan[sender][i].send
        # Both ends repeat it right after the step that it belongs to.
        mutant[sender].insert(i + 1, Step.sending(receiver, span))
        mutant[receiver].insert(j + 1, Step.receiving(sender, span, combine=True))
        assert refuted(mutant), (sender, i)


@broken
def test_combine_and_copy_confused(refuted, name, size):
    for rank, i in places(name, size):
        mutant = schedules(name, size)
        step = mutant[rank][i]
        if step.receive_from is not None:
            mutant[rank][i] = step._replace(combine=not step.combine)
            assert refuted(mutant), (rank, i)


def test_a_wrong_peer(refuted):
    for name, size in CASES[1:]:
        if size == 2:
            continue
        for rank, i in places(name, size):
            mutant = schedules(name, size)
            step = mutant[rank][i]
            if step.send_to is not None:
                wrong = next(r for r in range(size) if r not in (rank, step.send_to))
                mutant[rank][i] = step._replace(send_to=wrong)
                assert refuted(mutant), (name, rank, i)


def test_blocking_sends_in_a_circle_deadlock(simulate):
    """Each sends before it receives: fine where sends are buffered, not under rendezvous."""
    span = Span(0, 1)
    circle = [
        [Step.sending((r + 1) % 3, span), Step.receiving((r - 1) % 3, span, combine=True)]
        for r in range(3)
    ]
    with pytest.raises(AssertionError, match="deadlock"):
        simulate(circle, [np.zeros(1)] * 3)


def test_overwriting_what_is_being_sent(simulate):
    span = Span(0, 1)
    swap = [[Step(1 - r, span, 1 - r, span, False)] for r in range(2)]
    with pytest.raises(AssertionError, match="overwrites"):
        simulate(swap, [np.zeros(1)] * 2)


def test_ends_that_differ_are_named(simulate):
    plan = [[Step.sending(1, Span(0, 2))], [Step.receiving(0, Span(0, 1), combine=True)]]
    with pytest.raises(AssertionError, match=r"mismatch: rank 0 .* rank 1"):
        simulate(plan, [np.zeros(2)] * 2)
