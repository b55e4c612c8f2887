"""Roles that end in the middle: what they sent arrives, who is told, and who waits in vain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.config.faults import read_fault
from psrt.errors import ConfigError, CrashError, TransportError
from psrt.job.virtual import simulate
from psrt.messages import Leave, Params, Push
from psrt.partition import even_spans
from psrt.simulation import SimulationCosts, Simulator
from psrt.transport import RoleMap
from psrt.transport.port import GRADIENT

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
        assert not it.ports[2]._inbox

    @pytest.mark.parametrize("seed", range(5))  # at the same time chance must not decide
    @pytest.mark.parametrize("bandwidth", [math.inf, 64.0])
    def test_the_notice_does_not_overtake_what_is_under_way(self, bandwidth, seed):
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

    def test_a_notice_is_no_traffic(self):
        it = world()
        it.crash_at(2, 1.0)
        it.run({0: hears(it.ports[0], 1), 2: hears(it.ports[2], 1)})
        assert it.ports[0].bytes_received == it.ports[2].bytes_sent == 0


class TestWhatItLeaves:
    @pytest.mark.parametrize("shared_memory", [True, False])
    def test_its_last_gradient_can_be_read(self, shared_memory):
        async def worker(port):
            port.gradient[:4] = 7
            port.send(0, push(0), GRADIENT)
            await port.pause(9.0)

        async def server(port):
            await port.receive()
            died = port.world.crashed
            return port.payload(0, 0).tolist(), dict(died)

        it = world(shared_memory=shared_memory)
        it.crash_at(2, 0.25)
        found = it.run({2: worker(it.ports[2]), 0: server(it.ports[0])})
        assert found[0] == ([7, 7], {2: 0.25})

    def test_it_reads_no_more_so_nobody_waits_for_that(self):
        """Neither for what it had not read, nor for what was under way, nor for what comes then."""

        async def server(port):
            port.send(2, Params(0, 0, 0, 0), 0)
            await port.pause(0.75)
            port.send(2, Params(0, 1, 1, 0), 1)
            await port.until(lambda: not port.in_flight(2, 0), lambda: "the reader")
            free = port.now()
            await port.pause(5.0)
            sent = port.bytes_sent
            port.send(2, Params(0, 2, 2, 0), 2)
            return free, port.in_flight(2, 0), port.bytes_sent - sent

        async def worker(port):
            await port.pause(99.0)

        it = world()
        it.crash_at(2, 1.0)
        found = it.run({0: server(it.ports[0]), 2: worker(it.ports[2])})
        assert found[0] == (1.0, False, 64 + 8)

    def test_a_role_that_waits_for_something_to_become_true_may_die(self):
        async def server(port):
            port.send(2, Params(0, 0, 0, 0), 0)
            await port.until(lambda: not port.in_flight(2, 0), lambda: "the reader")

        async def worker(port):
            await port.pause(3.0)
            await port.receive()
            return port.now()

        it = world()
        it.crash_at(0, 2.0)
        found = it.run({0: server(it.ports[0]), 2: worker(it.ports[2])})
        assert found == {0: None, 2: 3.0}


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


@pytest.mark.parametrize("seconds", [0.0, 0.7, 1.0, 2.3])
@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "sync"},
        {"mode": "sync", "backup": 1},
        {"mode": "async"},
        {"mode": "ssp", "staleness": 1},
        {"mode": "softsync", "softsync": 2},
        {"mode": "local-sgd", "local_steps": 2},
    ],
    ids=lambda mode: "-".join(map(str, mode.values())),
)
def test_with_servers_the_others_finish(mode, shared_memory, seconds):
    asked = TrainConfig(
        servers=2, steps=5, hidden=(4,), lr=0.1, shared_memory=shared_memory, **mode
    )
    costs = SimulationCosts(
        compute=lambda _, rng: rng.uniform(0.5, 1), latency=lambda rng: rng.random() / 9
    )
    run = simulate(asked, workers=4, costs=costs, crashes=[(1, seconds)])
    assert set(run.world.crashed) == {3}
    assert [worker.clock == 5 for worker in run.workers] == [True, False, True, True]
    assert np.isfinite(run.theta).all()


@pytest.mark.parametrize("mode", ["sync", "async", "local-sgd"])
@pytest.mark.parametrize(
    ("text", "error", "end"),
    [
        ("cut:server0@event5", TransportError, "taken to be dead at 60 s"),
        ("pause:worker0,worker1,worker2@event5", TransportError, "taken to be dead at 60 s"),
        ("crash:worker0,worker1,worker2@2.5s", CrashError, "crashed at 2.5 s"),
    ],
)
def test_without_any_worker_there_is_no_result(mode, text, error, end):
    """The last one is named: the others were missed before."""
    asked = TrainConfig(mode=mode, servers=1, steps=50, hidden=(4,), timeout_s=60.0)
    fault = read_fault(text)
    with pytest.raises(error, match=rf"^worker \d \(rank \d\) (is )?{end} .*, at clock \d$"):
        simulate(asked, workers=3, costs=SimulationCosts(compute=lambda *_: 1.0), faults=[fault])
    two = read_fault("crash:worker0,worker1@2.5s")
    run = simulate(asked, workers=3, costs=COSTS, faults=[two])
    assert [it.clock == 50 for it in run.workers] == [False, False, True]


class TestWithoutServers:
    def crash(self, **knobs):
        asked = TrainConfig(steps=5, hidden=(4,), **knobs)
        simulate(asked, workers=4, costs=COSTS, crashes=[(2, 2.5)])

    @pytest.mark.parametrize("algorithm", ["ring", "tree", "node"])
    def test_the_job_is_over_and_the_dead_is_named(self, algorithm):
        line = r"^worker 2 \(rank 2\) crashed at 2\.5 s of virtual time, at clock [01]$"
        with pytest.raises(CrashError, match=line):
            self.crash(mode="allreduce", allreduce=algorithm)

    def test_who_waits_for_a_server_waits_in_vain(self):
        it = world()
        it.crash_at(1, 0.5)
        with pytest.raises(TransportError, match=r"time: server 1 \(rank 1\) crashed at 0\.5 s; r"):
            it.run({1: hears(it.ports[1], 1), 2: hears(it.ports[2], 1)})
