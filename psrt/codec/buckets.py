"""Vectors split into buckets of equal length, each with its own scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from psrt.codec.codec import BLOCK
from psrt.codec.fields import Field, FieldReader, elements
from psrt.core.arrays import FloatArray, Vector

#: Where rows of buckets begin: in the vector, and among the buckets.
Row: TypeAlias = tuple[int, int]


class Buckets:
    """The buckets of a vector of n elements: all of one length, the last one may be shorter.

    >>> buckets = Buckets(10, 4)
    >>> buckets.count
    3
    >>> [(at, first, rows.shape) for at, first, rows in buckets.rows(np.zeros(10, np.float32))]
    [(0, 0, (2, 4)), (8, 2, (1, 2))]
    """

    def __init__(self, n: int, size: int) -> None:
        """Set up for vectors of one length.

        Args:
            n: elements.
            size: elements of a bucket, in ``[1, 2**16)``.
        """
        self.n, self.size = n, size
        #: Number of buckets.
        self.count = -(-n // size)
        #: Elements of the whole buckets that are processed together.
        self.step = max(1, BLOCK // size) * size

    def scales(self, reader: FieldReader) -> Iterator[Field]:
        """Yield the float32 scale of each bucket."""
        for i in range(self.count):
            yield reader.float32(f"scale of {elements(i, self.size, self.n)}:")

    def rows(self, vector: Vector) -> Iterator[tuple[int, int, FloatArray]]:
        """Yield whole buckets as rows, a block of them at a time, then the rest as a row.

        Yields:
            Where the rows begin in the vector and among the buckets; a view (buckets, size).
        """
        size, whole = self.size, self.n // self.size * self.size
        for at in range(0, whole, self.step):
            part = vector[at : min(at + self.step, whole)]
            yield at, at // size, part.reshape(-1, size)
        if whole < self.n:
            yield whole, whole // size, vector[whole:].reshape(1, -1)


def largest(rows: FloatArray, scratch: FloatArray) -> npt.NDArray[np.float32]:
    """Return the largest magnitude of each row; NaN where one is NaN."""
    found: npt.NDArray[np.float32] = np.maximum.reduce(np.abs(rows, out=scratch), axis=1)
    return found


def or_nan(scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Turn scales that are not finite into NaN: then everything decoded with them is NaN, too."""
    scales[~np.isfinite(scales)] = np.nan
    return scales
