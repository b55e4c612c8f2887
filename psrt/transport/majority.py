"""Finds the workers whose value differs from the majority's. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def outliers(numbers: Sequence[int]) -> list[int]:
    """Return the indices of the numbers that are not the most frequent one, in order.

    Ties are decided for the number that comes first, so all workers get the same result.

    >>> outliers([7, 7, 9, 7]), outliers([7, 9]), outliers([5])
    ([2], [1], [])
    """
    # Counter keeps the order of first appearance, and max returns the first of equals.
    counts = Counter(numbers)
    usual = max(counts, key=counts.__getitem__)
    return [place for place, number in enumerate(numbers) if number != usual]
