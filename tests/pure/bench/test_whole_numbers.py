"""The numbers of the benchmark show every kind of wrong sum."""

import numpy as np
import pytest

from psrt.bench.allreduce_rows import MOST_RANKS, WholeNumbers, fill, first_difference

N = 200_003


def given(ranks):
    numbers = WholeNumbers(ranks)
    arrays = np.empty((ranks, N), np.float32)
    for rank, array in enumerate(arrays):
        fill(array, numbers.of(rank))
    return numbers.total(), arrays


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_sum_in_any_order_is_the_total(ranks):
    total, arrays = given(ranks)
    for order in (arrays, arrays[::-1]):
        assert first_difference(np.add.reduce(order), total) is None


def test_sums_are_exact_up_to_the_most_ranks():
    assert WholeNumbers(MOST_RANKS).total().max() < 2**24
    assert np.array_equal(WholeNumbers(9).total(), np.round(WholeNumbers(9).total()))


@pytest.mark.parametrize("at", [0, 65_343, 65_344, N - 1])
def test_one_wrong_element_is_found_where_it_is(at):
    total, arrays = given(3)
    result = arrays.sum(axis=0)
    result[at] += 1
    assert first_difference(result, total) == at


def test_lost_doubled_foreign_and_shifted_contributions_show():
    total, arrays = given(4)
    whole = arrays.sum(axis=0)
    for rank in range(4):
        assert first_difference(whole - arrays[rank], total) is not None
        assert first_difference(whole + arrays[rank], total) is not None
        other = arrays[(rank + 1) % 4]
        assert first_difference(whole - arrays[rank] + other, total) is not None
    for shift in (1, N // 4, 1 << 14):
        assert first_difference(np.roll(whole, shift), total) is not None
