"""Vectors split into buckets of equal length, each with its own scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from psrt.codec.codec import BLOCK
from psrt.codec.fields import Field, FieldReader, elements
from psrt.core.arrays import FloatArray, Vector

#: Where a row of buckets begins: its first element in the vector, and its first bucket.
Row: TypeAlias = tuple[int, int]


class Buckets:
    """The buckets of a vector of n elements: equally long, except that the last may be shorter.

    >>> buckets = Buckets(10, 4)
    >>> buckets.count
    3
    >>> [(at, first, rows.shape) for at, first, rows in buckets.rows(np.zeros(10, np.float32))]
    [(0, 0, (2, 4)), (8, 2, (1, 2))]
    """

    def __init__(self, n: int, size: int) -> None:
        """Split.

        Args:
            n: elements.
            size: elements of a bucket, in ``[1, 2**16)``, as a frame's header holds it in 16 bits.
        """
        self.n, self.size = n, size
        #: Number of buckets.
        self.count = -(-n // size)
        #: Elements processed at a time: as many whole buckets as fit into a block, at least one.
        self.step = max(1, BLOCK // size) * size

    def scales(self, reader: FieldReader) -> Iterator[Field]:
        """Yield the float32 scale of each bucket."""
        for i in range(self.count):
            yield reader.float32(f"scale of {elements(i, self.size, self.n)}:")

    def rows(self, vector: Vector) -> Iterator[tuple[int, int, FloatArray]]:
        """Yield full buckets as rows, a block of them at a time, then a shorter last one by itself.

        Yields:
            The first element and the first bucket of the rows, and a view (buckets, size) of them.
        """
        size, whole = self.size, self.n // self.size * self.size
        for at in range(0, whole, self.step):
            part = vector[at : min(at + self.step, whole)]
            yield at, at // size, part.reshape(-1, size)
        if whole < self.n:
            yield whole, whole // size, vector[whole:].reshape(1, -1)


def largest(rows: FloatArray, scratch: FloatArray) -> npt.NDArray[np.float32]:
    """Return the largest magnitude of each row, (buckets,); NaN if the row has one."""
    found: npt.NDArray[np.float32] = np.maximum.reduce(np.abs(rows, out=scratch), axis=1)
    return found


def or_nan(scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Turn scales that are not finite into NaN, in place: all they scale then decodes to NaN."""
    scales[~np.isfinite(scales)] = np.nan
    return scales
