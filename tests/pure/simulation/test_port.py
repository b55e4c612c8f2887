"""The scheduler of virtual time: order, chance, payloads, and what it says of a deadlock."""

from __future__ import annotations

import re

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.collective.analysis.machine import MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts
from psrt.errors import ConfigError, TransportError
from psrt.messages import Leave, Params, Push
from psrt.partition import Span
from psrt.simulation import SimulationCosts, Simulator
from psrt.transport import CONTROL, NO_PAYLOAD, RoleMap
from psrt.transport.port import GRADIENT
from support.cases import each

#: Rank 0 is the server of all four parameters, ranks 1 and 2 are workers.
STAR = RoleMap(4, workers=(1, 2), servers=(0,), spans=(Span(0, 4),))
AT_ONCE = SimulationCosts(compute=lambda *_: 1.0, latency=lambda _: 0.5, per_byte=0.0)


def push(worker, clock=0):
    return Push(worker, clock, 0, 1, 0.0)


def params(version):
    return Params(0, version, version, 0)


def world(seed=0, costs=None, **options):
    return Simulator(STAR, seed=seed, costs=costs, **options)


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

        it = world(costs=SimulationCosts(latency=lambda _: 0.5, per_byte=0.25))
        results = run(it, rank0=receiver(it.ports[0]), rank1=sender(it.ports[1]))
        assert results[0] == (0.5 + 80 * 0.25, 80)
        assert it.ports[1].bytes_sent == 80

    def test_messages_of_a_pair_keep_their_order_whatever_each_takes(self):
        async def sender(port):
            for clock in range(50):
                port.send(0, push(0, clock))

        async def receiver(port):
            return [(await port.receive()).clock for _ in range(50)]

        it = world(costs=SimulationCosts(latency=lambda rng: rng.exponential()))
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
            found = port.payload(0, 0).copy()
            await port.pause(4.0)
            return found.tolist(), port.payload(0, 0).tolist()

        it = world(costs=AT_ONCE, shared_memory=shared_memory)
        return run(it, rank0=receiver(it.ports[0]), rank1=sender(it.ports[1]))[0]

    def test_shared_memory_is_the_workers_own(self):
        assert self.gradient_on_arrival(True) == ([1] * 4, [2] * 4)

    def test_other_memory_is_a_copy(self):
        assert self.gradient_on_arrival(False) == ([1] * 4, [1] * 4)

    @pytest.mark.parametrize("shared_memory", [True, False])
    def test_a_frame_arrives_and_takes_the_time_of_its_bytes(self, shared_memory):
        frame = np.arange(20, dtype=np.uint8)

        async def sender(port):
            port.send_framed(0, push(0), frame)
            return port.bytes_sent

        async def receiver(port):
            await port.receive()
            return port.frame(0, 0).tolist(), port.now(), port.bytes_received

        costs = SimulationCosts(latency=lambda _: 0.5, per_byte=0.25)
        it = world(costs=costs, shared_memory=shared_memory)
        results = run(it, rank0=receiver(it.ports[0]), rank1=sender(it.ports[1]))
        assert results == {0: (frame.tolist(), 0.5 + 84 * 0.25, 84), 1: 84}

    def test_parameters_are_read_from_their_version_and_land_in_theta(self):
        async def server(port):
            port.versions[0][1][:] = 7
            port.send(1, params(1), 1)
            flying = port.in_flight(1, 0), port.in_flight(2, 0)
            await port.until(lambda: not port.in_flight(1, 0), lambda: "the reader")
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
            port.versions[0][0][:] = 1
            port.send(1, params(1), 0)
            port.versions[0][0][:] = 2

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
            return port.payload(0, 0).tolist(), port.bytes_received

        it = world(costs=AT_ONCE, shared_memory=False)
        results = run(it, rank0=receiver(it.ports[0]), rank1=sender(it.ports[1]))
        assert results[0] == ([0] * 4, 64)


class TestDeadlock:
    def test_it_is_said_who_waits_for_whom(self):
        async def waits(port):
            port.waiting_for = lambda: "Godot"
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


def workers_only(size, n, role, seed=0, costs=None):
    """Run ``role(port)`` at so many workers without servers; return results and the world."""
    it = Simulator(RoleMap(n, workers=tuple(range(size))), seed=seed, costs=costs)
    results = it.run({rank: role(it.ports[rank]) for rank in range(size)})
    return [results[rank] for rank in range(size)], it


