"""The trace of a collective: every schedule, the worked example, bounds, and broken plans."""

from __future__ import annotations

import functools
import operator

import pytest

from psrt.collective import ALGORITHMS, PHASES, SCHEDULES, Step
from psrt.collective.spec import all_reduce
from psrt.core.errors import ConfigError, ProtocolError
from psrt.core.partition import Span
from psrt.views.explain.explanation import least
from psrt.views.explain.inputs import Example, rank_of, read_example, read_order
from psrt.views.explain.trace import FOLDS, Content, trace_schedule
from support.cases import each
from support.explanations import EXAMPLE, explained


@each("n", [0, 1, 36])
@each("size", [1, 2, 3, 5, 8, 9])
@each("name", SCHEDULES)
def test_rounds_and_messages_are_those_of_the_price(name, size, n):
    shown = explained(name, size, n)
    messages = [hop for hop in shown.trace.hops if not hop.local]
    assert shown.trace.rounds == shown.totals.price.rounds
    assert len(messages) == shown.totals.price.messages


@each("op", FOLDS)
@each("size", [1, 3, 8])
@each("name", (*ALGORITHMS, *PHASES))
def test_every_rank_ends_with_what_it_is_owed(name, size, op):
    if name in PHASES and op != "sum":
        return
    values = tuple(tuple((7 * rank + 3 * i) % 11 + 1 for i in range(7)) for rank in range(size))
    shown = explained(name, example=Example(tuple(map(str, range(size))), values), op=op)
    total = [functools.reduce(FOLDS[op], column) for column in zip(*values, strict=True)]
    if op == "mean":
        total = [value / size for value in total]
    for rank, debts in enumerate(shown.trace.spec.owed):
        flat = [x for _, held in shown.result(rank) for x in held.numbers]
        owed = [(span, total if source is None else values[source]) for span, source in debts]
        assert flat == [x for span, numbers in owed for x in span.of(numbers)]


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


@each(("change", "words"), [
    (lambda plan: plan[0].pop(), "deadlock"),
    (lambda plan: [steps.pop() for steps in plan], "expected the numbers of"),
    (lambda plan: operator.setitem(plan[1], 0, plan[1][0]._replace(combine=False)),
     "expected the numbers of"),
    (lambda plan: operator.setitem(plan[0], 0, plan[0][0]._replace(send=Span(0, 1))),
     "elements come"),
])  # fmt: skip
def test_a_plan_that_is_wrong_is_not_told(change, words):
    plan = SCHEDULES["ring"].plan(3, 6)
    change(plan)
    with pytest.raises(ProtocolError, match=words):
        trace_schedule(plan, SCHEDULES["ring"].spec(3, 6))


def test_the_lower_rank_s_operand_comes_first():
    def minus(one, other):
        return one - other

    task = ALGORITHMS["ring"].spec(2, 1)
    plan = [[Step(1, Span(0, 1), 1, Span(0, 1), True)], [Step(0, Span(0, 1), 0, Span(0, 1), True)]]
    trace = trace_schedule(plan, task, [[10], [3]], minus)
    assert [rank[0] for rank in trace.end] == [Content(0b11, (7,))] * 2


@each("size", [1, 2, 3, 7, 8, 16])
@each("name", SCHEDULES)
def test_no_schedule_undercuts_its_bounds(name, size):
    totals = explained(name, size, 16 * 7 * 9 * 16).totals
    assert totals.price.rounds >= totals.least.rounds
    assert totals.moved >= totals.least.moved * (1 - 1e-12)
    assert totals.price.combined_max >= totals.least.combined * (1 - 1e-12)
    assert totals.price.seconds >= totals.bounds.seconds * (1 - 1e-12)
    assert totals.ratio >= 1 - 1e-12


def test_bounds_are_met_where_a_schedule_is_known_to_meet_them():
    for name in ("ring", "reduce-scatter", "all-gather", "all-to-all", "scatter"):
        totals = explained(name, 8 if name == "scatter" else 7, 16 * 7 * 7).totals
        assert totals.moved == pytest.approx(totals.least.moved)
    for name in ("butterfly", "halving-doubling", "broadcast", "reduce"):
        totals = explained(name, 8).totals
        assert totals.price.rounds == totals.least.rounds * (1 + (name == "halving-doubling"))
    assert least(SCHEDULES["scatter"], 4, 1600).moved == 1200
    assert least(SCHEDULES["reduce"], 4, 1600).combined == 1200


# Files with examples, and orders of ranks.


@each("text", [
    "A, 1, 2.5\r\nB, -3, 4",
    "# a remark\n\nA,+1,2.5\n , \nB,-3,04\n",
    "\ufeffA,1,25e-1\nB,-3,4\n",
])  # fmt: skip
def test_a_line_per_rank(tmp_path, text):
    (tmp_path / "example.csv").write_text(text)
    example = read_example(str(tmp_path / "example.csv"))
    assert example == Example(("A", "B"), ((1, 2.5), (-3, 4)))
    assert example.n == 2
    assert [type(x) for x in example.values[0]] == [int, float]


@each(("text", "message"), [
    ("\n# nothing\n", "{path} is empty, expected a line per rank: its name, then its numbers"),
    ("A;1;2\n", "{path} has names without numbers, expected lines such as A,17,13,2"),
    ("A,1\n\nB,2,3\n", "{path}, line 3: rank 'B' has 2 numbers, rank 'A' has 1 number"),
    ("A,1,\n", "{path}, line 1: '' is not a number"),
    ("A,nan\n", "{path}, line 1: 'nan' is not a finite number"),
    ("A,1\nA,2\n", "{path}, line 2: a second rank 'A'"),
    ("A\x01,1\n", "{path}, line 1: 'A\\x01' cannot be the name of a rank"),
])  # fmt: skip
def test_files_that_will_not_do(tmp_path, text, message):
    path = tmp_path / "example.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_example(str(path))
    assert str(caught.value) == message.format(path=path)


def test_orders_are_of_every_rank_once():
    assert read_order("A,B,D,C", "ABCD") == (0, 1, 3, 2)
    assert read_order(" 1, 0 ", ["0", "1"]) == (1, 0)
    for text, message in (
        ("A,B", "order leaves out C, expected every rank once"),
        ("A,B,B", "order names 'B' twice, expected every rank once"),
        ("A,B,X", "order names 'X', the ranks are A, B, C"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}$"):
            read_order(text, list("ABC"))
    with pytest.raises(ConfigError, match=r"root names 'nod1' \(did you mean node1\?\)"):
        rank_of("nod1", ["node1", "node2"], "root")
