"""The scheduler of virtual time: order, chance, payloads, waiting, and the price of an event."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest

from psrt.config import TrainConfig
from psrt.errors import TransportError
from psrt.job.virtual import simulate
from psrt.messages import Leave, Params, Push
from psrt.partition import even_spans
from psrt.simulation import SimulationCosts, Simulator
from psrt.transport import RoleMap
from psrt.transport.port import GRADIENT

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

        assert run(star(), server, reader, busy)[0] == 3.0
        assert asked == [0.0, 3.0]


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

    def test_hundreds_of_workers(self):
        asked = TrainConfig(mode="async", servers=4, steps=2)
        found = simulate(asked, workers=250, numerics=False, parameters=10**6)
        # Starting, two steps, each computed, with a push and an answer at each of 4 servers.
        assert found.events >= 250 * (1 + 2 * (1 + 8)) + 4
        assert sum(server.shard.version for server in found.servers) == 250 * 2 * 4

    @pytest.mark.parametrize(
        "knobs",
        [
            {"mode": "softsync", "softsync": 2, "servers": 2},
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
