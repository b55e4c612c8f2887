"""A server's role, against a scripted port."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.errors import ProtocolError
from psrt.messages import Leave, Params, Push
from psrt.optim import Schedule, make_optimizer
from psrt.partition import Span
from psrt.runtime.server import Server
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.updater import Updater
from psrt.sync import policy_for
from psrt.transport import NO_PAYLOAD, RoleMap, drive


class Scripted:
    """Rank 0 serves two parameters to workers 0 and 1 at ranks 1 and 2; gradients are ones."""

    rank, apply_s, landings = 0, None, {}
    role_map = RoleMap(2, workers=(1, 2), servers=(0,), spans=(Span(0, 2),))

    def __init__(self, script, busy=()):
        self.versions = {0: [np.zeros(2, np.float32) for _ in range(3)]}
        self.script, self.busy = list(script), set(busy)  # ranks that do not read
        self.sent, self.waits, self.waiting_for = [], [], None
        self.time = 0.0  # a second passes with every message

    def now(self):
        return self.time

    def payload(self, shard, worker):
        return np.ones(2, np.float32)

    def in_flight(self, to, shard):
        return to in self.busy

    async def receive(self):
        self.time += 1.0
        return self.script.pop(0)

    async def until(self, done, waiting_for):
        if not done():
            self.waits.append(waiting_for())
            self.busy.clear()
        assert done()

    def send(self, to, message, region=NO_PAYLOAD):
        self.sent.append((to, message, region))


def push(worker, clock, version, samples=4):
    return Push(worker, clock, version, samples, 0.0)


def serve(mode, *script, busy=(), **knobs):
    port = Scripted(script, busy)
    shard = Shard(
        port.versions[0],
        np.zeros(2, np.float32),
        Updater(2, make_optimizer("sgd", 2), Schedule("constant", 1.0, epochs=1)),
        payload=lambda worker: port.payload(0, worker),
        workers=2,
        by_samples=mode == "sync",
    )
    server = Server(port, [ShardServer(port, 0, shard, policy_for(mode, 2, **knobs))])
    if isinstance(script[-1], Leave):
        drive(server.run())
    return server, port


LEAVES = (Leave(0, 9), Leave(1, 9))


def test_a_push_is_answered_with_the_version_it_made_and_the_staleness_it_met():
    server, port = serve(
        "async", push(0, 0, 0), push(0, 1, 1), push(1, 0, 0), push(0, 2, 2), *LEAVES
    )
    assert [(to, message) for to, message, _ in port.sent] == [
        (1, Params(0, 1, 1, 0)),
        (1, Params(0, 2, 2, 0)),
        (2, Params(0, 3, 1, 2)),
        (1, Params(0, 4, 3, 1)),
    ]
    [it] = server.shards
    assert it.shard.theta.tolist() == [-4.0, -4.0]
    assert it.shard.stats.histogram == [2, 1, 1]


def test_an_answer_that_waits_at_the_gate_keeps_its_staleness():
    _, port = serve("ssp", push(0, 0, 0), push(1, 0, 0), *LEAVES, staleness=0)
    assert [message[:4] for _, message, _ in port.sent] == [(0, 2, 1, 0), (0, 2, 1, 1)]


def test_an_answer_says_how_long_it_was_held_and_for_whom():
    _, port = serve("ssp", push(0, 0, 0), push(1, 0, 0), *LEAVES, staleness=0)
    assert [(m.held, m.awaited) for _, m, _ in port.sent] == [(1.0, 1), (0.0, -1)]
    _, port = serve("sync", push(1, 0, 0), Leave(0, 0), Leave(1, 1))
    assert [(m.held, m.awaited) for _, m, _ in port.sent] == [(1.0, 0)]


def test_where_nobody_reads_the_version_is_made_in_its_place():
    server, port = serve("async", push(0, 0, 0), push(0, 1, 1), push(1, 0, 0), *LEAVES)
    assert [region for *_, region in port.sent] == [0, 0, 0]
    assert server.shards[0].shard.newest == 0


def test_where_somebody_reads_the_next_version_is_made_elsewhere():
    server, port = serve("async", push(0, 0, 0), push(1, 0, 0), push(1, 1, 2), *LEAVES, busy=[1])
    first, second, third = (region for *_, region in port.sent)
    assert first == 0
    assert second == third != first  # worker 1 has read version 2 by the time it pushes again
    assert server.shards[0].shard.buffers[first].tolist() == [-1.0, -1.0]
    assert port.waits == ["the last answers to be read"]


def test_a_worker_that_pushes_has_read_whatever_the_port_says():
    _, port = serve("async", push(0, 0, 0), push(0, 1, 1), *LEAVES, busy=[1])
    assert [region for *_, region in port.sent] == [0, 0]


def test_a_drop_is_counted_and_answered():
    server, port = serve("async", push(0, 0, 0), push(1, 0, 0), *LEAVES, late=0)
    shard = server.shards[0].shard
    assert (shard.stats.dropped, shard.version, len(port.sent)) == (1, 1, 2)


@pytest.mark.parametrize(
    ("mode", "script", "spread"),
    [
        ("async", [push(0, c, c) for c in range(4)], 4),
        ("async", [push(0, 0, 0), push(1, 0, 1), push(0, 1, 1), push(0, 2, 3)], 2),
        ("sync", [push(0, 0, 0), push(1, 0, 0), push(1, 1, 1), push(0, 1, 1)], 1),
    ],
)
def test_how_far_the_first_was_ahead_of_the_last(mode, script, spread):
    server, _ = serve(mode, *script, *LEAVES)
    assert server.shards[0].shard.stats.clock_spread_max == spread


def test_anything_but_a_push_or_a_leave_is_refused():
    with pytest.raises(ProtocolError, match=r"shard 0 was sent Params.*, expected a push"):
        serve("async", Params(0, 0, 0, 0), *LEAVES)


class TwoShards(Scripted):
    """The same of two shards of one parameter each; worker 1 pushes to the second one only."""

    role_map = RoleMap(2, workers=(1, 2), servers=(0, 0), spans=(Span(0, 1), Span(1, 2)))

    def __init__(self, script):
        super().__init__(script)
        self.versions = {i: [np.zeros(1, np.float32) for _ in range(3)] for i in range(2)}

    def bytes_of(self, shard):
        return 640 + shard, 0

    def payload(self, shard, worker):
        return np.full(1, 1 + 10 * shard, np.float32)


def of_two_shards(mode, *script, **knobs):
    port = TwoShards(script)
    shards = []
    for number in range(2):
        shard = Shard(
            port.versions[number],
            np.zeros(1, np.float32),
            Updater(1, make_optimizer("sgd", 1), Schedule("constant", 1.0, epochs=1)),
            payload=lambda worker, number=number: port.payload(number, worker),
            workers=2,
            by_samples=mode == "sync",
        )
        shards.append(ShardServer(port, number, shard, policy_for(mode, 2, **knobs)))
    return Server(port, shards), port


def test_each_shard_of_a_server_decides_alone():
    pushes = [push(0, 0, 0)._replace(shard=1), push(1, 0, 0)._replace(shard=1), push(0, 0, 0)]
    leaves = [Leave(worker, 1, shard) for shard in (1, 0) for worker in (1, 0)]
    server, port = of_two_shards("sync", *pushes, *leaves)
    drive(server.run())
    # The second shard's round is complete, while that of the first waits until worker 1 leaves.
    assert [(to, m.shard, m.version, m.awaited) for to, m, _ in port.sent] == [
        (1, 1, 1, 1),
        (2, 1, 1, -1),
        (1, 0, 1, 1),
    ]
    assert [it.shard.theta.tolist() for it in server.shards] == [[-1.0], [-11.0]]
    assert not any(it.policy.live for it in server.shards)


def test_each_shard_counts_what_its_port_sent_for_it():
    server, _ = of_two_shards("async")
    assert [(one.shard, one.bytes_sent) for one in server.stats] == [(0, 640), (1, 641)]


def test_a_message_of_another_shard_is_refused():
    server, _ = of_two_shards("async", push(0, 0, 0)._replace(shard=2))
    with pytest.raises(ProtocolError, match=r"sent Push.*shard=2.*, expected one of shards 0, 1"):
        drive(server.run())


def test_it_waits_for_every_shard_that_somebody_has_not_left():
    server, port = of_two_shards("sync", Leave(0, 0, 0), Leave(1, 0, 0), push(0, 0, 0, 4))
    port.script[-1] = port.script[-1]._replace(shard=1)
    with pytest.raises(IndexError):  # the script is at its end
        server.run().send(None)
    waits = port.waiting_for()
    assert waits.startswith("shard 1 at version 0")
    assert "worker 1 (rank 2, clock 0)" in waits
    assert "shard 0" not in waits


def test_shards_that_wait_for_the_same_are_named_together():
    server, port = of_two_shards("sync")
    with pytest.raises(IndexError):
        server.run().send(None)
    assert port.waiting_for() == (
        "shards 0, 1 at version 0: a push of worker 0 (rank 1, clock 0), 1 (rank 2, clock 0)"
    )


def test_it_says_whom_it_waits_for():
    server, port = serve("sync", push(0, 0, 0), Leave(0, 1), Leave(1, 0))
    server, port = serve("sync", push(0, 0, 0))
    role = server.run()
    with pytest.raises(IndexError):  # the script is at its end
        role.send(None)
    assert "worker 1 (rank 2, clock 0)" in port.waiting_for()
    assert "(rank 1" not in port.waiting_for()
