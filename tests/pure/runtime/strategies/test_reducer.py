"""Reducer of weighted sums: who is there, how much they weigh, and what is made of the sums."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.optim import Schedule, make_optimizer
from psrt.partition import Span
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.updater import Updater
from psrt.simulation import Simulator
from psrt.transport import RoleMap, SoloPort, drive
from support.cases import each

N = 5


class Noting(Updater):
    """Steps with a rate of 1, and notes the progress of every update and what it was given."""

    def __init__(self, n=N):
        super().__init__(n, make_optimizer("sgd", n), Schedule("constant", 1.0, epochs=9))
        self.begun, self.blocks = [], []

    def begin(self, progress):
        self.begun.append(progress)
        self.blocks.append([])
        super().begin(progress)

    def block(self, span, theta, gradient, out):
        assert self.begun, "nothing is taken before the control values are known"
        self.blocks[-1].append(span)
        super().block(span, theta, gradient, out)


def reducer_of(port, updater=None, **knobs):
    defaults = {"algorithm": "ring", "full": 8, "buckets": [Span(0, port.role_map.n)]}
    return Reducer(port, updater or Noting(port.role_map.n), **defaults | knobs)


def raise_on_all(size, role, n=N, seed=0):
    world = Simulator(RoleMap(n, workers=tuple(range(size))), seed=seed)
    results = world.run({rank: role(world.ports[rank]) for rank in range(size)})
    return [results[rank] for rank in range(size)]


@each("seed", range(3))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@each("size", [2, 3, 5])
def test_the_mean_is_over_those_with_samples_and_the_progress_over_those_present(
    algorithm, size, seed
):
    """Rank r brings 4r samples; rank 0 none, and what its gradient holds is garbage."""

    async def role(port):
        updater = Noting()
        reducer = reducer_of(port, updater, algorithm=algorithm, buckets=[Span(3, N), Span(0, 3)])
        port.gradient[:] = np.nan
        weight = reducer.weight(4 * port.rank)
        reducer.start(weight, Step(0, 1, 2.0 + port.rank))
        if port.rank:
            port.gradient[:N] = weight * np.float32(port.rank)
        assert await reducer.finish(empty=not port.rank)
        await reducer.join(1)
        assert updater.blocks == [[Span(3, N), Span(0, 3)]]
        assert reducer.updates == 1
        return port.theta.tolist(), updater.begun

    ranks = range(size)
    mean = sum(r * r for r in ranks) / sum(ranks)
    (theta, begun), *others = raise_on_all(size, role, seed=seed)
    np.testing.assert_allclose(theta, [-mean] * N, rtol=1e-6)
    np.testing.assert_allclose(begun, [2.0 + sum(ranks) / size])
    assert others == [(theta, begun)] * (size - 1)


@pytest.mark.parametrize("size", [2, 5])
def test_those_who_attend_step_along_but_have_no_progress(size):
    async def role(port):
        updater = Noting()
        reducer = reducer_of(port, updater)
        if port.rank == 1:
            reducer.start(reducer.weight(8), Step(0, 1, 0.25))
            port.gradient[:N] = 3.0
            await reducer.finish()
        await reducer.join(1)
        return port.theta.tolist(), updater.begun

    assert raise_on_all(size, role) == [([-3.0] * N, [0.25])] * size


def test_when_nobody_is_there_it_is_over():
    async def role(port):
        updater = Noting()
        port.gradient[:] = 7
        reducer = reducer_of(port, updater)
        await reducer.join(1)
        return updater.begun, reducer.updates, port.theta.tolist()

    assert raise_on_all(3, role) == [([], 0, [0.0] * N)] * 3


def test_a_round_without_samples_sums_nothing_but_goes_on():
    async def role(port):
        reducer = reducer_of(port)
        reducer.start(0.0, Step(0, 1, 0.0))
        training = await reducer.finish(empty=True)
        return training, reducer.updates, port.bytes_sent

    control_only = 4 * 4  # a ring of two: 3 floats are cut in 2 and 1, each chunk goes twice
    for training, updates, sent in raise_on_all(2, role):
        assert (training, updates) == (True, 0)
        assert sent <= control_only


class Prepared:
    """A reduction that is over when it is told so, or at once if it has something to take."""

    def __init__(self, port, span, take):
        self.port, self.span, self.take, self.over = port, span, take, take is not None
        self.begun = False

    def begin(self):
        self.begun = True

    def poll(self):
        assert self.begun
        if self.over and self.take is not None:
            self.take(self.span, self.span.of(self.port.gradient))
            self.take = None
        return self.over

    async def finish(self):
        self.over = True
        self.poll()


class PreparedPort(SoloPort):
    """One of two workers, among prepared reductions."""

    def __init__(self, n):
        super().__init__(n)
        self.role_map = RoleMap(n, workers=(0, 1))
        self.reductions = []

    def reduction(self, span, algorithm, take, codec=None):
        self.reductions.append(Prepared(self, span, take))
        return self.reductions[-1]


@pytest.mark.parametrize("waits", [True, False])
def test_nothing_is_taken_before_the_control_values_are_known(waits):
    """Sums of a bucket may be there long before: nobody looks at them."""
    port, updater = PreparedPort(N), Noting()
    reducer = reducer_of(port, updater, buckets=[Span(3, N), Span(0, 3)])
    head, first, second = port.reductions
    reducer.start(1.0, Step(0, 1, 0.0))
    port.gradient[:N] = 1.0
    reducer.begin()
    reducer.poll()
    assert (head.begun, first.begun, second.begun) == (True, True, False)
    assert updater.begun == port.theta.nonzero()[0].tolist() == []
    if waits:
        drive(reducer.finish())
    else:
        head.over = True
        reducer.poll()
        assert port.theta.tolist() == [0, 0, 0, -1, -1]
        drive(reducer.finish())
    assert port.theta.tolist() == [-1.0] * N


def test_alone_nothing_is_rounded_and_all_there_is_weighs_1():
    port, updater = SoloPort(N), Noting()
    reducer = reducer_of(port, updater)
    assert (reducer.weight(3), reducer.weight(8), reducer.weight(0)) == (1.0, 1.0, 0.0)
    port.gradient[:N] = 1.5
    reducer.start(1.0, Step(0, 1, 0.1))
    reducer.begin()
    reducer.poll()
    assert port.theta.tolist() == [-1.5] * N  # as soon as somebody looks
    assert drive(reducer.finish())
    assert updater.begun == [0.1]  # not as a float32
    drive(reducer.join(1))
    assert reducer.updates == 1


def test_what_is_stepped_from_may_be_elsewhere_and_follows():
    port = SoloPort(N)
    base = np.full(N, 10, np.float32)
    reducer = reducer_of(port, base=base)
    for _ in range(2):
        port.theta[:] = np.nan  # went its own way since the last round
        reducer.start(1.0, Step(0, 1, 0.0))
        port.gradient[:N] = 1.0
        drive(reducer.finish())
    assert port.theta.tolist() == base.tolist() == [8.0] * N


def test_blocks_are_no_longer_than_an_optimizer_takes():
    n = 150_000
    port, updater = SoloPort(n), Noting(n)
    reducer = reducer_of(port, updater, buckets=[Span(100, n), Span(0, 100)])
    reducer.start(1.0, Step(0, 1, 0.0))
    drive(reducer.finish())
    (blocks,) = updater.blocks
    assert max(span.size for span in blocks) == 65536
    assert sorted(i for span in blocks for i in span) == sorted(
        [0, 100, 100, 65636, 65636, 131172, 131172, n]
    )


def test_servers_have_no_part_in_it():
    port = SoloPort(N)
    port.role_map = RoleMap(N, workers=(0,), servers=(1,))
    with pytest.raises(AssertionError, match="among all ranks"):
        reducer_of(port)
