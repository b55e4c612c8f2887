"""A worker's side of the parameter server, against scripted answers."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.errors import ProtocolError
from psrt.messages import Leave, Params, Push
from psrt.partition import Span, even_spans
from psrt.runtime.strategies.base import Step, StepResult, WaitBreakdown
from psrt.runtime.strategies.push_pull import PushPull
from psrt.transport import NO_PAYLOAD, RoleMap, drive
from psrt.transport.port import CONTROL, GRADIENT


class Scripted:
    """Worker 1, at rank 4, of servers at the ranks from 0 on."""

    rank = 4

    def __init__(self, shards, answers=()):
        servers = tuple(range(shards))
        self.role_map = RoleMap(
            6, workers=(shards + 5, 4), servers=servers, spans=even_spans(6, shards)
        )
        self.gradient = np.array([3, 0, 4, 0, 0, 0, 99, 99, 99], np.float32)
        self.sent, self.answers, self.waiting_for = [], list(answers), None
        self.time = 0.0

    def now(self):
        return self.time

    def send(self, to, message, region=NO_PAYLOAD):
        self.sent.append((to, message, region))

    async def receive(self):
        self.time += 1.0
        return self.answers.pop(0)


def answer(shard, version, clock=1, staleness=0):
    return Params(shard, version, clock, staleness)


def step(port, *, clock=0, samples=8, strategy=None, **knobs):
    strategy = strategy or PushPull(port, **knobs)
    return strategy, drive(strategy.step(Step(clock, samples, 0.25)))


def test_one_shard():
    port = Scripted(1, [answer(0, 7, clock=1, staleness=4), answer(0, 9, clock=2, staleness=1)])
    strategy, outcome = step(port)
    assert outcome[:5] == StepResult(1, 4, 1, 4, 0)[:5]
    assert port.sent == [(0, Push(1, 0, 0, 8, 0.25), GRADIENT)]
    _, outcome = step(port, clock=1, strategy=strategy)
    assert outcome[:5] == StepResult(2, 1, 1, 1, 0)[:5]
    assert port.sent[1][1] == Push(1, 1, 7, 8, 0.25)


def test_a_wait_is_told_by_the_last_answer():
    """A second passes with every answer; of the held part the last one says whom it was for."""
    first, last = answer(1, 1)._replace(held=0.9), answer(0, 1)._replace(held=1.5)
    for awaited, expected in (
        (-1, WaitBreakdown(0.0, 1.5, 0.5)),
        (2, WaitBreakdown(1.5, 0.0, 0.5, waiting_for=2)),
    ):
        _, outcome = step(Scripted(2, [first, last._replace(awaited=awaited)]))
        assert outcome.waiting == expected
    _, outcome = step(Scripted(1, [answer(0, 1)._replace(held=9.0)]))
    assert outcome.waiting == WaitBreakdown(server=1.0)  # no longer than this worker waited


def test_gaps_are_handed_on_where_they_were_measured():
    given = [answer(0, 1)._replace(gap=0.25), answer(1, 1)._replace(gap=0.5), answer(2, 1)]
    _, outcome = step(Scripted(3, given))
    assert (outcome.gap_sum, outcome.gap_count) == (0.75, 2)
    _, outcome = step(Scripted(1, [answer(0, 1)]))
    assert (outcome.gap_sum, outcome.gap_count) == (0.0, 0)


def test_every_shard_has_a_version_of_its_own():
    port = Scripted(3, [answer(2, 5, staleness=1), answer(0, 3, staleness=6), answer(1, 9)])
    strategy, outcome = step(port)
    assert outcome[:5] == StepResult(1, 7, 3, 6, skew=6)[:5]
    port.sent.clear()
    port.answers = [answer(i, 10, clock=2) for i in range(3)]
    step(port, clock=1, strategy=strategy)
    assert [(to, push.version) for to, push, _ in port.sent] == [(0, 3), (1, 9), (2, 5)]


def test_a_push_without_samples_has_no_payload():
    port = Scripted(2, [answer(0, 1), answer(1, 1)])
    step(port, samples=0)
    assert [(region, push.samples) for _, push, region in port.sent] == [(NO_PAYLOAD, 0)] * 2


def test_backups_may_carry_it_further():
    port = Scripted(1, [answer(0, 6, clock=6, staleness=6)])
    assert step(port)[1].clock == 6


def test_a_shard_that_is_behind_is_read_again_until_all_are_at_one_clock():
    script = [answer(1, 1, clock=1), answer(0, 3, clock=3, staleness=3), answer(2, 3, clock=3)]
    script += [answer(1, 4, clock=4), answer(2, 5, clock=5), answer(0, 5, clock=5)]
    script += [answer(1, 5, clock=5)]
    port = Scripted(3, script)
    strategy, outcome = step(port)
    assert (
        outcome[:5] == StepResult(5, 3, 3, 3, skew=0)[:5]
    )  # τ is that of the push with the gradient
    again = [(to, push.clock, push.version, push.samples, r) for to, push, r in port.sent[3:]]
    assert again == [
        (1, 3, 1, 0, NO_PAYLOAD),
        (0, 4, 3, 0, NO_PAYLOAD),
        (2, 4, 3, 0, NO_PAYLOAD),
        (1, 5, 4, 0, NO_PAYLOAD),
    ]
    assert strategy.versions == [5, 5, 5]
    assert port.answers == []


def test_leaving_is_said_to_every_shard():
    port = Scripted(2)
    drive(PushPull(port).leave(17))
    assert port.sent == [(0, Leave(1, 17, 0), NO_PAYLOAD), (1, Leave(1, 17, 1), NO_PAYLOAD)]


#: Three layers, and four shards: the first two are of the first layer.
LAYERS = (Span(9, 12), Span(6, 9), Span(0, 6))


class Streaming(Scripted):
    """Worker 1 of one server with four shards; notes when it was pushed to."""

    def __init__(self, answers=()):
        super().__init__(1, answers)
        self.role_map = RoleMap(12, workers=(5, 4), servers=(0,) * 4, spans=even_spans(12, 4))
        self.gradient = np.ones(12 + CONTROL, np.float32)
        self.shares = []

    def amid(self, share, action):
        self.shares.append(share)
        action()


def test_a_shard_is_pushed_as_soon_as_all_of_it_is_ready():
    port = Streaming([answer(shard, 1) for shard in (3, 2, 0, 1)])
    strategy = PushPull(port, spans=LAYERS)
    strategy.begin(Step(0, 8, 0.25))
    pushed = []
    for i in range(3):
        port.time += 1.0
        strategy.ready(i)
        pushed.append([push.shard for _, push, _ in port.sent])
    # What the last layer completes is pushed by ``step``, after injected delays.
    assert pushed == [[3], [3, 2], [3, 2]]
    # Of three products a layer, but two of the first one.
    assert port.shares == [18 / 30, 24 / 30]
    outcome = drive(strategy.step(Step(0, 8, 0.25)))
    assert [push.shard for _, push, _ in port.sent] == [3, 2, 1, 0]
    assert {(push.clock, push.samples, region) for _, push, region in port.sent} == {
        (0, 8, GRADIENT)
    }
    assert outcome.clock == 1
    assert sum(outcome.waiting[:4]) == 4.0  # since the end of the step


def test_what_was_pushed_early_is_pushed_once_in_every_step():
    port = Streaming([answer(shard, c, clock=c) for c in (1, 2) for shard in range(4)])
    strategy = PushPull(port, spans=LAYERS)
    for clock, samples in ((0, 8), (1, 0)):
        strategy.begin(Step(clock, samples, 0.25))
        for i in range(3 if samples else 0):
            strategy.ready(i)
        drive(strategy.step(Step(clock, samples, 0.25)))
    assert [(push.clock, push.shard) for _, push, _ in port.sent] == [
        (clock, shard) for clock in (0, 1) for shard in (3, 2, 1, 0)
    ]


@pytest.mark.parametrize(
    ("spans", "said"), [((), 0), (LAYERS, 0), (LAYERS, 1), (LAYERS, 2), (LAYERS, 3)]
)
def test_all_workers_push_in_one_order_however_many_parts_they_said_to_be_ready(said, spans):
    """Else each of two workers could withhold the shard whose answer the other one waits for."""
    port = Streaming([answer(shard, 1) for shard in range(4)])
    strategy = PushPull(port, spans=spans)
    strategy.begin(Step(0, 8, 0.25))
    for i in range(said):
        strategy.ready(i)
    drive(strategy.step(Step(0, 8, 0.25)))
    assert [push.shard for _, push, _ in port.sent] == [3, 2, 1, 0]


def test_parts_that_come_in_another_order_are_refused():
    strategy = PushPull(Streaming(), spans=LAYERS)
    strategy.begin(Step(0, 8, 0.25))
    with pytest.raises(ProtocolError, match="span 1 of its gradient is ready, expected span 0"):
        strategy.ready(1)


def test_a_gradient_that_comes_as_a_whole_or_is_for_one_shard_is_pushed_at_the_end():
    assert PushPull(Streaming()).ready is None
    assert PushPull(Streaming(), spans=(Span(0, 12),)).ready is None
    assert PushPull(Scripted(1), spans=(Span(3, 6), Span(0, 3))).ready is None


def test_anything_but_parameters_is_refused():
    port = Scripted(1, [Leave(0, 0)])
    with pytest.raises(ProtocolError, match=r"worker 1 was sent Leave.*, expected parameters"):
        step(port)


def test_it_says_whom_it_waits_for():
    port = Scripted(2, [answer(0, 1, clock=8), answer(1, 1, clock=8)])
    strategy, _ = step(port, clock=7)
    for who in ("rank 0, 1", "worker 1", "clock 7"):
        assert who in port.waiting_for()
    del strategy  # as a run ends, while its ranks still wait for one another
    assert port.waiting_for() == "a message"
