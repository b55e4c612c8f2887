"""The strategy of all-reduce: who is there, how much they weigh, and buckets that come early."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.errors import ProtocolError
from psrt.optim import Schedule, make_optimizer
from psrt.partition import Span
from psrt.runtime.strategies.all_reduce import AllReduce
from psrt.runtime.strategies.base import Step
from psrt.runtime.updater import Updater
from psrt.simulation import Simulator
from psrt.transport import RoleMap, SoloPort, drive


def raise_on_all(size, role, n=4, seed=0):
    world = Simulator(RoleMap(n, workers=tuple(range(size))), seed=seed)
    results = world.run({rank: role(world.ports[rank]) for rank in range(size)})
    return [results[rank] for rank in range(size)]


def strategy(port, lr=1.0, **knobs):
    def updater(n):
        return Updater(n, make_optimizer("sgd", n), Schedule("constant", lr, epochs=9))

    return AllReduce(port, updater, **{"algorithm": "ring", "batch_size": 4, **knobs})


async def take_step(it, step, fill):
    """Do what a worker does: begin, compute, share."""
    it.begin(step)
    if step.samples:
        fill()
    return await it.step(step)


def test_ranks_that_are_done_step_along_with_those_that_are_not():
    """Rank r takes r steps; what weighs nothing is garbage and must not be looked at."""

    async def role(port):
        it = strategy(port)
        for clock in range(port.rank):
            await take_step(it, Step(clock, 4, 0.0), lambda: port.gradient[:4].fill(1.0))
        port.gradient[:] = np.nan
        await it.leave(port.rank)
        return port.theta.tolist(), it.updates

    assert raise_on_all(4, role) == [([-3.0] * 4, 3)] * 4


def test_a_step_of_empty_batches_is_none():
    async def role(port):
        it = strategy(port)
        port.gradient[:] = np.nan
        outcome = await take_step(it, Step(0, 0, 0.0), None)
        samples = 4 if port.rank else 0
        await take_step(it, Step(1, samples, 0.0), lambda: port.gradient[:4].fill(2.0))
        await it.leave(2)
        return outcome.clock, port.theta.tolist(), it.updates

    assert raise_on_all(2, role) == [(1, [-2.0] * 4, 1)] * 2


SPANS = [Span(6, 10), Span(5, 6), Span(5, 5), Span(0, 5)]


def backward(port, it, numbers, *, stop):
    """Fill the gradient span by span, the last first, and say so up to a point."""
    for i, span in enumerate(SPANS):
        span.of(port.gradient)[:] = span.of(numbers)
        if i < stop and it.ready is not None:
            it.ready(i)


@pytest.mark.parametrize("stop", range(len(SPANS) + 1))
@pytest.mark.parametrize("bucket_bytes", [1, 20, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_buckets_come_to_the_same_however_many_are_said_to_be_ready(stop, bucket_bytes, seed):
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
    thetas = raise_on_all(3, role, n=10, seed=seed)
    assert thetas[0] == thetas[1] == thetas[2]
    np.testing.assert_allclose(thetas[0], -2 * mean, rtol=1e-6)


@pytest.mark.parametrize(("bucket_bytes", "buckets"), [(1, 3), (17, 2), (25, 1)])
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


def test_spans_that_are_ready_out_of_order_are_refused():
    port = SoloPort(10)
    it = strategy(port, spans=SPANS, bucket_bytes=1)
    it.begin(Step(0, 4, 0.0))
    it.ready(0)
    with pytest.raises(ProtocolError, match="span 2 of its gradient is ready, expected span 1"):
        it.ready(2)


def corrupted(check_every, *, size, victim, when, seed=0):
    """Flip the last bit of one number on one rank after update ``when``; return what is said."""

    async def role(port):
        it = strategy(port, check_every=check_every)
        for clock in range(7):
            step = Step(clock, 4, 0.0)
            await take_step(it, step, lambda: port.gradient[:4].fill(1.0))
            if port.rank == victim and clock + 1 == when:
                port.theta.view(np.int32)[2] ^= 1
        await it.leave(7)

    with pytest.raises(ProtocolError) as caught:
        raise_on_all(size, role, seed=seed)
    return str(caught.value)


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_whose_parameters_differ_is_caught_at_the_next_check(seed):
    assert corrupted(3, size=4, victim=2, when=4, seed=seed) == (
        "the parameters of worker 2 (rank 2) differ from the others' after update 6, "
        "they must be equal to the bit"
    )


def test_of_two_ranks_that_differ_it_is_the_second():
    assert "worker 1 (rank 1) differ from the others' after update 3," in corrupted(
        1, size=2, victim=0, when=2
    )


def test_without_checks_nobody_looks():
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        corrupted(0, size=3, victim=1, when=1)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        corrupted(8, size=3, victim=1, when=1)