@each("n", [0, 1, 11, 64])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@each("size", [1, 2, 3, 5, 8])
def test_reductions_sum_and_count_their_bytes(algorithm, size, n):
    async def role(port):
        span = Span(2, 2 + n)
        reduction = port.reduction(span, algorithm, None)
        for _ in range(2):  # one plan, as often as is wanted
            port.gradient[:] = np.arange(70) + port.rank
            reduction.begin()
            await reduction.finish()
        return port.gradient.tolist()

    results, it = workers_only(size, 70 - CONTROL, role, seed=size)
    for rank, result in enumerate(results):
        expected = np.arange(70) + rank
        expected[2 : 2 + n] = size * np.arange(2, 2 + n) + sum(range(size))
        assert result == expected.tolist()
    for rank, port in enumerate(it.ports):
        steps = list(ALGORITHMS[algorithm](rank, size, n))
        # Local steps cost no message.
        sent = sum(step.send.size for step in steps if step.send_to not in (None, rank))
        received = sum(s.receive.size for s in steps if s.receive_from not in (None, rank))
        assert (port.bytes_sent, port.bytes_received) == (2 * 4 * sent, 2 * 4 * received)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_reductions_under_way_at_once_do_not_mix(algorithm, seed):
    """Ranks look at them in orders of their own, and some are a round ahead of others."""
    spans = [Span(0, 5), Span(5, 6), Span(6, 20)]

    async def role(port):
        rng = np.random.default_rng((seed, port.rank))
        reductions = [port.reduction(span, algorithm, None) for span in spans]
        rounds = []
        for number in range(3):
            port.gradient[:20] = np.arange(20) * (port.rank + 1) + number
            for reduction in reductions:
                reduction.begin()
                await port.pause(rng.exponential(1e-4))
                begun = reductions.index(reduction) + 1
                for i in rng.integers(0, begun, size=rng.integers(0, 4)):
                    reductions[i].poll()
            for reduction in reductions:
                await reduction.finish()
            rounds.append(port.gradient[:20].tolist())
        return rounds

    results, _ = workers_only(4, 20, role, seed=seed)
    expected = [(np.arange(20) * 10 + 4 * number).tolist() for number in range(3)]
    assert results == [expected] * 4


def test_sums_that_are_taken_come_in_blocks_and_are_left_out_of_the_gradient():
    n = 70_000

    async def role(port):
        taken = []

        def take(span, sums):
            taken.append(span)
            span.of(port.theta)[:] = sums
            sums[:] = np.nan  # they may be overwritten

        reduction = port.reduction(Span(10, n), "ring", take)
        for _ in range(2):
            port.gradient[:] = port.rank + 1
            reduction.begin()
            await reduction.finish()
        return taken, set(port.theta[:10]), set(port.theta[10:]), set(port.gradient)

    results, _ = workers_only(2, n, role)
    blocks = [Span(10, 65546), Span(65546, n)]
    assert results == [(2 * blocks, {0.0}, {3.0}, {rank + 1.0}) for rank in range(2)]


def test_a_reduction_gets_on_where_others_were_faster():
    """Rank 1 never waits; rank 0 is there long before."""

    async def first(port):
        reduction = port.reduction(Span(0, 1), "tree", None)
        reduction.begin()
        await reduction.finish()
        return port.gradient[0]

    async def second(port):
        reduction = port.reduction(Span(0, 1), "tree", None)
        reduction.begin()
        seen = [reduction.poll()]
        await port.pause(1.0)
        seen.append(reduction.poll())
        return seen

    async def role(port):
        port.gradient[:] = 1 + port.rank
        return await (second if port.rank else first)(port)

    results, _ = workers_only(2, 1, role)
    assert results == [3.0, [False, True]]


def test_a_rank_that_never_takes_part_is_missed():
    async def role(port):
        reduction = port.reduction(Span(0, 1), "tree", None)
        if port.rank != 1:
            port.waiting_for = lambda: "its neighbours"
            reduction.begin()
            await reduction.finish()

    with pytest.raises(TransportError, match=r"rank 0 waits for its neighbours; rank 2 waits"):
        workers_only(3, 1, role)


@pytest.mark.parametrize("seed", range(3))
def test_who_differs_is_known_to_all(seed):
    async def role(port):
        largest = 2**63 - 1
        rounds = ([7, 7, 7, 7], [largest, 7, largest, largest], [1, 2, 2, 3])
        return [await port.differing(numbers[port.rank]) for numbers in rounds]

    results, _ = workers_only(4, 1, role, seed=seed)
    assert results == [[[], [1], [0, 3]]] * 4


# A test that is called [mpi] would be left out: it counts as one for mpirun.
@pytest.mark.parametrize("name", ["mpi", "node+ring"], ids=["library", "hosts"])
def test_some_all_reduces_need_mpi(name):
    port = Simulator(RoleMap(3, workers=(0, 1)), seed=0).ports[0]
    for ask in (
        lambda: port.choice(name, 3),
        lambda: port.reduction(Span(0, 3), name, None),
    ):
        with pytest.raises(ConfigError, match=rf"all-reduce {re.escape(name)} needs MPI; in virt"):
            ask()


def test_what_is_asked_for_is_what_is_taken_and_auto_picks_a_schedule():
    port = Simulator(RoleMap(3, workers=(0, 1, 2)), seed=0).ports[0]
    assert port.choice("tree", 9) == ("tree", "as asked")
    for n in (0, 1, 10**6):
        name, why = port.choice("auto", n)
        assert name in ALGORITHMS
        assert why
    # What it picks by is given: with nothing to pay but messages the fewest are the best.
    messages = LinkCosts(alpha=1.0, beta=0.0, gamma=0.0)
    few = MachineCosts(messages, messages, NodeCosts(0, 0), cores=1)
    role_map = RoleMap(3, workers=tuple(range(8)))
    port = Simulator(role_map, seed=0, machine=few).ports[0]
    assert port.choice("auto", 10**6)[0] not in ("ring", "segmented-ring")


def test_reports_reach_whoever_listens():
    it = world()
    got = []
    it.on_report = got.append
    it.ports[2].report("report")
    assert got == ["report"]
