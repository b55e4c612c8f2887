"""The scheduler: the same seed gives the same run, with or without numbers; updates take time."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from psrt.collective import ALGORITHMS
from psrt.config import TrainConfig
from psrt.errors import TransportError
from psrt.job.virtual import simulate
from psrt.messages import Leave, Params, Push
from psrt.partition import even_spans
from psrt.simulation import SimulationCosts, Simulator
from psrt.simulation.event_queue import EventQueue
from psrt.transport import RoleMap
from psrt.transport.port import GRADIENT
from support.cases import pairs, some

pytestmark = pytest.mark.slow

SERVED = [
    {"mode": "sync"},
    {"mode": "sync", "backup": 2},
    {"mode": "async"},
    {"mode": "ssp", "staleness": 1},
    {"mode": "softsync", "softsync": 2},
    {"mode": "local-sgd", "local_steps": 3},
]
SUMMED = [
    *({"mode": "allreduce", "allreduce": name} for name in [*ALGORITHMS, "node"]),
    {"mode": "allreduce", "allreduce": "tree", "overlap": True, "bucket_bytes": 1},
    {"mode": "local-sgd", "local_steps": 3, "allreduce": "ring"},
    {"mode": "local-sgd", "local_steps": 3, "sync_delay": 2, "outer_lr": 0.7, "allreduce": "tree"},
    {"mode": "local-sgd", "local_steps": 3, "eager": True, "outer_lr": 0.7, "allreduce": "node"},
]
ALL = [{**knobs, "servers": 2} for knobs in SERVED] + SUMMED
COSTS = {
    "usual": SimulationCosts(),
    "all alike": SimulationCosts(compute=lambda *_: 1e-3, latency=lambda _: 1e-4),
    "crowded": SimulationCosts(
        bandwidth=1e6, apply=lambda _, nbytes, rng: nbytes * rng.exponential(1e-8)
    ),
    "measured sums": SimulationCosts(reduce=lambda rng: rng.exponential(1e-3)),
}


def name_of(given):
    return given if isinstance(given, str) else "-".join(map(str, given.values()))


def traced(knobs, costs, seed=0, **options):
    """Return who was resumed when, in order, and the run."""
    trace = []

    class Traced(Simulator):
        def resume(self, rank):
            trace.append((self.time, rank))
            super().resume(rank)

    asked = TrainConfig(steps=6, hidden=(5,), lr=0.1, check_every=None, **knobs)
    run = simulate(asked, workers=5, seed=seed, costs=COSTS[costs], world=Traced, **options)
    return trace, run


class TestSeeds:
    @pytest.mark.parametrize(("knobs", "costs"), pairs(ALL, COSTS, one_in=2), ids=name_of)
    def test_the_same_seed_is_the_same_run_to_the_bit(self, knobs, costs):
        first, second = traced(knobs, costs, seed=7), traced(knobs, costs, seed=7)
        assert first[0] == second[0]
        assert first[1].theta.tobytes() == second[1].theta.tobytes()
        # nan is nan in reports without an evaluation.
        assert str(first[1].reports) == str(second[1].reports)

    @pytest.mark.parametrize(("knobs", "costs"), pairs(ALL, COSTS, one_in=2), ids=name_of)
    def test_another_seed_is_another_order(self, knobs, costs):
        assert traced(knobs, costs, seed=7)[0] != traced(knobs, costs, seed=8)[0]

    def test_what_happens_at_one_time_happens_in_every_order(self):
        def order(seed):
            queue, heard = EventQueue(seed), []
            for name in "abc":
                queue.after(1.0, heard.append, name)
            for event in sorted(queue._queue):
                event[3](event[4])
            return "".join(heard)

        found = [order(seed) for seed in range(60)]
        assert set(found) == {"abc", "acb", "bac", "bca", "cab", "cba"}
        assert found == [order(seed) for seed in range(60)]


class TestWithoutNumerics:
    @pytest.mark.parametrize(("knobs", "costs"), pairs(ALL, COSTS, one_in=2), ids=name_of)
    def test_all_happens_as_with_them_and_as_many_bytes_move(self, knobs, costs):
        (trace, run), (bare, without) = (
            traced(knobs, costs, numerics=numerics) for numerics in (True, False)
        )
        assert trace == bare
        assert run.events == without.events
        for port, lean in zip(run.world.ports, without.world.ports, strict=True):
            assert (port.bytes_sent, port.bytes_received) == (lean.bytes_sent, lean.bytes_received)
        assert run.world.busy == without.world.busy

    @pytest.mark.parametrize("knobs", ALL, ids=name_of)
    def test_nothing_is_as_long_as_the_parameters(self, knobs):
        n = 10**7
        tracemalloc.start()
        try:
            asked = TrainConfig(steps=3, hidden=(5,), **knobs)
            run = simulate(asked, workers=5, numerics=False, parameters=n)
            assert tracemalloc.get_traced_memory()[1] < n
        finally:
            tracemalloc.stop()
        assert {worker.clock for worker in run.workers} == {3}
        assert min(run.world.ports[-1].bytes_sent, run.world.ports[-1].bytes_received) > n


class TestScale:
    """An event costs what it costs, however many ranks there are."""

    def calls_per_event(self, workers, knobs):
        calls = 0

        def count(frame, event, argument):
            nonlocal calls
            calls += event in ("call", "c_call")

        asked = TrainConfig(steps=4, hidden=(5,), **knobs)
        costs = SimulationCosts(
            compute=lambda _, rng: rng.random(), latency=lambda rng: 1e-6 * rng.random()
        )
        begun = []

        class Counted(Simulator):
            def run(self, roles):
                begun.append(self)
                sys.setprofile(count)
                try:
                    return super().run(roles)
                finally:
                    sys.setprofile(None)

        run = simulate(
            asked, workers=workers, costs=costs, world=Counted, numerics=False, parameters=10**6
        )
        return calls / run.events

    @pytest.mark.parametrize("knobs", some(ALL[:5], one_in=2), ids=name_of)
    def test_ten_times_as_many_workers(self, knobs):
        few, many = (self.calls_per_event(workers, knobs) for workers in (20, 200))
        assert many < 1.5 * few

    def test_thousands_of_workers(self):
        asked = TrainConfig(mode="async", servers=8, steps=2)
        run = simulate(asked, workers=1000, numerics=False, parameters=10**6)
        # Starting, two steps, each computed, with a push and an answer at each of 8 servers.
        assert run.events >= 1000 * (1 + 2 * (1 + 16)) + 8
        assert sum(server.shard.version for server in run.servers) == 1000 * 2 * 8


def star(workers=2, **options):
    """Return a world of one server at rank 0 and workers at the ranks behind it."""
    role_map = RoleMap(
        4, workers=tuple(range(1, 1 + workers)), servers=(0,), spans=even_spans(4, 1)
    )
    costs = SimulationCosts(compute=lambda *_: 1.0, latency=lambda _: 0.5)
    return Simulator(role_map, **{"seed": 0, "costs": costs, **options})


class TestUpdatesTakeTime:
    def test_without_a_cost_there_is_none(self):
        assert [port.apply_s for port in star().ports] == [None] * 3

    def test_the_cost_is_drawn_for_rank_and_bytes_and_adds_up(self):
        asked = []

        def apply(rank, nbytes, rng):
            asked.append((rank, nbytes))
            return 0.25 * len(asked)

        it = star(costs=SimulationCosts(apply=apply))
        assert it.busy == {0: 0.0}
        assert [it.ports[0].apply_s(0, 16), it.ports[0].apply_s(0, 32)] == [0.25, 0.5]
        assert asked == [(0, 16), (0, 32)]
        assert it.busy == {0: 0.75}

    @pytest.mark.parametrize("workers", [1, 4])
    def test_a_busy_server_is_what_everybody_waits_for(self, workers):
        asked = TrainConfig(mode="async", servers=1, steps=3, hidden=(4,))
        costs = SimulationCosts(
            compute=lambda *_: 1e-9, latency=lambda _: 1e-9, apply=lambda *_: 1.0
        )
        run = simulate(asked, workers=workers, costs=costs)
        assert run.seconds == pytest.approx(3 * workers, abs=1e-3)
        assert run.world.busy == {0: 3.0 * workers}


class TestWaiting:
    def test_a_watch_is_asked_when_a_message_was_read(self):
        """Not after every event: that would take as long as there are ranks."""
        asked = []

        async def server(port):
            port.send(1, Params(0, 0, 0, 0), 0)

            def read():
                asked.append(port.now())
                return not port.in_flight(1, 0)

            await port.until(read, lambda: "the reader")
            return port.now()

        async def reader(port):
            await port.pause(3.0)
            await port.receive()

        async def busy(port):
            for _ in range(50):
                await port.pause(0.125)

        it = star()
        ports = it.ports
        results = it.run({0: server(ports[0]), 1: reader(ports[1]), 2: busy(ports[2])})
        assert results[0] == 3.0
        assert asked == [0.0, 3.0]

    def test_time_ends_with_the_last_role(self):
        async def sender(port):
            port.send(0, Push(0, 0, 0, 1, 0.0), GRADIENT)
            await port.pause(0.25)

        it = star()
        it.run({1: sender(it.ports[1])})
        assert it.time == 0.25  # what is under way then is nobody's business

    def test_a_long_deadlock_tells_of_the_first(self):
        async def waits(port):
            await port.receive()

        it = star(workers=30)
        with pytest.raises(TransportError) as told:
            it.run({rank: waits(it.ports[rank]) for rank in range(1, 31)})
        assert str(told.value).count("waits for") == 8
        assert str(told.value).endswith("; 22 other ranks wait, too")

    def test_payloads_without_shared_memory_are_those_of_the_arrival(self):
        async def sender(port):
            port.gradient[:4] = 1
            port.send(0, Push(0, 0, 0, 1, 0.0), GRADIENT)
            await port.pause(2.0)
            port.gradient[:4] = 2
            port.send(0, Leave(0, 1))

        async def server(port):
            await port.receive()
            await port.receive()
            return port.payload(0, 0).tolist()

        for shared, expected in ((True, 2), (False, 1)):
            it = star(shared_memory=shared)
            results = it.run({0: server(it.ports[0]), 1: sender(it.ports[1])})
            assert results[0] == [expected] * 4


def test_costs_that_are_equal_make_equal_times():
    """Two workers alike come at one moment, and which is first is chance."""
    asked = TrainConfig(mode="async", servers=1, steps=1, hidden=(4,))
    firsts = set()
    for seed in range(20):
        heard = []

        class Heard(Simulator):
            def __init__(self, *arguments, heard=heard, **options):
                super().__init__(*arguments, **options)
                deliver = self.ports[0].deliver
                self.ports[0].deliver = lambda mail: (heard.append(mail[0].source), deliver(mail))

        simulate(asked, workers=2, seed=seed, costs=COSTS["all alike"], world=Heard)
        firsts.add(heard[0])
    assert firsts == {1, 2}
