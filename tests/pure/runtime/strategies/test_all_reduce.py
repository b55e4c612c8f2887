"""Sums of gradients: who is there and how much they weigh, and buckets that come early."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrt.collective import ALGORITHMS
from psrt.core.errors import ProtocolError
from psrt.core.partition import Span
from psrt.optim import Schedule
from psrt.optim.table import Always, Sgd
from psrt.runtime.strategies.all_reduce import AllReduce
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.buckets import buckets_of
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.updater import Updater
from psrt.simulation import Simulator
from psrt.transport import RoleMap, SoloPort, drive
from support.cases import each


def raise_on_all(size, role, n=4):
    world = Simulator(RoleMap(n, workers=tuple(range(size))), seed=0)
    results = world.run({rank: role(world.ports[rank]) for rank in range(size)})
    return [results[rank] for rank in range(size)]


def strategy(port, lr=1.0, **knobs):
    def updater(spans):
        n = sum(span.size for span in spans)
        return Updater(n, Sgd().make(n), Schedule(Always(), lr, epochs=9))

    return AllReduce(port, updater, **{"algorithm": "ring", "batch_size": 4, **knobs})


async def take_step(it, step, fill):
    """Do what a worker does: begin, compute, share."""
    it.begin(step)
    if step.samples:
        fill()
    return await it.step(step)


SPANS = [Span(6, 10), Span(5, 6), Span(5, 5), Span(0, 5)]


def backward(port, it, numbers, *, stop):
    """Fill the gradient span by span, the last first, and say so up to a point."""
    for i, span in enumerate(SPANS):
        span.of(port.gradient)[:] = span.of(numbers)
        if i < stop and it.ready is not None:
            it.ready(i)


@each("stop", range(len(SPANS) + 1))
@each("bucket_bytes", [1, 20, 1000])
def test_buckets_come_to_the_same_however_many_are_said_to_be_ready(stop, bucket_bytes):
    """Rank r brings 4r samples, so rank 0 none; uneven weights and a scale that is not 1."""

    async def role(port):
        it = strategy(port, spans=SPANS, bucket_bytes=bucket_bytes)
        numbers = np.arange(10, dtype=np.float32) + port.rank
        for clock in range(2):
            step = Step(clock, 4 * port.rank, 0.0)
            await take_step(it, step, lambda: backward(port, it, numbers, stop=stop))
        await it.leave(2)
        return port.theta.tolist()

    mean = np.arange(10) + (1 * 1 + 2 * 2) / 3
    thetas = raise_on_all(3, role, n=10)
    assert thetas[0] == thetas[1] == thetas[2]
    np.testing.assert_allclose(thetas[0], -2 * mean, rtol=1e-6)


@each(("bucket_bytes", "buckets"), [(1, 3), (17, 2), (20, 2), (25, 1)])
def test_the_plan_says_how_it_is_cut(bucket_bytes, buckets):
    it = strategy(SoloPort(10), spans=SPANS, bucket_bytes=bucket_bytes, algorithm="ring")
    # One bucket is full when all is there: nothing overlaps, and nobody need say so.
    assert it.plan == ("ring", "as asked", buckets, buckets > 1, "ring", None, "", 0)
    assert (it.ready is not None) == (buckets > 1)
    assert strategy(SoloPort(10)).plan.buckets == 1


def test_a_bucket_is_updated_while_the_rest_is_computed():
    port = SoloPort(10)
    it = strategy(port, spans=SPANS, bucket_bytes=1)
    seen = []

    def fill():
        for i, span in enumerate(SPANS):
            span.of(port.gradient)[:] = 1.0
            it.ready(i)
            seen.append(int(np.count_nonzero(port.theta)))

    drive(take_step(it, Step(0, 4, 0.0), fill))
    assert seen == [4, 5, 5, 10]
    assert port.theta.tolist() == [-1.0] * 10
    it.begin(Step(1, 4, 0.0))
    it.ready(0)
    with pytest.raises(ProtocolError, match="span 2 of its gradient is ready, expected span 1"):
        it.ready(2)


def corrupted(check_every, *, size, victim, when):
    """Flip the last bit of one number on one rank after update ``when``; return what is said."""

    async def role(port):
        it = strategy(port, check_every=check_every)
        for clock in range(7):
            await take_step(it, Step(clock, 4, 0.0), lambda: port.gradient[:4].fill(1.0))
            if port.rank == victim and clock + 1 == when:
                port.theta.view(np.int32)[2] ^= 1
        await it.leave(7)

    try:
        raise_on_all(size, role)
    except ProtocolError as error:
        return str(error)
    return None


def test_a_rank_whose_parameters_differ_is_caught_at_the_next_check():
    assert corrupted(3, size=4, victim=2, when=4) == (
        "the parameters of worker 2 (rank 2) differ from the others' after update 6, "
        "they must be equal to the bit"
    )
    # Of two ranks it is the second.
    said = corrupted(1, size=2, victim=0, when=2)
    assert "worker 1 (rank 1) differ from the others' after update 3," in said
    assert corrupted(0, size=3, victim=1, when=1) is None
    assert corrupted(8, size=3, victim=1, when=1) is None


# --- rounds ---------------------------------------------------------------------------------------

N = 5


class Noting(Updater):
    """Steps with a rate of 1, and notes the progress of every update and what it was given."""

    def __init__(self, n=N):
        super().__init__(n, Sgd().make(n), Schedule(Always(), 1.0, epochs=9))
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


@each("algorithm", ALGORITHMS)
@each("size", [2, 5])
def test_the_mean_is_over_those_with_samples_and_the_progress_over_those_present(algorithm, size):
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
    (theta, begun), *others = raise_on_all(size, role, n=N)
    np.testing.assert_allclose(theta, [-mean] * N, rtol=1e-6)
    np.testing.assert_allclose(begun, [2.0 + sum(ranks) / size])
    assert others == [(theta, begun)] * (size - 1)


@each("size", [2, 5])
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

    assert raise_on_all(size, role, n=N) == [([-3.0] * N, [0.25])] * size


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


# --- buckets --------------------------------------------------------------------------------------


def spans_of(sizes):
    """Return spans of these sizes that tile a vector from its end to its beginning."""
    stop, spans = sum(sizes), []
    for size in sizes:
        spans.append(Span(stop - size, stop))
        stop -= size
    return spans


SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=12)


@settings(max_examples=50)
@given(SIZES, st.integers(0, 500))
def test_buckets_tile_the_vector_and_are_as_short_as_may_be(sizes, bucket_bytes):
    """All but the last are long enough, and would not be without their last span."""
    spans = spans_of(sizes)
    buckets = buckets_of(spans, bucket_bytes)
    bounds = [sum(sizes), *(bucket.span.start for bucket in buckets)]
    assert [bucket.span.stop for bucket in buckets] == bounds[:-1]
    assert bounds[-1] == 0
    lasts = [bucket.last for bucket in buckets]
    assert lasts == sorted(set(lasts))
    assert all(4 * bucket.span.size >= bucket_bytes for bucket in buckets[:-1])
    for bucket in buckets:
        assert bucket.span.size
        assert bucket.span.start == spans[bucket.last].start
        without = bucket.span.size - spans[bucket.last].size
        assert without == 0 or 4 * without < bucket_bytes
