"""Decoupled momentum (DeMo): each worker keeps its own momentum and sends its fast components.

The momentum is split into chunks, each chunk is transformed by a DCT, and the largest coefficients
are sent and subtracted from the momentum. What remains there is what was not sent: the momentum is
also the residual of error feedback. The transform is linear, so decoded vectors may be averaged
over workers. The optimizer that goes with it is ``sign-sgd``.

A payload holds, for each group of chunks of one shape, the coefficients of all its chunks as
float32, then their places within the chunks as uint16, ascending in each chunk. A chunk that is
sent in whole has its elements instead, without places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psrt.codec.codec import DenseCodec
from psrt.codec.fields import Field, FieldReader
from psrt.codec.frame import Header
from psrt.codec.matrices import Matrix, between
from psrt.codec.table import CODECS
from psrt.core.arrays import Bytes, FloatArray, Vector
from psrt.core.errors import CodecError

_MAGNITUDE = np.uint32(0x7FFFFFFF)


class _Chunks(NamedTuple):
    """A grid of chunks of one shape within a matrix."""

    matrix: Matrix
    #: First row of the grid in the matrix, and the one past its last; then likewise columns.
    rows: tuple[int, int]
    columns: tuple[int, int]
    #: Rows and columns of a chunk.
    shape: tuple[int, int]
    #: Coefficients that are sent of each chunk.
    kept: int

    @property
    def number(self) -> int:
        """Number of chunks."""
        (top, bottom), (left, right) = self.rows, self.columns
        return (bottom - top) * (right - left) // self.size

    @property
    def size(self) -> int:
        """Elements of a chunk."""
        return self.shape[0] * self.shape[1]

    @property
    def is_whole(self) -> bool:
        """Whether a chunk is sent in whole: then its elements, without transform or places."""
        return self.kept == self.size

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks on the wire."""
        # A float32, and a uint16 for its place: a chunk has at most 256² = 2**16 places.
        return self.number * self.kept * (4 if self.is_whole else 6)

    def of(self, vector: Vector) -> FloatArray:
        """Return a view of the chunks: (chunks down, chunks across, rows, columns)."""
        (top, bottom), (left, right) = self.rows, self.columns
        rows, columns = self.shape
        part = self.matrix.of(vector)[top:bottom, left:right]
        return part.reshape((bottom - top) // rows, rows, -1, columns).transpose(0, 2, 1, 3)


class Demo(DenseCodec):
    """m ← β·m + g; the largest DCT coefficients of m's chunks are sent and subtracted from m.

    A matrix has chunks of ``chunk`` × ``chunk``, smaller ones at its edges; elements outside of
    matrices have chunks of ``chunk`` elements. With ``--optimizer demo``, an all-reduce is given g
    times the learning rate of the step, as published. Workers that push do not know the rate and
    give g itself. Only the sign of a sum is used, so the two differ only while the rate changes, in
    how older gradients are weighted against newer ones.

    Source: Peng, Quesnelle & Kingma, "DeMo: Decoupled Momentum Optimization", 2024,
    arXiv:2411.19870.
    """

    row = CODECS["demo"]
    saved = by_element = kept_back = ("residual",)

    def __init__(
        self,
        n: int,
        *,
        chunk: int,
        kept: int,
        momentum: float,
        matrices: Sequence[Matrix] = (),
    ) -> None:
        """Set up, with a momentum of 0.

        Args:
            n: elements of a vector.
            chunk: side of a chunk, 1 to 256.
            kept: coefficients sent of each chunk, at least 1; a chunk with no more is sent in
                whole.
            momentum: β, in [0, 1).
            matrices: of the vector, in order of their starts, disjoint.

        Raises:
            ConfigError: if matrices overlap, are out of order, or exceed the vector.
        """
        rest = [Matrix(span.start, 1, span.size) for span in between(matrices, n)]
        self._chunks = [
            it for matrix in sorted([*matrices, *rest]) for it in _cut(matrix, chunk, kept)
        ]
        # 65536 is allowed and does not fit: as 0, which is not valid otherwise, it is unambiguous.
        self.parameter = kept % (1 << 16)
        self._momentum = np.float32(momentum)
        #: (n,) float32, the momentum.
        self.residual: Vector = np.zeros(n, np.float32)
        super().__init__(n, sum(it.nbytes for it in self._chunks))

    def _pack(self, vector: Vector, payload: Bytes, rng: np.random.Generator) -> None:
        momentum, at = self.residual, 0
        with np.errstate(all="ignore"):
            np.multiply(momentum, self._momentum, out=momentum)
            np.add(momentum, vector, out=momentum)
            for chunks in self._chunks:
                there = payload[at : at + chunks.nbytes]
                at += chunks.nbytes
                given = chunks.of(momentum)
                if chunks.is_whole:
                    there.view("<f4").reshape(given.shape)[:] = given
                    given[:] = 0
                    continue
                # What is subtracted is what a receiver decodes, by the same arithmetic: so the
                # momentum keeps exactly what the receiver lacks, rounding errors included.
                coefficients = self._forth(given).reshape(chunks.number, -1)
                indices = _largest(coefficients, chunks.kept)
                values, places = _split(there, chunks)
                values[:] = np.take_along_axis(coefficients, indices, axis=1)
                places[:] = indices
                given -= self._back(chunks, values, indices)

    def _unpack(self, payload: Bytes, out: Vector) -> None:
        ends = [0, *accumulate(chunks.nbytes for chunks in self._chunks)]
        parts = [payload[at:end] for at, end in pairwise(ends)]
        found = [
            None if chunks.is_whole else _split(there, chunks)
            for chunks, there in zip(self._chunks, parts, strict=True)
        ]
        # All indices are checked before anything is written: a receiver that refuses a frame still
        # has the vector that it had before.
        for chunks, split in zip(self._chunks, found, strict=True):
            if split is not None and not _ascend(split[1], chunks.size):
                raise CodecError(f"damaged indices, expected ascending ones below {chunks.size}")
        with np.errstate(all="ignore"):
            for chunks, there, split in zip(self._chunks, parts, found, strict=True):
                into = chunks.of(out)
                if split is None:
                    into[:] = there.view("<f4").reshape(into.shape)
                else:
                    values, places = split
                    into[:] = self._back(chunks, values, places.astype(np.int64))

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        first = 0
        for it in self._chunks:
            names = [f"chunk {first + i}" for i in range(it.number) for _ in range(it.kept)]
            first += it.number
            what = "element" if it.is_whole else "coefficient"
            for name in names:
                yield reader.float32(f"{what} of {name}:")
            for name in names if not it.is_whole else ():
                yield reader.whole(2, f"its place in {name}")

    def _forth(self, given: FloatArray) -> FloatArray:
        """Return the two-dimensional DCT of chunks (…, rows, columns), in the same shape."""
        rows, columns = given.shape[-2:]
        found: FloatArray = np.matmul(np.matmul(self._bases[rows], given), self._bases[columns].T)
        return found

    def _back(
        self, chunks: _Chunks, values: FloatArray, indices: npt.NDArray[np.int64]
    ) -> FloatArray:
        """Return the inverse transform of sparse coefficients, in the shape of ``_Chunks.of``."""
        rows, columns = chunks.shape
        # The basis is orthonormal: its inverse is its transpose.
        coefficients = np.zeros((chunks.number, chunks.size), np.float32)
        np.put_along_axis(coefficients, indices, values, axis=1)
        (top, bottom), (left, right) = chunks.rows, chunks.columns
        shape = ((bottom - top) // rows, (right - left) // columns, rows, columns)
        by_rows = np.matmul(self._bases[rows].T, coefficients.reshape(shape))
        found: FloatArray = np.matmul(by_rows, self._bases[columns])
        return found

    @cached_property
    def _bases(self) -> dict[int, FloatArray]:
        return {side: cosines(side) for it in self._chunks for side in it.shape}


def cosines(n: int) -> FloatArray:
    """Return the (n, n) matrix of the orthonormal DCT-II of n numbers.

    >>> np.round(cosines(2) @ np.array([1, 3]), 4)
    array([ 2.8284, -1.4142])
    """
    k, i = np.ogrid[:n, :n]
    basis = np.sqrt(2 / n) * np.cos(np.pi * (2 * i + 1) * k / (2 * n))
    basis[0] /= np.sqrt(2)
    found: FloatArray = basis.astype(np.float32)
    return found


def _cut(matrix: Matrix, chunk: int, kept: int) -> Iterator[_Chunks]:
    """Split a matrix into grids of chunks: full ones, smaller ones at the right and lower edge."""
    for rows in _sides(matrix.rows, chunk):
        for columns in _sides(matrix.columns, chunk):
            shape = min(chunk, rows[1] - rows[0]), min(chunk, columns[1] - columns[0])
            yield _Chunks(matrix, rows, columns, shape, min(kept, shape[0] * shape[1]))


def _sides(n: int, chunk: int) -> list[tuple[int, int]]:
    """Return the range of n that full chunks cover, and the range of the rest.

    >>> _sides(10, 4), _sides(8, 4), _sides(3, 4)
    ([(0, 8), (8, 10)], [(0, 8)], [(0, 3)])
    """
    whole = n - n % chunk
    return [side for side in ((0, whole), (whole, n)) if side[0] < side[1]]


def _largest(coefficients: FloatArray, k: int) -> npt.NDArray[np.int64]:
    """Return the ascending places of the k largest magnitudes of each row; NaN is the largest."""
    # As integers, the bits of magnitudes have the order of the magnitudes, with NaN at the end.
    magnitudes = coefficients.view(np.uint32) & _MAGNITUDE
    first = magnitudes.shape[1] - k
    found: npt.NDArray[np.int64] = np.argpartition(magnitudes, first, axis=1)[:, first:]
    found.sort(axis=1)
    return found


def _ascend(places: npt.NDArray[np.uint16], size: int) -> bool:
    """Return whether the places of each chunk ascend strictly and are below its size."""
    return bool((places[:, -1] < size).all() and (places[:, 1:] > places[:, :-1]).all())


def _split(there: Bytes, chunks: _Chunks) -> tuple[FloatArray, npt.NDArray[np.uint16]]:
    """Return views (chunks, kept) of the values and of their places, in the bytes of a grid."""
    at, shape = 4 * chunks.number * chunks.kept, (chunks.number, chunks.kept)
    values: FloatArray = there[:at].view("<f4").reshape(shape)
    places: npt.NDArray[np.uint16] = there[at:].view("<u2").reshape(shape)
    return values, places
