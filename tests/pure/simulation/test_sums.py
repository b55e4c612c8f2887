"""Sums in virtual time: their numbers, bits and bytes, and exactly when they are over."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.config import TrainConfig
from psrt.config.modes import AllReduce
from psrt.core.errors import ConfigError
from psrt.core.partition import Span, even_spans
from psrt.job.virtual import simulate
from psrt.optim import BLOCK
from psrt.simulation import SimulationCosts, Simulator
from psrt.transport import CONTROL, RoleMap
from support.cases import each

LATENCY, RATE = 0.5, 64.0


def numbers(size, n, seed=1):
    """Return numbers whose sum shows the order of addition in its last bits."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(n) * 10 ** rng.uniform(-3, 3, n)).astype(np.float32)
        for _ in range(size)
    ]


def workers_only(size, n, role, costs=None, *, seed=4, controls=1):
    """Run ``role(port)`` at workers without servers; return results and the world."""
    role_map = RoleMap(n, workers=tuple(range(size)), controls=controls)
    it = Simulator(role_map, seed=seed, costs=costs)
    results = it.run({rank: role(it.ports[rank]) for rank in range(size)})
    return [results[rank] for rank in range(size)], it


def summed(size, n, algorithm, costs, *, takes=True):
    """Sum twice, n elements taken or in place; return by rank what came out, and the world."""
    given = numbers(size, n)

    async def role(port):
        got = []

        def take(span, sums):
            span.of(port.theta)[:] = sums
            sums[:] = np.nan  # they may be overwritten

        reduction = port.reduction(Span(0, n), algorithm, take if takes else None)
        for _ in range(2):
            port.gradient[:n] = given[port.rank]
            reduction.begin()
            await reduction.finish()
            got.append((port.theta if takes else port.gradient[:n]).copy())
        assert (got[0] == got[1]).all()
        return got[0]

    return workers_only(size, n, role, costs)


def in_order(vectors, first=0):
    """Add float32 by float32: one first, then the others as they come."""
    total = vectors[first].copy()
    for rank, vector in enumerate(vectors):
        if rank != first:
            total += vector
    return total


@each(("size", "n"), [(1, 11), (2, 1), (3, 0), (5, 11), (8, 64)])
@each("algorithm", ALGORITHMS)
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


def test_who_differs_is_known_to_all():
    async def role(port):
        largest = 2**63 - 1
        rounds = ([7, 7, 7, 7], [largest, 7, largest, largest], [1, 2, 2, 3])
        return [await port.differing(numbers[port.rank]) for numbers in rounds]

    results, _ = workers_only(4, 1, role)
    assert results == [[[], [1], [0, 3]]] * 4


class TestBits:
    @each(("size", "n"), [(1, 7), (2, 0), (3, 1), (3, 100), (5, 7), (5, BLOCK + 5)])
    def test_by_node_each_owner_adds_the_others_to_its_own(self, size, n):
        given = numbers(size, n)
        expected = np.empty(n, np.float32)
        for owner, own in enumerate(even_spans(n, size)):
            own.of(expected)[:] = in_order([own.of(vector) for vector in given], owner)
        results, it = summed(size, n, "node", SimulationCosts())
        for result in results:
            assert result.tobytes() == expected.tobytes()
        for port, own in zip(it.ports, even_spans(n, size), strict=True):
            assert port.bytes_sent == port.bytes_received == 2 * 4 * own.size * (size - 1)

    @pytest.mark.parametrize(
        ("algorithm", "costs"),
        [("node", SimulationCosts()), ("mpi", SimulationCosts(reduce=lambda _: 1.0))],
    )
    def test_what_all_want_whole_is_added_in_worker_order(self, algorithm, costs):
        given = numbers(5, 40)
        for result in summed(5, 40, algorithm, costs, takes=False)[0]:
            assert result.tobytes() == in_order(given).tobytes()
        # The order does matter; else this would show nothing.
        assert len({in_order(given, first).tobytes() for first in range(1, 5)}) == 4


