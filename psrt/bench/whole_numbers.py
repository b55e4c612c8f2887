"""Test data for all-reduces: whole numbers, whose sum is exact in any order. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from psrt.arrays import FloatArray

#: Elements i and j of a rank are alike only if i - j is a multiple of this prime, so chunks that
#: change places do not go unnoticed.
_PERIOD = 1021
_TILE = 64 * _PERIOD
#: The largest sum is below 2²⁴, up to which float32 is exact.
MOST_RANKS = 180


class WholeNumbers:
    """The contribution of each rank, and the result required of all.

    Rank r gives ``(r + 1)·(i mod 1021) + r`` as its element i, so a contribution that is lost,
    doubled, or another rank's changes the sum.
    """

    def __init__(self, ranks: int) -> None:
        """Prepare a tile of the numbers; longer vectors repeat it.

        Args:
            ranks: at most ``MOST_RANKS``.
        """
        assert ranks <= MOST_RANKS, "sums must stay exact"
        self._base = (np.arange(_TILE) % _PERIOD).astype(np.float32)
        self._ranks = ranks

    def of(self, rank: int) -> FloatArray:
        """Return the tile of a rank's contribution."""
        return np.float32(rank + 1) * self._base + np.float32(rank)

    def total(self) -> FloatArray:
        """Return the tile of the sum over all ranks.

        >>> numbers = WholeNumbers(3)
        >>> bool((numbers.total() == numbers.of(0) + numbers.of(1) + numbers.of(2)).all())
        True
        """
        p = self._ranks
        return np.float32(p * (p + 1) // 2) * self._base + np.float32(p * (p - 1) // 2)


def fill(array: FloatArray, tile: FloatArray) -> None:
    """Fill an array with copies of a tile."""
    for block in _blocks(array, tile.size):
        block[:] = tile[: block.size]


def first_difference(array: FloatArray, tile: FloatArray) -> int | None:
    """Return the first index at which an array differs from copies of a tile; None if equal.

    >>> tile = np.arange(3, dtype=np.float32)
    >>> array = np.array([0, 1, 2, 0, 7], np.float32)
    >>> first_difference(array, tile), first_difference(array[:4], tile)
    (4, None)
    """
    at = 0
    for block in _blocks(array, tile.size):
        wrong = np.flatnonzero(block != tile[: block.size])
        if wrong.size:
            return at + int(wrong[0])
        at += block.size
    return None


def _blocks(array: FloatArray, size: int) -> Iterator[FloatArray]:
    for start in range(0, array.size, size):
        yield array[start : start + size]
