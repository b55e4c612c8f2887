"""The modes without servers under every order of events, for every schedule and small jobs.

The roles are the real ones, ``AllReduce`` and ``LocalSGD`` over ``Reducer``: workers with as many
steps as one likes, some of them without samples, each held against plain float64 after each step.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.core.partition import Span
from psrt.optim import Schedule
from psrt.optim.table import Always, Sgd
from psrt.runtime.strategies.all_reduce import AllReduce
from psrt.runtime.strategies.averaging import PlainAverage
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.local_sgd import LocalSGD, ReduceAverager
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.updater import Updater
from psrt.sync import AveragingPeriod
from support.cases import pairs
from support.ranks import Ranks

#: Elements of θ; the ring of three has one to a chunk.
N = 3
#: Samples of a full batch.
FULL = 2
#: By the number of ranks, how many states there are with the schedule that has the fewest.
LEAST = {1: 2, 2: 72, 3: 660, 4: 6}


def gradient(worker, clock):
    """Return numbers of which no two sums are the same."""
    return (clock + 1) * 16**worker * np.arange(1, N + 1, dtype=np.float32)


def all_reduce(algorithm, samples, spans=()):
    """Return the role of the workers that have so many samples at each of their steps."""
    rounds = max(map(len, samples))
    theta = [np.zeros(N)]
    for clock in range(rounds):
        there = [(w, given[clock]) for w, given in enumerate(samples) if clock < len(given)]
        total = sum(m for _, m in there)
        mean = sum(m * gradient(w, clock).astype(float) for w, m in there) / max(total, 1)
        theta.append(theta[-1] - mean)
    updates = sum(
        any(given[clock] for given in samples if clock < len(given)) for clock in range(rounds)
    )

    def updater(spans):
        n = sum(span.size for span in spans)
        return Updater(n, Sgd().make(n), Schedule(Always(), 1.0, epochs=9))

    async def role(port):
        strategy = AllReduce(
            port, updater, algorithm=algorithm, batch_size=FULL, spans=spans, bucket_bytes=1
        )
        clock = 0
        for clock, m in enumerate(samples[port.rank], 1):
            step = Step(clock - 1, m, 0.0)
            port.place = clock, "computes"
            strategy.begin(step)
            port.gradient[:N] = gradient(port.rank, clock - 1) if m else np.nan
            if m and strategy.ready is not None:
                for i in range(len(spans)):
                    port.place = clock, i
                    strategy.ready(i)
            port.place = clock, "steps"
            await strategy.step(step)
            np.testing.assert_allclose(port.theta, theta[clock], rtol=1e-5)
        port.place = clock, "leaves"
        await strategy.leave(clock)
        np.testing.assert_allclose(port.theta, theta[-1], rtol=1e-5)
        assert strategy.updates == updates, "the end came too early"

    return role


def local_sgd(algorithm, samples, period):
    """The same for local SGD; it is held against averages in float64 of what each has."""
    theta, ends = expected_averages(samples, period)

    async def role(port):
        local = Updater(N, Sgd().make(N), Schedule(Always(), 1.0, epochs=9))
        outer = Updater(N, PlainAverage(), Schedule(Always(), 1.0, epochs=9))
        averager = ReduceAverager(port, outer, steps=False, algorithm=algorithm, full=FULL)
        strategy = LocalSGD(port, local, averager, period)
        clock = 0
        for clock, m in enumerate(samples[port.rank], 1):
            step = Step(clock - 1, m, (clock - 1) / 2)
            port.place = clock, "computes"
            strategy.begin(step)
            port.gradient[:N] = gradient(port.rank, clock - 1) if m else np.nan
            await strategy.step(step)
            np.testing.assert_allclose(port.theta, theta[port.rank][clock - 1], rtol=1e-5)
        port.place = clock, "leaves"
        await strategy.leave(clock)
        np.testing.assert_allclose(port.theta, ends, rtol=1e-5)

    return role


def expected_averages(samples, period):
    """Return θ of each worker after each of its steps, and at the end."""
    size = len(samples)
    mine, had, since = [np.zeros(N) for _ in samples], [0] * size, [0] * size
    clock, after = [0] * size, [[] for _ in samples]
    while any(since) or any(clock[w] < len(samples[w]) for w in range(size)):
        averaging = []
        for w in range(size):
            while clock[w] < len(samples[w]):
                m, progress = samples[w][clock[w]], clock[w] / 2
                if m:
                    mine[w] = mine[w] - gradient(w, clock[w])
                clock[w], had[w], since[w] = clock[w] + 1, had[w] + m, since[w] + 1
                after[w].append(mine[w])
                if period.due(steps=since[w], progress=progress):
                    averaging.append(w)
                    break
        if sum(had):
            mean = sum(h * theta for h, theta in zip(had, mine, strict=True)) / sum(had)
            mine = [mean] * size
        for w in averaging:
            after[w][-1] = mine[w]
        had, since = [0] * size, [0] * size
    return after, mine[0]


#: Samples of the steps of three workers, at each of which a worker may leave: the first so many.
SCRIPT = ((2, 1), (0, 2), (1, 0))
#: By the number of workers, how many of their first steps each takes; of four there are a few.
LENGTHS = {size: [*itertools.product(range(3), repeat=size)][1:] for size in (1, 2, 3)}
LENGTHS[4] = [(2, 0, 1, 2)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.one_in(18)
def test_all_reduce_with_every_worker_leaving_at_every_point(explored, algorithm, size):
    states = 0
    for lengths in LENGTHS[size]:
        samples = [given[:it] for given, it in zip((*SCRIPT, (0, 1)), lengths, strict=False)]
        found = Ranks(all_reduce(algorithm, samples), size, N).explore()
        explored("ranks, without servers", f"allreduce, {algorithm}", str(size), found)
        states += found[0]
    assert states >= LEAST[size]  # else the exploration itself has come to miss some


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("samples", [[(2, 1), (1,)], [(1, 0), (2, 2)], [(2,), (1,), ()]], ids=str)
@pytest.mark.one_in(6)
def test_all_reduce_in_buckets_whose_sums_overlap_the_computing(explored, algorithm, samples):
    spans = [Span(1, N), Span(0, 1)]
    found = Ranks(all_reduce(algorithm, samples, spans), len(samples), N).explore()
    explored("ranks, without servers", "allreduce in buckets", str(len(samples)), found)


PERIODS = {
    "local-sgd(2)": AveragingPeriod(2),
    "post-local(2)": AveragingPeriod(2, post_local_epoch=1.0),
}


@pytest.mark.parametrize(("algorithm", "period"), pairs(ALGORITHMS, PERIODS, one_in=2))
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.one_in(14)
def test_local_sgd_with_workers_that_leave(explored, algorithm, period, size):
    for lengths in itertools.product((0, 3, 4), repeat=size):
        samples = [(2, 0, 1, 2)[:length] for length in lengths]
        if any(lengths):
            found = Ranks(local_sgd(algorithm, samples, PERIODS[period]), size, N).explore()
            explored("ranks, without servers", period, str(size), found)


ROLES = {
    "all-reduce": lambda: all_reduce("ring", [(2, 1), (1,)]),
    "in buckets": lambda: all_reduce("ring", [(2, 1), (1,)], [Span(1, N), Span(0, 1)]),
    "local SGD": lambda: local_sgd("ring", [(2, 1), (1,)], AveragingPeriod(1)),
}


async def does_not_wait(self):
    """A sum that has not come by the time it is looked at is taken as it is."""
    while self.wants() is not None:
        given = self.port.look(self.wants())
        self.fold(given or np.zeros_like(self.steps[self.at].receive.of(self.values)).tobytes())


BREAKS = {
    "weighs by workers": (Reducer, "weight", lambda self, samples: float(samples > 0)),
    "does not wait": (Ranks.Summing, "finish", does_not_wait),
}  # fmt: skip


@pytest.mark.parametrize(("mutant", "role"), pairs(BREAKS, ROLES, one_in=3))
def test_what_is_broken_is_found_out(monkeypatch, mutant, role):
    Ranks(ROLES[role](), 2, N).explore()  # which is whole
    monkeypatch.setattr(*BREAKS[mutant])
    with pytest.raises((AssertionError, ZeroDivisionError)):
        Ranks(ROLES[role](), 2, N).explore()
