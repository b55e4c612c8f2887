"""Who says something else than most: for workers that must agree. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def outliers(numbers: Sequence[int]) -> list[int]:
    """Return the places of the numbers that are not the most frequent one, in order.

    Of equally frequent ones the one that comes first counts, so that two workers that differ
    are told apart in the same way everywhere.

    >>> outliers([7, 7, 9, 7]), outliers([7, 9]), outliers([5])
    ([2], [1], [])
    """
    # Counter keeps the order of first appearance, and max returns the first of equals.
    counts = Counter(numbers)
    usual = max(counts, key=counts.__getitem__)
    return [place for place, number in enumerate(numbers) if number != usual]
