"""The trace of a collective: every schedule for every p, the worked example, and broken plans."""

from __future__ import annotations

import functools
import operator

import pytest

from psrt.collective import ALGORITHMS, PHASES, SCHEDULES, Step
from psrt.collective.spec import all_reduce
from psrt.errors import ConfigError, ProtocolError
from psrt.explain.inputs import Example
from psrt.explain.trace import FOLDS, Content, trace_schedule
from psrt.partition import Span
from support.cases import each
from support.explanations import EXAMPLE, explained

NAMES = list(SCHEDULES)


def test_everything_in_the_registries_can_be_explained():
    assert list(SCHEDULES) == [*ALGORITHMS, *PHASES]


def numbers(size, n):
    return tuple(tuple((7 * rank + 3 * i) % 11 + 1 for i in range(n)) for rank in range(size))


def folded(values, op):
    return tuple(functools.reduce(FOLDS[op], column) for column in zip(*values, strict=True))


@each("n", [0, 1, 5, 36])
@each("size", range(1, 10))
@pytest.mark.parametrize("name", NAMES)
def test_rounds_and_messages_are_those_of_the_price(name, size, n):
    shown = explained(name, size, n)
    messages = [hop for hop in shown.trace.hops if not hop.local]
    assert shown.trace.rounds == shown.totals.price.rounds
    assert len(messages) == shown.totals.price.messages


@each("op", FOLDS)
@each("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_all_reduce_ends_with_the_fold_of_the_values(name, size, op):
    values = numbers(size, 7)
    shown = explained(name, example=Example(tuple(map(str, range(size))), values), op=op)
    expected = folded(values, op)
    if op == "mean":
        expected = tuple(value / size for value in expected)
    for rank in range(size):
        flat = [x for _, held in shown.result(rank) for x in held.numbers]
        assert flat == list(expected)


@pytest.mark.parametrize("size", [1, 2, 3, 6, 9])
@pytest.mark.parametrize("name", PHASES)
def test_every_phase_ends_with_what_it_owes(name, size):
    values = numbers(size, 20)
    shown = explained(name, example=Example(tuple(map(str, range(size))), values))
    total = folded(values, "sum")
    for rank, debts in enumerate(shown.trace.spec.owed):
        flat = [x for _, held in shown.result(rank) for x in held.numbers]
        expected = [
            x
            for span, source in debts
            for x in span.of(total if source is None else values[source])
        ]
        assert flat == expected


@pytest.mark.parametrize("root", range(5))
@pytest.mark.parametrize("name", [name for name, phase in PHASES.items() if phase.rooted])
def test_any_rank_can_be_the_root(name, root):
    assert explained(name, 5, root=root).root == root


def test_the_worked_example():
    shown = explained("ring", example=EXAMPLE, order=(0, 1, 3, 2))
    partial = {cell: [] for cell in range(4)}
    for hop in shown.trace.hops:
        if hop.combine:
            for cell, held in zip(hop.receive, hop.after, strict=True):
                partial[cell] += held.numbers
    assert partial == {0: [22, 34, 37], 1: [20, 26, 37], 2: [12, 13, 36], 3: [17, 31, 43]}
    for rank in range(4):
        assert [held.numbers for _, held in shown.result(rank)] == [(37,), (37,), (36,), (43,)]


def test_ranks_of_a_round_are_told_in_the_order_of_the_ring():
    shown = explained("ring", example=EXAMPLE, order=(0, 1, 3, 2))
    first = [(hop.source, hop.target) for hop in shown.trace.hops if hop.round == 1]
    assert first == [(0, 1), (1, 3), (3, 2), (2, 0)]


def test_products_of_many_digits_go_on_in_float64():
    values = ((10**17,), (10**17,), (2,))
    shown = explained("tree", example=Example(("A", "B", "C"), values), op="prod")
    assert shown.result(1)[0][1].numbers == (2e34,)


def test_bits_of_numbers_that_are_not_whole():
    example = Example(("A", "B"), ((1,), (2.5,)))
    with pytest.raises(ConfigError, match="xor is for integers, the example has other numbers"):
        explained("ring", example=example, op="xor")


def test_cells_follow_what_lands_elsewhere():
    # Rank 1 keeps what comes apart in its workspace; the answer comes back in two pieces, so the
    # workspace is cut where the vector is, though no span ends there.
    plan = [
        [
            Step.sending(1, Span(0, 4)),
            Step.receiving(1, Span(0, 1), combine=False),
            Step.receiving(1, Span(1, 4), combine=False),
        ],
        [
            Step.receiving(0, Span(4, 8), combine=False),
            Step.local(1, Span(4, 8), Span(0, 4), combine=True),
            Step.sending(0, Span(0, 1)),
            Step.sending(0, Span(1, 4)),
        ],
    ]
    trace = trace_schedule(plan, all_reduce(2, 4, workspace=4))
    assert trace.cells.spans == (Span(0, 1), Span(1, 4), Span(4, 5), Span(5, 8))
    assert trace.cells.in_vector == 2
    assert [(hop.round, hop.local, len(hop.send)) for hop in trace.hops] == [
        (1, False, 2), (1, True, 2), (2, False, 1), (3, False, 1),
    ]  # fmt: skip


def broken(name, size, n, change):
    """Return the error that a changed plan meets."""
    plan = SCHEDULES[name].plan(size, n)
    change(plan)
    with pytest.raises(ProtocolError) as caught:
        trace_schedule(plan, SCHEDULES[name].spec(size, n))
    return str(caught.value)


def copied_only(plan):
    plan[1][0] = plan[1][0]._replace(combine=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan[0].pop(), "deadlock"),
        (lambda plan: [steps.pop() for steps in plan], "expected the numbers of"),
        (copied_only, "expected the numbers of"),
        (
            lambda plan: operator.setitem(plan[0], 0, plan[0][0]._replace(send=Span(0, 1))),
            "elements come",
        ),
    ],
)
def test_a_plan_that_is_wrong_is_not_told(change, words):
    assert words in broken("ring", 3, 6, change)


def test_a_contribution_that_would_count_twice_is_not_told():
    plan = [[Step(1, Span(0, 2), 1, Span(0, 2), True)] * 2] * 1
    plan.append([Step(0, Span(0, 2), 0, Span(0, 2), True)] * 2)
    with pytest.raises(ProtocolError, match="count twice"):
        trace_schedule(plan, ALGORITHMS["ring"].spec(2, 2))


def test_what_is_undefined_is_not_combined():
    task = PHASES["broadcast"].spec(2, 2)
    plan = [[Step.sending(1, Span(0, 2))], [Step.receiving(0, Span(0, 2), combine=True)]]
    with pytest.raises(ProtocolError, match="undefined"):
        trace_schedule(plan, task)


def test_the_lower_rank_s_operand_comes_first():
    def minus(one, other):
        return one - other

    task = ALGORITHMS["ring"].spec(2, 1)
    plan = [[Step(1, Span(0, 1), 1, Span(0, 1), True)], [Step(0, Span(0, 1), 0, Span(0, 1), True)]]
    trace = trace_schedule(plan, task, [[10], [3]], minus)
    assert [rank[0] for rank in trace.end] == [Content(0b11, (7,))] * 2
