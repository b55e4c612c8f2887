"""The scheduler of virtual time: order, chance, payloads, and what it says of a deadlock."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.errors import ConfigError, TransportError
from psrt.messages import Leave, Params, Push
from psrt.partition import Span
from psrt.transport import EXTRA, NO_PAYLOAD, Costs, VirtualWorld, Wiring
from psrt.transport.port import GRADIENT

#: Rank 0 is the server of all four parameters, ranks 1 and 2 are workers.
STAR = Wiring(4, workers=(1, 2), servers=(0,), spans=(Span(0, 4),))
AT_ONCE = Costs(compute=lambda *_: 1.0, latency=lambda _: 0.5, per_byte=0.0)


def push(worker, clock=0):
    return Push(worker, clock, 0, 1, 0.0, 0.0)


def params(version):
    return Params(0, version, version, 0)


def world(seed=0, costs=None, **options):
    return VirtualWorld(STAR, seed=seed, costs=costs, **options)


def run(it, **roles):
    """Run roles at the ranks that their names end with."""
    return it.run({int(name[-1]): role for name, role in roles.items()})


class TestTime:
    def test_pausing_and_computing_take_their_time(self):
        async def worker(port):
            await port.pause(2.0)
            got = await port.compute(sum, (1, 2))
            return got, port.now()

        it = world(costs=AT_ONCE)
        assert run(it, rank1=worker(it.ports[1]))[1] == (3, 3.0)
        assert it.time == 3.0

    def test_a_message_takes_latency_and_bytes(self):
        async def sender(port):
            port.send(0, push(0), GRADIENT)

        async def receiver(port):
            await port.receive()
            return port.now(), port.bytes_received

        it = world(costs=Costs(latency=lambda _: 0.5, per_byte=0.25))
        results = run(it, rank0=receiver(it.ports[0]), rank1=sender(it.ports[1]))
        assert results[0] == (0.5 + 80 * 0.25, 80)
        assert it.ports[1].bytes_sent == 80

    def test_messages_of_a_pair_keep_their_order_whatever_each_takes(self):
        async def sender(port):
            for clock in range(50):
                port.send(0, push(0, clock))

        async def receiver(port):
            return [(await port.receive()).clock for _ in range(50)]

        it = world(costs=Costs(latency=lambda rng: rng.exponential()))
        results = run(it, rank0=receiver(it.ports[0]), rank1=sender(it.ports[1]))
        assert results[0] == list(range(50))

    def test_what_happens_at_one_time_happens_in_any_order(self):
        async def sender(port, worker):
            await port.pause(1.0)
            port.send(0, push(worker))

        async def receiver(port):
            return [(await port.receive()).worker for _ in range(2)]

        def first(seed):
            it = world(seed, AT_ONCE)
            ports = it.ports
            return run(
                it, rank0=receiver(ports[0]), rank1=sender(ports[1], 0), rank2=sender(ports[2], 1)
            )[0][0]

        firsts = [first(seed) for seed in range(20)]
        assert set(firsts) == {0, 1}
        assert firsts == [first(seed) for seed in range(20)]


class TestPayloads:
    def gradient_on_arrival(self, shared_memory):
        """Return what a server finds whose worker goes on writing after its push."""

        async def sender(port):
            port.gradient[:4] = 1
            port.send(0, push(0), GRADIENT)
            await port.pause(2.0)
            port.gradient[:4] = 2

        async def receiver(port):
            await port.receive()
            found = port.payload(0).copy()
            await port.pause(4.0)
            return found.tolist(), port.payload(0).tolist()

        it = world(costs=AT_ONCE, shared_memory=shared_memory)
        return run(it, rank0=receiver(it.ports[0]), rank1=sender(it.ports[1]))[0]

    def test_shared_memory_is_the_workers_own(self):
        assert self.gradient_on_arrival(True) == ([1] * 4, [2] * 4)

    def test_other_memory_is_a_copy(self):
        assert self.gradient_on_arrival(False) == ([1] * 4, [1] * 4)

    def test_parameters_are_read_from_their_version_and_land_in_theta(self):
        async def server(port):
            port.versions[1][:] = 7
            port.send(1, params(1), 1)
            flying = port.in_flight(1), port.in_flight(2)
            await port.until(lambda: not port.in_flight(1), lambda: "the reader")
            return flying, port.now()

        async def worker(port):
            await port.pause(3.0)
            await port.receive()
            return port.theta.tolist()

        it = world(costs=AT_ONCE)
        results = run(it, rank0=server(it.ports[0]), rank1=worker(it.ports[1]))
        assert results[0] == ((True, False), 3.0)
        assert results[1] == [7] * 4

    def test_a_version_that_is_written_while_in_flight_shows(self):
        """So a server that does not wait is found out."""

        async def server(port):
            port.versions[0][:] = 1
            port.send(1, params(1), 0)
            port.versions[0][:] = 2

        async def worker(port):
            await port.receive()
            return port.theta.tolist()

        it = world(costs=AT_ONCE)
        assert run(it, rank0=server(it.ports[0]), rank1=worker(it.ports[1]))[1] == [2] * 4

    def test_a_message_alone_moves_no_numbers(self):
        async def sender(port):
            port.gradient[:] = 5
            port.send(0, push(0), NO_PAYLOAD)

        async def receiver(port):
            await port.receive()
            return port.payload(0).tolist(), port.bytes_received

        it = world(costs=AT_ONCE, shared_memory=False)
        results = run(it, rank0=receiver(it.ports[0]), rank1=sender(it.ports[1]))
        assert results[0] == ([0] * 4, 64)


class TestDeadlock:
    def test_it_is_said_who_waits_for_whom(self):
        async def waits(port):
            port.whom = lambda: "Godot"
            await port.receive()

        it = world(costs=AT_ONCE)
        with pytest.raises(TransportError, match=r"deadlock at .*: rank 1 waits for Godot$"):
            run(it, rank1=waits(it.ports[1]))

    def test_so_it_is_of_what_never_comes_true(self):
        async def waits(port):
            await port.until(lambda: False, lambda: "the end of time")

        async def sends(port):
            port.send(0, Leave(1, 0))

        it = world(costs=AT_ONCE)
        with pytest.raises(TransportError, match="rank 0 waits for the end of time"):
            run(it, rank0=waits(it.ports[0]), rank2=sends(it.ports[2]))

    def test_an_error_of_a_role_is_the_runs_and_ends_the_others(self):
        ended = []

        async def fails(port):
            await port.pause(1.0)
            raise ValueError("no")

        async def waits(port):
            try:
                await port.receive()
            finally:
                ended.append(port.rank)

        it = world(costs=AT_ONCE)
        with pytest.raises(ValueError, match="no"):
            run(it, rank0=waits(it.ports[0]), rank1=fails(it.ports[1]))
        assert ended == [0]

    def test_what_sets_one_free_may_set_another_free(self):
        flags = []

        async def first(port):
            await port.until(lambda: bool(flags), lambda: "a flag")
            flags.append("second")
            return port.now()

        async def second(port):
            await port.until(lambda: len(flags) == 2, lambda: "two flags")
            return port.now()

        async def starts(port):
            await port.pause(1.0)
            flags.append("first")

        it = world()
        ports = it.ports
        results = run(it, rank0=second(ports[0]), rank1=first(ports[1]), rank2=starts(ports[2]))
        assert (results[0], results[1]) == (1.0, 1.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_collectives_sum_and_count_their_bytes(algorithm, size):
    n = 11

    async def role(port):
        port.gradient[:] = np.arange(n + EXTRA) + port.rank
        scratch = np.empty(n + EXTRA, np.float32)
        for step in ALGORITHMS[algorithm](port.rank, size, n + EXTRA):
            await port.exchange(step, scratch)
        return port.gradient.tolist()

    it = VirtualWorld(Wiring(n, workers=tuple(range(size))), seed=size)
    results = it.run({rank: role(it.ports[rank]) for rank in range(size)})
    expected = size * np.arange(n + EXTRA) + sum(range(size))
    assert list(results.values()) == [expected.tolist()] * size
    sent = [port.bytes_sent for port in it.ports]
    assert sum(sent) == sum(port.bytes_received for port in it.ports)
    assert all(sent) or size == 1


def test_there_is_no_library():
    async def role(port):
        await port.library_allreduce()

    it = VirtualWorld(Wiring(3, workers=(0,)), seed=0)
    with pytest.raises(ConfigError, match="needs MPI"):
        it.run({0: role(it.ports[0])})


def test_reports_reach_whoever_listens():
    it = world()
    got = []
    it.on_report = got.append
    it.ports[2].report("report")
    assert got == ["report"]


def test_there_is_no_announcing():
    assert world().ports[0].announce(1, params(1), 0) is None
