"""Roles that end in the middle, links that are cut or slow, and roles that stand still."""

from __future__ import annotations

import math

import pytest

from psrt.config import TrainConfig
from psrt.config.faults import read_fault
from psrt.errors import ConfigError, CrashError, TransportError
from psrt.job.virtual import simulate
from psrt.messages import Leave, Push
from psrt.partition import even_spans
from psrt.simulation import SimulationCosts, Simulator
from psrt.simulation.collective_port import suspend
from psrt.simulation.disturbed import DisturbedNetwork
from psrt.simulation.injection import Injector
from psrt.simulation.network import Channel
from psrt.simulation.scheduler import Scheduler
from psrt.transport import RoleMap
from psrt.transport.port import GRADIENT
from support.cases import each

#: Ranks 0 and 1 are servers, ranks 2 and 3 workers.
WIRING = RoleMap(4, workers=(2, 3), servers=(0, 1), spans=even_spans(4, 2))
COSTS = SimulationCosts(compute=lambda *_: 1.0, latency=lambda _: 0.5)


def world(**options):
    return Simulator(WIRING, **{"seed": 0, "costs": COSTS, **options})


def push(worker, clock=0):
    return Push(worker, clock, 0, 1, 0.0)


async def hears(port, count):
    """Return what came when."""
    heard = []
    for _ in range(count):
        message = await port.receive()
        heard.append((port.now(), message))
    return heard


async def pushes(port, worker, clocks, *, to=(0,), every=1.0):
    """Push a clock at a time, without ever asking for an answer."""
    for clock in range(clocks):
        await port.pause(every)
        for rank in to:
            port.send(rank, push(worker, clock), GRADIENT)


class TestNotice:
    def test_a_role_ends_then_and_there_and_servers_are_told_later(self):
        ended = []

        async def worker(port):
            try:
                await pushes(port, 0, 99)
            finally:
                ended.append(port.now())

        it = world()
        it.crash_at(2, 2.25, notice_s=4.0)
        found = it.run({2: worker(it.ports[2]), 0: hears(it.ports[0], 3)})
        assert ended == [2.25]
        assert found[2] is None
        # Clocks 0 and 1 were pushed; the third computation was cut off.
        assert found[0] == [(1.5, push(0, 0)), (2.5, push(0, 1)), (6.25, Leave(0, 2, missed=True))]
        assert it.crashed == {2: 2.25}

    def test_every_server_is_told_and_nobody_else(self):
        it = world()
        it.crash_at(3, 1.0)
        found = it.run({r: hears(it.ports[r], 1) for r in (0, 1)} | {3: hears(it.ports[3], 1)})
        assert [found[0], found[1]] == [
            [(1.0, Leave(1, 0, shard, missed=True))] for shard in range(2)
        ]
        it = world()
        it.crash_at(3, 1.0)
        with pytest.raises(TransportError, match="rank 2 waits"):
            it.run({2: hears(it.ports[2], 1), 3: hears(it.ports[3], 1)})

    @each(("seed", "bandwidth"), [*((it, math.inf) for it in range(5)), (0, 64.0)])
    def test_the_notice_does_not_overtake_what_is_under_way(self, bandwidth, seed):
        # At the same time chance must not decide: with any seed.
        it = world(seed=seed, costs=SimulationCosts(latency=lambda _: 50.0, bandwidth=bandwidth))
        it.crash_at(2, 3.5, notice_s=0.25)
        role = pushes(it.ports[2], 0, 99)
        heard = it.run({2: role, 0: hears(it.ports[0], 4)})[0]
        assert [message for _, message in heard] == [push(0, c) for c in range(3)] + [
            Leave(0, 3, missed=True)
        ]
        # Three frames with two parameters of payload each come in one after the other.
        last = 3.0 + 50.0 if math.isinf(bandwidth) else 1.0 + 50.0 + 3 * 72 / 64.0
        assert heard[-1][0] == max(last, heard[-2][0])


class TestNoCrash:
    def test_a_role_at_its_end_does_not_crash_and_time_does_not_go_on_for_it(self):
        it = world()
        it.crash_at(2, 50.0)
        it.run({2: pushes(it.ports[2], 0, 1)})
        assert it.crashed == {}
        assert it.time == 1.0

    def test_a_role_that_left_is_not_missed(self):
        async def leaves(port):
            port.send(0, Leave(0, 0))

        it = world()
        it.crash_at(2, 1.0)
        roles = {2: leaves(it.ports[2]), 0: hears(it.ports[0], 4), 3: pushes(it.ports[3], 1, 3)}
        heard = [message for _, message in it.run(roles)[0]]
        assert heard == [Leave(0, 0), push(1, 0), push(1, 1), push(1, 2)]
        assert it.crashed == {}

    @pytest.mark.parametrize("rank", [-1, 4])
    def test_there_must_be_such_a_rank(self, rank):
        with pytest.raises(ConfigError, match=rf"^rank {rank} cannot crash, the last is 3$"):
            world().crash_at(rank, 1.0)

    @pytest.mark.parametrize("times", [(-1.0, 0.0), (math.nan, 0.0), (1.0, -1.0), (1.0, math.inf)])
    def test_it_must_be_a_time(self, times):
        seconds, notice = times
        with pytest.raises(ConfigError, match=r"rank 2 cannot crash at .* s and be missed after"):
            world().crash_at(2, seconds, notice_s=notice)


