"""Batches: seeded, disjoint, complete, and the same samples for any cut into workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.data import BatchPlan
from psrt.errors import ConfigError


def global_batch(plan: BatchPlan, epoch: int, step: int) -> np.ndarray:
    return np.concatenate([plan.indices(epoch, step, worker) for worker in range(plan.workers)])


@given(
    samples=st.integers(1, 200),
    batch_size=st.integers(1, 40),
    workers=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
)
def test_an_epoch_shows_every_sample_once(samples, batch_size, workers, seed, epoch):
    plan = BatchPlan(samples, batch_size=batch_size, workers=workers, seed=seed)
    seen = [global_batch(plan, epoch, step) for step in range(plan.steps_per_epoch)]
    assert sorted(np.concatenate(seen)) == list(range(samples))
    assert [len(batch) for batch in seen[:-1]] == [batch_size * workers] * (len(seen) - 1)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 24])
def test_workers_together_see_the_serial_global_batch(workers):
    serial = BatchPlan(1000, batch_size=24, workers=1, seed=7)
    cut = BatchPlan(1000, batch_size=24 // workers, workers=workers, seed=7)
    assert cut.steps_per_epoch == serial.steps_per_epoch
    for epoch in (0, 3):
        for step in range(serial.steps_per_epoch):
            np.testing.assert_array_equal(
                global_batch(cut, epoch, step), serial.indices(epoch, step, 0)
            )


def test_worker_i_takes_slice_i_of_a_full_batch():
    plan = BatchPlan(100, batch_size=8, workers=4, seed=0)
    for worker in range(4):
        start = 32 + 8 * worker
        np.testing.assert_array_equal(plan.indices(2, 1, worker), plan.order(2)[start : start + 8])


def test_the_last_batch_is_cut_evenly():
    plan = BatchPlan(15, batch_size=3, workers=4, seed=0)
    assert plan.steps_per_epoch == 2
    assert [len(plan.indices(0, 1, worker)) for worker in range(4)] == [1, 1, 1, 0]
    plan = BatchPlan(10, batch_size=4, workers=4, seed=0)
    assert [len(plan.indices(0, 0, worker)) for worker in range(4)] == [3, 3, 2, 2]


def test_epochs_and_seeds_differ_and_repeat():
    def order(seed, epoch):
        return BatchPlan(500, batch_size=5, workers=2, seed=seed).order(epoch).tolist()

    orders = [order(seed, epoch) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    assert len({tuple(found) for found in orders}) == len(orders)
    assert orders == [order(seed, epoch) for seed in (0, 1, 2) for epoch in (0, 1, 2)]


def test_epochs_may_be_asked_in_any_order():
    plan = BatchPlan(50, batch_size=5, workers=2, seed=3)
    first = plan.indices(0, 1, 1).copy()
    fresh = BatchPlan(50, batch_size=5, workers=2, seed=3)
    np.testing.assert_array_equal(plan.indices(1, 0, 0), fresh.indices(1, 0, 0))
    np.testing.assert_array_equal(plan.indices(0, 1, 1), first)


def test_a_batch_is_a_read_only_view_that_can_index():
    plan = BatchPlan(50, batch_size=5, workers=2, seed=3)
    batch = plan.indices(0, 0, 1)
    assert batch.dtype == np.intp
    assert np.shares_memory(batch, plan.order(0))
    with pytest.raises(ValueError, match="read-only"):
        batch[0] = 0


@pytest.mark.parametrize(("step", "worker"), [(5, 0), (-1, 0), (0, 2), (0, -1)])
def test_a_batch_that_is_not_there_is_refused(step, worker):
    plan = BatchPlan(50, batch_size=5, workers=2, seed=3)
    with pytest.raises(IndexError, match=rf"^step {step} of worker {worker} is not among 5 steps"):
        plan.indices(0, step, worker)


@pytest.mark.parametrize(
    ("name", "value"), [("samples", 0), ("batch_size", 0), ("workers", 0), ("seed", -1)]
)
def test_out_of_range(name, value):
    arguments = {"samples": 10, "batch_size": 2, "workers": 2, "seed": 0} | {name: value}
    with pytest.raises(ConfigError, match=f"^{name} must be at least {value + 1}, got {value}$"):
        BatchPlan(arguments.pop("samples"), **arguments)
