"""The scheduler of virtual time: order, chance, payloads, waiting, crashes, cuts and pauses."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import pytest

from psrt.config import TrainConfig
from psrt.config.faults import read_fault
from psrt.core.errors import TransportError
from psrt.core.messages import Leave, Push
from psrt.core.partition import even_spans
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts, Simulator
from psrt.simulation.collective_port import suspend
from psrt.simulation.disturbed import DisturbedNetwork
from psrt.simulation.injection import Injector
from psrt.simulation.network import Channel
from psrt.simulation.scheduler import Scheduler
from psrt.transport import RoleMap
from psrt.transport.port import GRADIENT
from support.cases import each

AT_ONCE = SimulationCosts(compute=lambda *_: 1.0, latency=lambda _: 0.5, per_byte=0.0)


def star(workers=2, **options):
    """Return a world of one server of four parameters at rank 0 and workers behind it."""
    ranks = tuple(range(1, 1 + workers))
    role_map = RoleMap(4, workers=ranks, servers=(0,), spans=even_spans(4, 1))
    return Simulator(role_map, **{"seed": 0, "costs": AT_ONCE, **options})


def run(it, *roles):
    """Run roles at ranks 0, 1, …; None for a rank without one."""
    there = {rank: role(it.ports[rank]) for rank, role in enumerate(roles) if role is not None}
    return it.run(there)


def push(worker, clock=0):
    return Push(worker, clock, 0, 1, 0.0)


class TestTime:
    def test_pausing_and_computing_take_their_time(self):
        async def worker(port):
            await port.pause(2.0)
            got = await port.compute(sum, (1, 2))
            return got, port.now()

        async def sender(port):
            port.send(0, push(1), GRADIENT)
            await port.pause(0.25)

        it = star()
        assert run(it, None, worker)[1] == (3, 3.0)
        assert it.time == 3.0
        it = star()
        run(it, None, None, sender)
        assert it.time == 0.25  # what is under way then is nobody's business

    def test_what_happens_at_one_time_happens_in_every_order_by_the_seed(self):
        async def sender(port):
            await port.pause(1.0)
            port.send(0, push(port.rank - 1))

        async def receiver(port):
            return tuple([(await port.receive()).worker for _ in range(3)])

        def order(seed):
            return run(star(3, seed=seed), receiver, sender, sender, sender)[0]

        orders = [order(seed) for seed in range(40)]
        assert {*orders} == {*itertools.permutations(range(3))}
        assert orders == [order(seed) for seed in range(40)]


class TestPayloads:
    @pytest.mark.parametrize(("shared_memory", "later"), [(True, 2), (False, 1)])
    def test_shared_memory_is_the_worker_s_own_and_other_memory_a_copy(self, shared_memory, later):
        """What a server finds whose worker goes on writing after its push."""

        async def sender(port):
            port.gradient[:4] = 1
            port.send(0, push(0), GRADIENT)
            await port.pause(2.0)
            port.gradient[:4] = 2
            port.send(0, Leave(0, 1))

        async def receiver(port):
            await port.receive()
            found = port.payload(0, 0).tolist()
            await port.receive()
            return found, port.payload(0, 0).tolist(), port.bytes_received

        results = run(star(shared_memory=shared_memory), receiver, sender)
        assert results[0] == ([1] * 4, [later] * 4, 64 + 16 + 64)


async def waits(port):
    await port.receive()


class TestWaiting:
    def test_of_a_deadlock_it_is_said_who_waits_for_whom(self):
        async def for_godot(port):
            port.waiting_for = lambda: "Godot"
            await port.receive()

        async def for_the_end(port):
            await port.until(lambda: False, lambda: "the end of time")

        async def sends(port):
            port.send(0, Leave(1, 0))

        with pytest.raises(TransportError, match=r"deadlock at .*: rank 1 waits for Godot$"):
            run(star(), None, for_godot)
        with pytest.raises(TransportError, match="rank 0 waits for the end of time"):
            run(star(), for_the_end, None, sends)
        with pytest.raises(TransportError) as told:
            run(star(30), None, *[waits] * 30)
        assert str(told.value).count("waits for") == 8
        assert str(told.value).endswith("; 22 other ranks wait, too")


class TestUpdatesTakeTime:
    @pytest.mark.parametrize("workers", [1, 4])
    def test_a_busy_server_is_what_everybody_waits_for(self, workers):
        asked = TrainConfig(mode="async", servers=1, steps=3, hidden=(4,))
        costs = SimulationCosts(
            compute=lambda *_: 1e-9, latency=lambda _: 1e-9, apply=lambda *_: 1.0
        )
        found = simulate(asked, workers=workers, costs=costs)
        assert found.seconds == pytest.approx(3 * workers, abs=1e-3)
        assert found.world.busy == {0: 3.0 * workers}


class TestScale:
    """However many ranks there are, and parameters."""

    def test_a_hundred_workers(self):
        asked = TrainConfig(mode="async", servers=4, steps=2)
        found = simulate(asked, workers=120, numerics=False, parameters=10**6)
        # Starting, two steps, each computed, with a push and an answer at each of 4 servers.
        assert found.events >= 120 * (1 + 2 * (1 + 8)) + 4
        assert sum(server.shard.version for server in found.servers) == 120 * 2 * 4

    @pytest.mark.parametrize(
        "knobs",
        [
            {"mode": "softsync:k=2", "servers": 2},
            {"mode": "allreduce", "allreduce": "node"},
        ],
        ids=str,
    )
    def test_without_numerics_nothing_is_as_long_as_the_parameters(self, knobs):
        n = 10**7
        tracemalloc.start()
        try:
            asked = TrainConfig(steps=3, hidden=(5,), **knobs)
            found = simulate(asked, workers=5, numerics=False, parameters=n)
            assert tracemalloc.get_traced_memory()[1] < n
        finally:
            tracemalloc.stop()
        assert {worker.clock for worker in found.workers} == {3}
        assert min(found.world.ports[-1].bytes_sent, found.world.ports[-1].bytes_received) > n


# --- crashes, cuts and pauses --------------------------------------------------------------------

#: Ranks 0 and 1 are servers, ranks 2 and 3 workers.
WIRING = RoleMap(4, workers=(2, 3), servers=(0, 1), spans=even_spans(4, 2))
COSTS = SimulationCosts(compute=lambda *_: 1.0, latency=lambda _: 0.5)


def world(**options):
    return Simulator(WIRING, **{"seed": 0, "costs": COSTS, **options})


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

    @each(("seed", "bandwidth"), [(0, math.inf), (1, math.inf), (2, math.inf), (0, 64.0)])
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


class Sent:
    """Stands for a network: writes down what sets out."""

    def __init__(self):
        self.sent = []

    def send(self, channel, nbytes, arrive, argument):
        self.sent.append((channel.out, channel.into, nbytes, argument))


def disturbed():
    """Return a network over one that writes down what it gets, and what sends a message by it."""
    under = Sent()
    network = DisturbedNetwork(under)
    return (
        network,
        under.sent,
        lambda out, to, what=0: network.send(Channel(out, to), 8, print, what),
    )


def test_what_is_sent_into_a_cut_sets_out_in_order_when_it_heals_unless_it_is_dropped():
    network, sent, send = disturbed()
    network.cut([1, 2])
    for number, (source, to) in enumerate([(0, 1), (1, 0), (1, 2), (0, 3), (0, 1)]):
        send(source, to, number)
    assert sent == [(1, 2, 8, 2), (0, 3, 8, 3)]
    network.heal([1, 2])
    assert sent[2:] == [(0, 1, 8, 0), (1, 0, 8, 1), (0, 1, 8, 4)]
    network, sent, send = disturbed()
    network.cut([1])
    send(1, 0, "lost")
    send(0, 1, "kept")
    (again,) = network.drop(1)
    network.heal([1])
    assert sent == [(0, 1, 8, "kept")]
    again()
    assert sent[1:] == [(1, 0, 8, "lost")]


def test_bytes_of_a_slow_rank_take_longer_both_ways_until_it_is_fast_again():
    network, sent, send = disturbed()
    network.slow([1], 10.0)
    network.slow([2], 3.0)
    for source, to in [(1, 0), (0, 1), (2, 1), (2, 0), (0, 3)]:
        send(source, to)
    network.fast([1], 10.0)
    send(1, 0)
    assert [it[2] for it in sent] == [80, 80, 80, 24, 8, 8]

    async def sends(port):
        await port.pause(0.5)
        port.send(0, push(0), GRADIENT)

    it = world(costs=SimulationCosts(latency=lambda _: 1.0, bandwidth=8.0))
    Injector(it, timeout_s=60.0).add(read_fault("slow:worker0:4@0.25s"), (2,), lambda: None)
    found = it.run({0: hears(it.ports[0], 1), 2: sends(it.ports[2])})
    assert found[0] == [(0.5 + 1.0 + 4 * (64 + 8) / 8, push(0))]


async def pauses(scheduler, rank, log):
    for _ in range(3):
        scheduler.after(1.0, scheduler.resume, rank)
        await suspend()
        log.append((rank, scheduler.time))


def test_a_role_that_stands_still_goes_on_with_what_was_due():
    scheduler, log = Scheduler(0), []
    scheduler.after(1.5, lambda _: scheduler.hold(0))
    scheduler.after(4.25, lambda _: scheduler.let_go(0))
    scheduler.run({0: pauses(scheduler, 0, log), 1: pauses(scheduler, 1, log)})
    assert [it for it in log if it[0] == 0] == [(0, 1.0), (0, 4.25), (0, 5.25)]
    assert [it for it in log if it[0] == 1] == [(1, 1.0), (1, 2.0), (1, 3.0)]


def test_what_is_to_happen_before_an_event_happens_right_before_it():
    scheduler, log = Scheduler(0), []
    for event in (3, 1, 99, 3):
        scheduler.before(event, lambda event=event: log.append((event, scheduler.events)))
    scheduler.run({0: pauses(scheduler, 0, [])})
    assert log == [(1, 0), (3, 2), (3, 2)]
