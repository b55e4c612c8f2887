"""Every algorithm, for every p and n: right, exactly once, the same bits, at the price it says."""

import importlib

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.partition import even_spans

SIZES = range(1, 17)
LENGTHS = [0, 1, 2, 3, 5, 7, 16, 17, 1000]  # empty, fewer than ranks, ragged, usual


def schedules(name, size, n):
    return [list(ALGORITHMS[name](rank, size, n)) for rank in range(size)]


def lg_ceil(p):
    return (p - 1).bit_length()


def lg_floor(p):
    return p.bit_length() - 1


every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
every_size = pytest.mark.parametrize("size", SIZES)
every_length = pytest.mark.parametrize("n", LENGTHS)


@every_algorithm
@every_size
@every_length
def test_every_rank_ends_with_the_sum(simulate, name, size, n):
    rng = np.random.default_rng([size, n])
    buffers = [rng.integers(-99, 99, n).astype(np.float32) for _ in range(size)]
    for got in simulate(schedules(name, size, n), buffers).buffers:
        np.testing.assert_array_equal(got, np.sum(buffers, axis=0))


@every_algorithm
@every_size
@every_length
def test_every_contribution_counts_exactly_once(contributions, name, size, n):
    counts = contributions(schedules(name, size, n), n)
    np.testing.assert_array_equal(counts, np.ones((size, n, size)))


@every_algorithm
@every_size
@every_length
def test_all_ranks_hold_the_same_bits(simulate, name, size, n):
    rng = np.random.default_rng([size, n])
    scale = 10.0 ** rng.integers(-6, 6, (size, n))  # so that the order of addition shows
    buffers = (rng.standard_normal((size, n)) * scale).astype(np.float32)
    first, *rest = simulate(schedules(name, size, n), list(buffers)).buffers
    for other in rest:
        assert other.tobytes() == first.tobytes()


@every_algorithm
@pytest.mark.parametrize("fold", [np.minimum, np.maximum, np.multiply])
def test_other_folds(simulate, name, fold):
    rng = np.random.default_rng(7)
    buffers = [rng.choice([-2.0, -1.0, 1.0, 2.0], 17).astype(np.float32) for _ in range(6)]
    for got in simulate(schedules(name, 6, 17), buffers, fold).buffers:
        np.testing.assert_array_equal(got, fold.reduce(buffers))


@every_size
@every_length
def test_ring_cost(simulate, size, n):
    outcome = simulate(schedules("ring", size, n), [np.zeros(n)] * size)
    assert outcome.rounds == 2 * (size - 1)
    assert {len(steps) for steps in schedules("ring", size, n)} == {2 * (size - 1)}
    chunks = even_spans(n, size)
    for rank, sent in enumerate(outcome.sent):
        spared = chunks[(rank + 1) % size].size + chunks[(rank + 2) % size].size
        assert sent == 2 * n - spared
    if n % size == 0:
        assert set(outcome.sent) == {2 * n * (size - 1) // size}


@every_size
@every_length
def test_tree_cost(simulate, size, n):
    outcome = simulate(schedules("tree", size, n), [np.zeros(n)] * size)
    assert outcome.rounds == 2 * lg_ceil(size)
    assert outcome.sent[0] == n * lg_ceil(size) == max(outcome.sent)
    assert sum(outcome.sent) == 2 * n * (size - 1)


@every_size
@every_length
def test_butterfly_cost(simulate, size, n):
    outcome = simulate(schedules("butterfly", size, n), [np.zeros(n)] * size)
    rounds, folded = lg_floor(size), size - 2 ** lg_floor(size)
    assert outcome.rounds == rounds + (2 if folded else 0)
    pairs = [n * (rounds + 1), n] * folded
    assert outcome.sent == pairs + [n * rounds] * (size - 2 * folded)


@every_size
@every_length
def test_ring_phases_hand_over_the_next_chunk(size, n):
    """After the reduce-scatter rank r owns chunk r + 1: it combines it last and sends it first."""
    chunks = even_spans(n, size)
    for rank, steps in enumerate(schedules("ring", size, n)):
        reduce_scatter, all_gather = steps[: size - 1], steps[size - 1 :]
        assert all(step.combine for step in reduce_scatter)
        assert not any(step.combine for step in all_gather)
        if size > 1:
            owned = chunks[(rank + 1) % size]
            assert reduce_scatter[-1].receive == owned == all_gather[0].send


def test_ring_partial_sums_step_by_step(simulate):
    """The worked example: each chunk's sums on its way along A, B, D, C."""
    a, b, d, c = [17, 11, 1, 9], [5, 13, 23, 14], [12, 7, 2, 12], [3, 6, 10, 8]
    buffers = [np.array(row) for row in (a, b, d, c)]
    ring = schedules("ring", 4, 4)
    seen = [[], [], [], []]
    for hops in range(1, 4):
        after = simulate([steps[:hops] for steps in ring], buffers).buffers
        for rank, steps in enumerate(ring):
            chunk = steps[hops - 1].receive
            seen[chunk.start].append(int(chunk.of(after[rank])[0]))
    assert seen == [[22, 34, 37], [20, 26, 37], [12, 13, 36], [17, 31, 43]]
    for got in simulate(ring, buffers).buffers:
        assert got.tolist() == [37, 37, 36, 43]


@pytest.mark.parametrize("module", ["ring", "tree", "butterfly"])
def test_examples_in_docstrings(run_doctests, module):
    result = run_doctests(importlib.import_module(f"psrt.collective.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
