"""Which samples a worker has: every one once, by the rule, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrt.core.errors import ConfigError
from psrt.data import BatchPlan, Deal, deal
from support.cases import each


def global_batch(plan: BatchPlan, epoch: int, step: int) -> np.ndarray:
    return np.concatenate([plan.indices(epoch, step, worker) for worker in range(plan.workers)])


@settings(max_examples=50)
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


@each("workers", [2, 3, 24])
def test_workers_together_see_the_serial_global_batch(workers):
    serial = BatchPlan(1000, batch_size=24, workers=1, seed=7)
    cut = BatchPlan(1000, batch_size=24 // workers, workers=workers, seed=7)
    assert cut.steps_per_epoch == serial.steps_per_epoch
    for epoch in (0, 3):  # also back, where another epoch was asked for in between
        for step in range(serial.steps_per_epoch):
            np.testing.assert_array_equal(
                global_batch(cut, epoch, step), serial.indices(epoch, step, 0)
            )
    np.testing.assert_array_equal(global_batch(cut, 0, 1), serial.order(0)[24:48])


def test_the_last_batch_is_cut_evenly():
    plan = BatchPlan(15, batch_size=3, workers=4, seed=0)
    assert plan.steps_per_epoch == 2
    assert [len(plan.indices(0, 1, worker)) for worker in range(4)] == [1, 1, 1, 0]
    plan = BatchPlan(10, batch_size=4, workers=4, seed=0)
    assert [len(plan.indices(0, 0, worker)) for worker in range(4)] == [3, 3, 2, 2]


def test_epochs_and_seeds_differ_and_repeat():
    def orders():
        plans = [BatchPlan(500, batch_size=5, workers=2, seed=seed) for seed in (0, 1, 2)]
        return [tuple(plan.order(epoch).tolist()) for plan in plans for epoch in (0, 1, 2)]

    assert len({*orders()}) == 9
    assert orders() == orders()


def test_a_batch_is_a_read_only_view_and_one_that_is_not_there_is_refused():
    plan = BatchPlan(50, batch_size=5, workers=2, seed=3)
    batch = plan.indices(0, 0, 1)
    assert batch.dtype == np.intp
    assert np.shares_memory(batch, plan.order(0))
    with pytest.raises(ValueError, match="read-only"):
        batch[0] = 0
    for step, worker in ((5, 0), (-1, 0), (0, 2), (0, -1)):
        line = rf"^step {step} of worker {worker} is not among 5 steps"
        with pytest.raises(IndexError, match=line):
            plan.indices(0, step, worker)


@each(("name", "value"), [("samples", 0), ("batch_size", 0), ("workers", 0), ("seed", -1)])
def test_a_plan_that_cannot_be(name, value):
    arguments = {"samples": 10, "batch_size": 2, "workers": 2, "seed": 0} | {name: value}
    with pytest.raises(ConfigError, match=f"^{name} must be at least {value + 1}, got {value}$"):
        BatchPlan(arguments.pop("samples"), **arguments)


#: Rules whose numbers fit any data.
ANY = [("dirichlet", 1e-6), ("dirichlet", 0.3), ("dirichlet", 1e6)]


def dealt(labels, *, batch_size=8, seed=0, **how):
    return deal(np.asarray(labels), batch_size=batch_size, seed=seed, **how)


@settings(max_examples=40)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    workers=st.integers(1, 12),
    most=st.integers(1, 6),
    which=st.integers(0, len(ANY)),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
)
def test_every_sample_is_dealt_once_and_every_worker_gets_some(
    labels, workers, most, which, batch_size, seed
):
    kinds = len(set(labels))
    least = -(-kinds // workers)
    rule, number = (*ANY, ("by-label", min(kinds, max(least, most))))[which]
    if workers > len(labels):
        with pytest.raises(ConfigError, match=f"{len(labels)} samples for {workers} workers"):
            dealt(labels, workers=workers, rule=rule, number=number)
        return
    found = dealt(
        labels, workers=workers, rule=rule, number=number, batch_size=batch_size, seed=seed
    )
    assert np.array_equal(np.sort(np.concatenate(found.samples)), np.arange(len(labels)))
    assert all(size >= 1 for size, _ in found.rows)
    own = [set(np.asarray(labels)[samples]) for samples in found.samples]
    assert [len(it) for it in own] == [count for _, count in found.rows]
    if rule == "by-label":
        assert all(len(it) <= number for it in own)
        if min(labels.count(kind) for kind in set(labels)) >= workers:
            assert all(len(it) == number for it in own)
    # Each epoch has each sample once, in steps of which none is larger than a batch.
    for epoch in (0, 7):
        steps = [found.batches(worker, epoch) for worker in range(workers)]
        assert {len(it) for it in steps} == {found.steps}
        for samples, batches in zip(found.samples, steps, strict=True):
            assert np.array_equal(np.sort(np.concatenate(batches)), samples)
            sizes = [len(it) for it in batches]
            assert max(sizes) - min(sizes) <= 1
            assert max(sizes) <= batch_size


@each(("rule", "number"), [("by-label", 3), ("dirichlet", 0.5)])
def test_the_same_seed_deals_the_same_and_another_one_does_not(rule, number):
    labels = np.arange(300) % 10
    first, again, other = (
        dealt(labels, workers=7, rule=rule, number=number, seed=seed) for seed in (4, 4, 5)
    )
    assert first.sha256() == again.sha256() != other.sha256()
    one, same, two = (
        np.concatenate(it.batches(2, epoch)) for it, epoch in ((first, 0), (again, 0), (first, 1))
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, two)


@each(("workers", "number"), [(7, 3), (10, 1), (25, 2), (3, 10)])
def test_of_any_two_labels_one_has_at_most_one_worker_more(workers, number):
    labels = np.arange(1000) % 10
    found = dealt(labels, workers=workers, rule="by-label", number=number)
    table = np.array([np.bincount(labels[samples], minlength=10) for samples in found.samples])
    assert np.ptp((table > 0).sum(axis=0)) <= 1
    # And whoever has a label has as much of it as the others that do.
    assert all(np.ptp(column[column > 0]) <= 1 for column in table.T)


def test_proportions_are_those_of_the_distribution():
    """Of a Dirichlet distribution with W parameters A, the variance is (W − 1)/(W²(W·A + 1))."""
    labels = np.repeat(np.arange(400), 500)
    workers, a = 5, 0.7
    found = dealt(labels, workers=workers, rule="dirichlet", number=a)
    shares = np.array([np.bincount(labels[it], minlength=400) for it in found.samples]) / 500
    due = (workers - 1) / (workers**2 * (workers * a + 1))
    assert shares.var(axis=1).mean() == pytest.approx(due, rel=0.1)
    assert shares.mean(axis=1) == pytest.approx([1 / workers] * workers, abs=0.04)


def test_workers_with_few_samples_have_them_at_different_steps():
    rows = [(100, 1), *[(1, 1)] * 10]
    found = Deal.sized(rows, batch_size=10)
    assert found.rows == tuple(rows)
    assert found.steps == 10
    at = [[len(it) for it in found.batches(worker, 0)].index(1) for worker in range(1, 11)]
    assert len(set(at)) >= 9


@each(("workers", "number", "text"), [
    (4, 2, "2 labels for each of 4 workers, expected 3 to 10"),
    (4, 11, "11 labels for each of 4 workers, expected 3 to 10"),
])  # fmt: skip
def test_labels_that_cannot_be_dealt_out(workers, number, text):
    with pytest.raises(ConfigError, match=text):
        dealt(np.arange(100) % 10, workers=workers, rule="by-label", number=number)
