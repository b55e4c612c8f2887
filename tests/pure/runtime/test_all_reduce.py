"""Weighted sums over ranks that may be done: who is there, how much they weigh, where they are."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.optim import Schedule, make_optimizer
from psrt.runtime.all_reduce import LIBRARY, AllReduce, Reducer, Rounds
from psrt.runtime.strategy import Step
from psrt.runtime.updater import Updater
from psrt.transport import SoloPort, VirtualWorld, Wiring, drive

ALGORITHMS = ["ring", "tree", "butterfly"]


def together(size, role, n=4, seed=0):
    world = VirtualWorld(Wiring(n, workers=tuple(range(size))), seed=seed)
    results = world.run({rank: role(world.ports[rank]) for rank in range(size)})
    return [results[rank] for rank in range(size)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_sum_tells_who_is_there(algorithm, size):
    async def role(port):
        rounds = Rounds(port, algorithm, full=8)
        rounds_seen = []

        def take(total, progress):
            rounds_seen.append(((total, progress), port.gradient[:4].tolist()))

        if port.rank:
            port.gradient[:4] = port.rank
            weight = rounds.weight(4 * port.rank)
            take(*await rounds.sum(weight, 2.0 + port.rank))
        await rounds.attend(take)
        assert len(rounds_seen) == 1  # the round in which nobody is present is none
        return rounds_seen[0]

    ranks = range(1, size)
    expected = (sum(rank / 2 for rank in ranks), 2.0 + sum(ranks) / len(ranks))
    assert together(size, role) == [(expected, [float(sum(ranks))] * 4)] * size


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_when_nobody_is_there_it_is_over(algorithm):
    taken = []

    async def role(port):
        port.gradient[:] = 7
        await Rounds(port, algorithm, full=8).attend(lambda *sums: taken.append(sums))

    together(3, role)
    assert taken == []


def test_alone_nothing_is_sent_and_all_there_is_weighs_1():
    port = SoloPort(4)  # refuses to exchange
    rounds = Rounds(port, "ring", full=8)
    assert (rounds.weight(3), rounds.weight(8), rounds.weight(0)) == (1.0, 1.0, 0.0)
    assert drive(rounds.sum(1.0, 2.5)) == (1.0, 2.5)
    taken = []
    drive(rounds.attend(lambda *sums: taken.append(sums)))
    assert taken == []


def test_the_librarys_own_is_the_ports():
    port = SoloPort(4)
    port.gradient[:] = 3
    drive(Reducer(port, LIBRARY).sum())
    assert port.gradient.tolist() == [3] * 7


def test_servers_have_no_part_in_it():
    port = SoloPort(4)
    port.wiring = Wiring(4, workers=(0,), servers=(1,))
    with pytest.raises(AssertionError, match="among all ranks"):
        Reducer(port, "ring")


def strategy(port, **knobs):
    updater = Updater(4, make_optimizer("sgd", 4), Schedule("constant", 1.0, epochs=9))
    return AllReduce(port, updater, batch_size=4, **knobs)


def test_ranks_that_are_done_step_along_with_those_that_are_not():
    """Rank r takes r steps; what weighs nothing is garbage and must not be looked at."""

    async def role(port):
        it = strategy(port)
        for clock in range(port.rank):
            port.gradient[:] = 1.0
            await it.step(Step(clock, 4, 0.0))
        port.gradient[:] = np.nan
        await it.leave(port.rank)
        return port.theta.tolist(), it.updates

    assert together(4, role) == [([-3.0] * 4, 3)] * 4


def test_a_step_of_empty_batches_is_none():
    async def role(port):
        it = strategy(port)
        port.gradient[:] = np.nan
        outcome = await it.step(Step(0, 0, 0.0))
        port.gradient[:4] = 2.0 if port.rank else np.nan
        await it.step(Step(1, 4 if port.rank else 0, 0.0))
        await it.leave(2)
        return outcome.clock, port.theta.tolist(), it.updates

    assert together(2, role) == [(1, [-2.0] * 4, 1)] * 2


def test_each_gradient_is_clipped_by_itself_and_then_weighed():
    async def role(port):
        it = strategy(port, clip_norm=2.0)
        port.gradient[:4] = 0.5 if port.rank == 0 else 4.0  # norms 1 and 8
        await it.step(Step(0, (4, 12)[port.rank], 0.0))
        await it.leave(1)
        return port.theta.tolist()

    assert together(2, role) == [[-(0.25 * 0.5 + 0.75 * 1.0)] * 4] * 2
