"""Who says something else than most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.transport.majority import outliers


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([5], []),
        ([5, 5, 5], []),
        ([1, 5, 5], [0]),
        ([5, 1, 5, 2], [1, 3]),
        ([1, 2], [1]),
        ([1, 2, 2, 1], [1, 2]),
        ([1, 2, 3], [1, 2]),
    ],
)
def test_by_hand(numbers, expected):
    assert outliers(numbers) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_the_others_are_all_equal_and_at_least_as_many_as_any(numbers):
    wrong = outliers(numbers)
    usual = {number for i, number in enumerate(numbers) if i not in wrong}
    assert len(usual) == 1
    assert max(numbers.count(number) for number in numbers) == len(numbers) - len(wrong)