@pytest.mark.parametrize(
    ("text", "error", "end"),
    [
        ("cut:server0@event5", TransportError, "taken to be dead at 60 s"),
        ("pause:worker0,worker1,worker2@event5", TransportError, "taken to be dead at 60 s"),
        ("crash:worker0,worker1,worker2@2.5s", CrashError, "crashed at 2.5 s"),
    ],
)
def test_without_any_worker_there_is_no_result(text, error, end):
    """The last one is named: the others were missed before."""
    asked = TrainConfig(mode="async", servers=1, steps=50, hidden=(4,), timeout_s=60.0)
    fault = read_fault(text)
    with pytest.raises(error, match=rf"^worker \d \(rank \d\) (is )?{end} .*, at clock \d$"):
        simulate(asked, workers=3, costs=SimulationCosts(compute=lambda *_: 1.0), faults=[fault])
    two = read_fault("crash:worker0,worker1@2.5s")
    run = simulate(asked, workers=3, costs=COSTS, faults=[two])
    assert [it.clock == 50 for it in run.workers] == [False, False, True]


def test_who_waits_for_a_dead_server_waits_in_vain():
    it = world()
    it.crash_at(1, 0.5)
    with pytest.raises(TransportError, match=r"time: server 1 \(rank 1\) crashed at 0\.5 s; r"):
        it.run({1: hears(it.ports[1], 1), 2: hears(it.ports[2], 1)})


class Sent:
    """Stands for a network: writes down what sets out."""

    def __init__(self):
        self.sent = []

    def send(self, channel, nbytes, arrive, argument):
        self.sent.append((channel.out, channel.into, nbytes, argument))

    def follow(self, channel, arrive, argument):
        self.sent.append((channel.out, channel.into, 0, argument))


def test_what_is_sent_into_a_cut_sets_out_in_order_when_it_heals():
    under = Sent()
    network = DisturbedNetwork(under)
    network.cut([1, 2])
    for number, (source, to) in enumerate([(0, 1), (1, 0), (1, 2), (0, 3), (0, 1)]):
        network.send(Channel(source, to), 8, print, number)
    assert under.sent == [(1, 2, 8, 2), (0, 3, 8, 3)]
    network.heal([1, 2])
    assert under.sent[2:] == [(0, 1, 8, 0), (1, 0, 8, 1), (0, 1, 8, 4)]


def test_what_is_dropped_never_arrives():
    under = Sent()
    network = DisturbedNetwork(under)
    network.cut([1])
    network.send(Channel(1, 0), 8, print, "lost")
    network.send(Channel(0, 1), 8, print, "kept")
    (again,) = network.drop(1)
    network.heal([1])
    assert under.sent == [(0, 1, 8, "kept")]
    again()
    assert under.sent[1:] == [(1, 0, 8, "lost")]


def test_bytes_of_a_slow_rank_take_longer_both_ways_until_it_is_fast_again():
    under = Sent()
    network = DisturbedNetwork(under)
    network.slow([1], 10.0)
    network.slow([2], 3.0)
    for source, to in [(1, 0), (0, 1), (2, 1), (2, 0), (0, 3)]:
        network.send(Channel(source, to), 8, print, None)
    network.fast([1], 10.0)
    network.send(Channel(1, 0), 8, print, None)
    assert [it[2] for it in under.sent] == [80, 80, 80, 24, 8, 8]


def test_over_a_network_the_time_of_bytes_is_longer():
    async def sends(port):
        await port.pause(0.5)
        port.send(0, push(0), GRADIENT)

    it = world(costs=SimulationCosts(latency=lambda _: 1.0, bandwidth=8.0))
    Injector(it, timeout_s=60.0).add(read_fault("slow:worker0:4@0.25s"), (2,), lambda: None)
    found = it.run({0: hears(it.ports[0], 1), 2: sends(it.ports[2])})
    assert found[0] == [(0.5 + 1.0 + 4 * (64 + 8) / 8, push(0))]


async def waits(scheduler, rank, log):
    for _ in range(3):
        scheduler.after(1.0, scheduler.resume, rank)
        await suspend()
        log.append((rank, scheduler.time))


def test_a_role_that_stands_still_goes_on_with_what_was_due():
    scheduler, log = Scheduler(0), []
    scheduler.after(1.5, lambda _: scheduler.hold(0))
    scheduler.after(4.25, lambda _: scheduler.let_go(0))
    scheduler.run({0: waits(scheduler, 0, log), 1: waits(scheduler, 1, log)})
    assert [it for it in log if it[0] == 0] == [(0, 1.0), (0, 4.25), (0, 5.25)]
    assert [it for it in log if it[0] == 1] == [(1, 1.0), (1, 2.0), (1, 3.0)]


def test_what_is_to_happen_before_an_event_happens_right_before_it():
    scheduler, log = Scheduler(0), []
    for event in (3, 1, 99, 3):
        scheduler.before(event, lambda event=event: log.append((event, scheduler.events)))
    scheduler.run({0: waits(scheduler, 0, [])})
    assert log == [(1, 0), (3, 2), (3, 2)]
