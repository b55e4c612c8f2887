"""A server and a worker of it, each against a scripted port."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from psrt.config.modes import SSP, Async, Sync
from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Params, Push
from psrt.core.partition import Span, even_spans
from psrt.history.folds.worker import CAUSES
from psrt.optim import Schedule
from psrt.optim.table import Always, Sgd
from psrt.runtime.server import Server
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.updater import Updater
from psrt.sync import policy_for
from psrt.transport import NO_PAYLOAD, RoleMap, drive
from psrt.transport.port import CONTROL, GRADIENT
from support.cases import each

# --- the server ---------------------------------------------------------------------------------


class ServerPort:
    """Rank 0 serves shards of a parameter each to workers 0 and 1 at ranks 1 and 2.

    Gradients are 1 in the first shard and 11 in the second.
    """

    rank, apply_s, landings = 0, None, {}

    def __init__(self, script, shards=1):
        spans = even_spans(shards, shards)
        self.role_map = RoleMap(shards, workers=(1, 2), servers=(0,) * shards, spans=spans)
        self.versions = {i: [np.zeros(1, np.float32) for _ in range(3)] for i in range(shards)}
        self.script, self.sent, self.waiting_for = list(script), [], None
        self.time = 0.0  # a second passes with every message

    def now(self):
        return self.time

    def bytes_of(self, shard):
        return 640 + shard, 0

    def payload(self, shard, worker):
        return np.full(1, 1 + 10 * shard, np.float32)

    def in_flight(self, to, shard):
        return False

    async def receive(self):
        self.time += 1.0
        return self.script.pop(0)

    async def until(self, done, waiting_for):
        assert done()

    def send(self, to, message, region=NO_PAYLOAD):
        self.sent.append((to, message, region))


def push(worker, clock, version, samples=4):
    return Push(worker, clock, version, samples, 0.0)


def server_of(port, mode, late=math.inf):
    shards = []
    for number, buffers in port.versions.items():
        n = buffers[0].size
        shard = Shard(
            buffers,
            np.zeros(n, np.float32),
            Updater(n, Sgd().make(n), Schedule(Always(), 1.0, epochs=1)),
            payload=partial(port.payload, number),
            workers=2,
            by_samples=mode.rounds,
        )
        shards.append(ShardServer(port, number, shard, policy_for(mode, 2, late=late)))
    return Server(port, shards)


def serve(mode, *script, shards=1, late=math.inf):
    port = ServerPort(script, shards)
    server = server_of(port, mode, late)
    drive(server.run())
    return server, port


LEAVES = (Leave(0, 9), Leave(1, 9))


def test_a_push_is_answered_with_the_version_it_made_and_the_staleness_it_met():
    server, port = serve(
        Async(), push(0, 0, 0), push(0, 1, 1), push(1, 0, 0), push(0, 2, 2), *LEAVES
    )
    assert [(to, message) for to, message, _ in port.sent] == [
        (1, Params(0, 1, 1, 0)),
        (1, Params(0, 2, 2, 0)),
        (2, Params(0, 3, 1, 2)),
        (1, Params(0, 4, 3, 1)),
    ]
    [it] = server.shards
    assert it.shard.theta.tolist() == [-4.0]
    assert it.shard.counts.stats.histogram == [2, 1, 1]
    server, port = serve(Async(), push(0, 0, 0), push(1, 0, 0), *LEAVES, late=0)
    stats = server.shards[0].shard.counts.stats  # a drop is counted, and answered
    assert (stats.dropped, server.shards[0].shard.version, len(port.sent)) == (1, 1, 2)


def test_an_answer_says_how_long_it_was_held_and_for_whom():
    _, port = serve(SSP(0), push(0, 0, 0), push(1, 0, 0), *LEAVES)
    assert [message[:4] for _, message, _ in port.sent] == [(0, 2, 1, 0), (0, 2, 1, 1)]
    assert [(m.held, m.awaited) for _, m, _ in port.sent] == [(1.0, 1), (0.0, -1)]
    _, port = serve(Sync(), push(1, 0, 0), Leave(0, 0), Leave(1, 1))
    assert [(m.held, m.awaited) for _, m, _ in port.sent] == [(1.0, 0)]


def test_each_shard_of_a_server_decides_alone():
    pushes = [push(0, 0, 0)._replace(shard=1), push(1, 0, 0)._replace(shard=1), push(0, 0, 0)]
    leaves = [Leave(worker, 1, shard) for shard in (1, 0) for worker in (1, 0)]
    server, port = serve(Sync(), *pushes, *leaves, shards=2)
    # The second shard's round is complete, while that of the first waits until worker 1 leaves.
    assert [(to, m.shard, m.version, m.awaited) for to, m, _ in port.sent] == [
        (1, 1, 1, 1),
        (2, 1, 1, -1),
        (1, 0, 1, 1),
    ]
    assert [it.shard.theta.tolist() for it in server.shards] == [[-1.0], [-11.0]]
    assert not any(it.policy.live for it in server.shards)


@each(
    ("script", "waits"),
    [
        ([], "shards 0, 1 at version 0: a push of worker 0 (rank 1, clock 0), 1 (rank 2, clock 0)"),
        (  # of the shard that somebody has not left
            [Leave(0, 0, 0), Leave(1, 0, 0), push(0, 0, 0)._replace(shard=1)],
            "shard 1 at version 0: a push of worker 1 (rank 2, clock 0)",
        ),
    ],
)
def test_it_says_what_it_waits_for(script, waits):
    port = ServerPort(script, shards=2)
    server = server_of(port, Sync())
    with pytest.raises(IndexError):  # the script is at its end
        server.run().send(None)
    assert port.waiting_for() == waits
    assert [(one.shard, one.bytes_sent) for one in server.stats] == [(0, 640), (1, 641)]


# --- the worker -----------------------------------------------------------------------------------


class WorkerPort:
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


def waited(strategy):
    """Return the seconds for workers, the server, messages and sums, and for which worker."""
    stats = strategy.counts.stats
    return [stats.waited[cause] for cause in CAUSES], stats.waited_for


def reported(strategy):
    return strategy.counts.report(0, 0, 0, {}, seconds=1.0, since=0.0, epoch_end=False, last=True)


def test_a_wait_is_told_by_the_last_answer():
    """A second passes with every answer; of the held part the last one says whom it was for."""
    first, last = answer(1, 1)._replace(held=0.9), answer(0, 1)._replace(held=1.5)
    for awaited, expected in (
        (-1, ([0.0, 1.5, 0.5, 0.0], {})),
        (2, ([1.5, 0.0, 0.5, 0.0], {2: 1.5})),
    ):
        strategy, _ = step(WorkerPort(2, [first, last._replace(awaited=awaited)]))
        assert waited(strategy) == expected
    strategy, _ = step(WorkerPort(1, [answer(0, 1)._replace(held=9.0)]))
    assert waited(strategy) == ([0.0, 1.0, 0.0, 0.0], {})  # no longer than this worker waited


def test_every_shard_has_a_version_of_its_own():
    given = [answer(2, 5, staleness=1), answer(0, 3, staleness=6), answer(1, 9)]
    port = WorkerPort(3, [given[0], given[1]._replace(gap=0.5), given[2]._replace(gap=0.25)])
    strategy, clock = step(port)
    counted = reported(strategy)
    assert (clock, strategy.counts.stats.skew) == (1, {6: 1})
    assert (counted.staleness_sum, counted.staleness_count, counted.staleness_max) == (7, 3, 6)
    assert (counted.gap_sum, counted.gap_count) == (0.75, 2)  # where they were measured
    assert port.sent[0] == (0, Push(1, 0, 0, 8, 0.25), GRADIENT)
    port.sent.clear()
    port.answers = [answer(i, 10, clock=2) for i in range(3)]
    step(port, clock=1, samples=0, strategy=strategy)
    assert [(to, push.version) for to, push, _ in port.sent] == [(0, 3), (1, 9), (2, 5)]
    assert {(region, push.samples) for _, push, region in port.sent} == {(NO_PAYLOAD, 0)}
    port.sent.clear()
    drive(strategy.leave(17))
    assert port.sent == [(i, Leave(1, 17, i), NO_PAYLOAD) for i in range(3)]


def test_a_shard_that_is_behind_is_read_again_until_all_are_at_one_clock():
    script = [answer(1, 1, clock=1), answer(0, 3, clock=3, staleness=3), answer(2, 3, clock=3)]
    script += [answer(1, 4, clock=4), answer(2, 5, clock=5), answer(0, 5, clock=5)]
    script += [answer(1, 5, clock=5)]
    port = WorkerPort(3, script)
    strategy, clock = step(port)
    counted = reported(strategy)
    assert (clock, strategy.counts.stats.skew) == (5, {0: 1})
    # τ is that of the push with the gradient.
    assert (counted.staleness_sum, counted.staleness_count, counted.staleness_max) == (3, 3, 3)
    again = [(to, push.clock, push.version, push.samples, r) for to, push, r in port.sent[3:]]
    assert again == [
        (1, 3, 1, 0, NO_PAYLOAD),
        (0, 4, 3, 0, NO_PAYLOAD),
        (2, 4, 3, 0, NO_PAYLOAD),
        (1, 5, 4, 0, NO_PAYLOAD),
    ]
    assert strategy.versions == [5, 5, 5]
    assert port.answers == []


#: Three layers, and four shards: the first two are of the first layer.
LAYERS = (Span(9, 12), Span(6, 9), Span(0, 6))


class Streaming(WorkerPort):
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
    clock = drive(strategy.step(Step(0, 8, 0.25)))
    assert [push.shard for _, push, _ in port.sent] == [3, 2, 1, 0]
    assert {(push.clock, push.samples, region) for _, push, region in port.sent} == {
        (0, 8, GRADIENT)
    }
    assert clock == 1
    assert sum(waited(strategy)[0]) == 4.0  # since the end of the step


@each(("spans", "said"), [((), 0), (LAYERS, 0), (LAYERS, 1), (LAYERS, 2), (LAYERS, 3)])
def test_all_workers_push_in_one_order_however_many_parts_they_said_to_be_ready(said, spans):
    """Else each of two workers could withhold the shard whose answer the other one waits for."""
    port = Streaming([answer(shard, c, clock=c) for c in (1, 2) for shard in range(4)])
    strategy = PushPull(port, spans=spans)
    for clock, samples in ((0, 8), (1, 0)):
        strategy.begin(Step(clock, samples, 0.25))
        for i in range(said if samples else 0):
            strategy.ready(i)
        drive(strategy.step(Step(clock, samples, 0.25)))
    assert [(push.clock, push.shard) for _, push, _ in port.sent] == [
        (clock, shard) for clock in (0, 1) for shard in (3, 2, 1, 0)
    ]


def test_a_gradient_that_comes_as_a_whole_or_is_for_one_shard_is_pushed_at_the_end():
    assert PushPull(Streaming()).ready is None
    assert PushPull(Streaming(), spans=(Span(0, 12),)).ready is None
    assert PushPull(WorkerPort(1), spans=(Span(3, 6), Span(0, 3))).ready is None
    strategy = PushPull(Streaming(), spans=LAYERS)
    strategy.begin(Step(0, 8, 0.25))
    with pytest.raises(ProtocolError, match="span 1 of its gradient is ready, expected span 0"):
        strategy.ready(1)


def test_it_says_whom_it_waits_for():
    port = WorkerPort(2, [answer(0, 1, clock=8), answer(1, 1, clock=8)])
    strategy, _ = step(port, clock=7)
    for who in ("rank 0, 1", "worker 1", "clock 7"):
        assert who in port.waiting_for()
    del strategy  # as a run ends, while its ranks still wait for one another
    assert port.waiting_for() == "a message"