class TestTime:
    def over(self, size, algorithm, costs, *, late=10.0, buckets=1):
        """Return when each rank knew its sums; the last one comes late."""
        n = 12 * buckets
        cuts = even_spans(n, buckets)

        async def role(port):
            times = []
            head = port.reduction(Span(n, n + CONTROL), algorithm, None)
            sums = [port.reduction(span, algorithm, lambda *_: None) for span in cuts]
            for _ in range(2):
                head.begin()
                await port.pause(late * (port.rank == size - 1))
                await head.finish()
                for reduction in sums:
                    reduction.begin()
                for reduction in sums:
                    await reduction.finish()
                times.append(port.now())
            return times

        return workers_only(size, n, role, costs)[0]

    @pytest.mark.parametrize("size", [1, 2, 5])
    @pytest.mark.parametrize("bandwidth", [RATE, float("inf")])
    @pytest.mark.parametrize("buckets", [1, 3])
    def test_node_is_two_meetings_and_the_bytes_that_a_rank_moves(self, size, bandwidth, buckets):
        """Of several sums, the bytes move one after another."""

        def seconds(n):
            moved = 4 * n * (size - 1) / size
            return 2 * LATENCY * (size > 1) + moved / bandwidth + moved * 0.25

        costs = SimulationCosts(latency=lambda _: LATENCY, bandwidth=bandwidth, per_byte=0.25)
        head = seconds(CONTROL)
        queued = (buckets - 1) * 4 * 12 * (size - 1) / size / bandwidth
        # The control values are summed while the last one is late.
        first = max(head, 10.0) + seconds(12) + queued
        second = first + max(head, 10.0) + seconds(12) + queued
        for times in self.over(size, "node", costs, buckets=buckets):
            assert times == pytest.approx([first, second])

    @pytest.mark.parametrize("buckets", [1, 3])
    @pytest.mark.parametrize("algorithm", ["ring", "node", "mpi", "naive"])
    def test_a_measured_sum_takes_what_it_took_once_a_round(self, algorithm, buckets):
        drawn = iter([3.0, 4.0])
        costs = SimulationCosts(
            latency=lambda _: 99.0, bandwidth=1e-9, reduce=lambda _: next(drawn)
        )
        for times in self.over(4, algorithm, costs, buckets=buckets):
            assert times == [13.0, 27.0]

    def test_measured_sums_of_fragments_take_turns(self):
        async def role(port):
            times = []
            sums = [port.reduction(Span(i, i + 1), "node", None) for i in range(2)]
            for reduction in sums * 2:
                reduction.begin()
                await reduction.finish()
                times.append(port.now())
            return times

        drawn = iter([1.0, 2.0, 4.0, 8.0])
        costs = SimulationCosts(reduce=lambda _: next(drawn))
        assert workers_only(3, 2, role, costs, controls=2)[0] == [[1.0, 3.0, 7.0, 15.0]] * 3

    def test_comparing_takes_two_meetings_unless_it_was_measured_along(self):
        async def role(port):
            await port.pause(port.rank)
            assert await port.differing(3) == []
            return port.now(), port.bytes_sent, port.bytes_received

        for reduce, end in ((None, 2 + 2 * LATENCY + 16 / RATE), (lambda _: 9.0, 2.0)):
            costs = SimulationCosts(latency=lambda _: LATENCY, bandwidth=RATE, reduce=reduce)
            assert workers_only(3, 1, role, costs)[0] == [(end, 16, 16)] * 3


class TestOverlap:
    """A real rank begins sums while it computes; here computing is done before its time passes."""

    @pytest.mark.parametrize(("overlap", "least", "most"), [(False, 1.5, 1.51), (True, 1.29, 1.3)])
    def test_sums_travel_during_the_backward_pass(self, overlap, least, most):
        """Half a second of sums beside a second of computing, of three layers alike.

        They are ready after 15, 21 and 24 of 24 parts of the computing. A hop of a layer takes
        two; the second hop of two is sent at the end of a layer, or while the rank waits. So seven
        parts are left when all is computed.
        """
        n = 3 * 100 * 101
        asked = TrainConfig(
            mode=AllReduce(overlap=overlap, bucket_bytes=1 if overlap else None), allreduce="ring",
            steps=10, batch_size=16,
            hidden=(100, 100, 100), dataset="synthetic:200x100x2",
        )  # fmt: skip
        costs = SimulationCosts(
            compute=lambda *_: 1.0, latency=lambda _: 1e-6, bandwidth=4 * n / 0.5
        )
        for how in ({}, {"numerics": False}):
            run = simulate(asked, workers=2, costs=costs, **how)
            assert least < run.seconds / 10 < most

    @pytest.mark.parametrize(
        ("allreduce", "workers", "rounds"),
        [
            ("ring", 5, 8),
            ("all-pairs", 3, 4),
            ("butterfly", 4, 2),
        ],
    )
    def test_a_step_has_a_sum_of_control_values_but_for_one_message_and_one_of_the_gradient(
        self, allreduce, workers, rounds
    ):
        asked = TrainConfig(
            mode="allreduce:overlap=false", allreduce=allreduce, hidden=(9, 9), batch_size=4
        )
        costs = SimulationCosts(compute=lambda *_: 1.0, latency=lambda _: 0.01)
        few, many = (
            simulate(replace(asked, steps=n), workers=workers, costs=costs, numerics=False).seconds
            for n in (1, 7)
        )
        assert (many - few) / 6 == pytest.approx(1.0 + (2 * rounds - 1) * 0.01)


# A test that is called [mpi] would be left out: it counts as one for mpirun.
@pytest.mark.parametrize("name", ["mpi", "node+ring"], ids=["library", "hosts"])
def test_some_all_reduces_need_mpi_or_a_run_that_has_measured_them(name):
    def port(**costs):
        world = Simulator(RoleMap(3, workers=range(4)), seed=0, costs=SimulationCosts(**costs))
        return world.ports[0]

    for ask in (lambda it: it.choice(name, 3), lambda it: it.reduction(Span(0, 3), name, None)):
        with pytest.raises(ConfigError, match=rf"all-reduce {re.escape(name)} needs MPI; in v"):
            ask(port())
    measured = port(reduce=lambda _: 1.0)
    assert measured.choice("mpi", 5) == ("mpi", "as asked")
    assert measured.choice("auto", 10**6)[0] == "node"
