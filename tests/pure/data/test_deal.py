"""Deals: every sample once, every worker some, by the rule, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrt.data import Deal, deal
from psrt.errors import ConfigError

#: Rules whose numbers fit any data.
ANY = [("dirichlet", 1e-6), ("dirichlet", 0.3), ("dirichlet", 1e6)]


def dealt(labels, *, workers, rule, number, batch_size=8, seed=0):
    return deal(
        np.asarray(labels), workers=workers, rule=rule, number=number,
        batch_size=batch_size, seed=seed,
    )  # fmt: skip


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    workers=st.integers(1, 12),
    each=st.integers(1, 6),
    which=st.integers(0, len(ANY)),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
)
def test_every_sample_is_dealt_once_and_every_worker_gets_some(
    labels, workers, each, which, batch_size, seed
):
    kinds = len(set(labels))
    least = -(-kinds // workers)
    rule, number = (*ANY, ("by-label", min(kinds, max(least, each))))[which]
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


def test_the_same_seed_deals_the_same_and_another_one_does_not():
    labels = np.arange(300) % 10
    for rule, number in (("by-label", 3), ("dirichlet", 0.5)):
        first, again, other = (
            dealt(labels, workers=7, rule=rule, number=number, seed=seed) for seed in (4, 4, 5)
        )
        assert first.sha256() == again.sha256() != other.sha256()
        for epoch in (0, 1):
            assert all(
                np.array_equal(a, b)
                for a, b in zip(first.batches(2, epoch), again.batches(2, epoch), strict=True)
            )
        assert not np.array_equal(
            np.concatenate(first.batches(2, 0)), np.concatenate(first.batches(2, 1))
        )


def test_of_any_two_labels_one_has_at_most_one_worker_more():
    labels = np.arange(1000) % 10
    for workers, each in ((7, 3), (10, 1), (25, 2), (3, 10)):
        found = dealt(labels, workers=workers, rule="by-label", number=each)
        holders = [sum(kind in labels[samples] for samples in found.samples) for kind in range(10)]
        assert max(holders) - min(holders) <= 1
        # And whoever has a label has as much of it as the others that do.
        for kind in range(10):
            sizes = [np.count_nonzero(labels[samples] == kind) for samples in found.samples]
            assert np.ptp([size for size in sizes if size]) <= 1


def test_a_large_a_is_even_and_a_small_one_is_not():
    labels = np.arange(6000) % 10
    even = dealt(labels, workers=6, rule="dirichlet", number=1e5)
    assert all(abs(size - 1000) < 30 and count == 10 for size, count in even.rows)
    uneven = dealt(labels, workers=6, rule="dirichlet", number=0.01)
    mine = [np.bincount(labels[samples], minlength=10) for samples in uneven.samples]
    assert np.mean(np.max(mine, axis=0)) > 500  # of 600: a label is nearly one worker's


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


@pytest.mark.parametrize(
    ("workers", "each", "text"),
    [
        (4, 2, "2 labels for each of 4 workers, expected 3 to 10"),
        (4, 11, "11 labels for each of 4 workers, expected 3 to 10"),
        (1, 9, "9 labels for each of 1 workers, expected 10 to 10"),
    ],
)
def test_labels_that_cannot_be_dealt_out(workers, each, text):
    with pytest.raises(ConfigError, match=text):
        dealt(np.arange(100) % 10, workers=workers, rule="by-label", number=each)
