"""Decoupled momentum: sends the fast components of a momentum that each worker keeps.

A momentum is split into chunks, and the largest coefficients of each chunk's cosine transform are
sent. They are subtracted from the momentum, which so keeps what was not sent: it is the error
feedback, and nothing else is kept. Transforms are linear, so decoded momenta may be averaged over
workers. The optimizer that belongs to it is ``sign-sgd``.
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
    """Chunks of one shape, side by side in a matrix."""

    matrix: Matrix
    #: In the matrix: the first row and column, and those behind the last.
    rows: tuple[int, int]
    columns: tuple[int, int]
    #: Rows and columns of a chunk.
    shape: tuple[int, int]
    #: Coefficients of a chunk that are sent.
    kept: int

    @property
    def number(self) -> int:
        """The number of chunks."""
        (top, bottom), (left, right) = self.rows, self.columns
        return (bottom - top) * (right - left) // self.size

    @property
    def size(self) -> int:
        """Elements of a chunk."""
        return self.shape[0] * self.shape[1]

    @property
    def is_whole(self) -> bool:
        """Whether all of a chunk is sent: then as it is, without a transform or indices."""
        return self.kept == self.size

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks on the wire."""
        return self.number * self.kept * (4 if self.is_whole else 6)

    def of(self, vector: Vector) -> FloatArray:
        """Return the view (down, across, rows, columns) of the chunks."""
        (top, bottom), (left, right) = self.rows, self.columns
        rows, columns = self.shape
        part = self.matrix.of(vector)[top:bottom, left:right]
        return part.reshape((bottom - top) // rows, rows, -1, columns).transpose(0, 2, 1, 3)


class Demo(DenseCodec):
    """m ← β·m + g; the largest coefficients of m's chunks are sent, and taken out of m.

    A matrix is split into chunks of ``chunk`` rows and columns, the last ones smaller; everything
    else into chunks of ``chunk`` elements. With ``--optimizer demo`` an all-reduce is given g
    times the learning rate of the step, as published. Workers that push do not know the rate and
    give g itself. Only the sign of a sum is used, so this differs only when the rate changes: by
    the relative weight of older and newer gradients.

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
        """Set up, with nothing gathered yet.

        Args:
            n: elements of a vector.
            chunk: side of a chunk, 1 to 256.
            kept: coefficients of a chunk that are sent, at least 1; of a smaller chunk, all.
            momentum: β, in [0, 1).
            matrices: in the vector, in the order of their starts, disjoint.

        Raises:
            ConfigError: if the matrices are not disjoint and in order.
        """
        rest = [Matrix(span.start, 1, span.size) for span in between(matrices, n)]
        self._chunks = [
            it for matrix in sorted([*matrices, *rest]) for it in _cut(matrix, chunk, kept)
        ]
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
        # Check all chunks before writing any: a caller that rejects a frame keeps its old vector.
        for chunks, split in zip(self._chunks, found, strict=True):
            if split is not None and not _ascend(split[1], chunks.size):
                raise CodecError(f"indices in a chunk that do not ascend below {chunks.size}")
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
        """Return the cosine transform of chunks (…, rows, columns)."""
        rows, columns = given.shape[-2:]
        found: FloatArray = np.matmul(np.matmul(self._bases[rows], given), self._bases[columns].T)
        return found

    def _back(
        self, chunks: _Chunks, values: FloatArray, indices: npt.NDArray[np.int64]
    ) -> FloatArray:
        """Return the chunks (down, across, rows, columns) that have a few coefficients."""
        rows, columns = chunks.shape
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
    """Return the matrix (n, n) of the orthonormal cosine transform, DCT-II, of n numbers.

    >>> np.round(cosines(2) @ np.array([1, 3]), 4)
    array([ 2.8284, -1.4142])
    """
    k, i = np.ogrid[:n, :n]
    basis = np.sqrt(2 / n) * np.cos(np.pi * (2 * i + 1) * k / (2 * n))
    basis[0] /= np.sqrt(2)
    found: FloatArray = basis.astype(np.float32)
    return found


def _cut(matrix: Matrix, chunk: int, kept: int) -> Iterator[_Chunks]:
    """Split a matrix into chunks, by shape: whole ones, and those at its right and lower edge."""
    for rows in _sides(matrix.rows, chunk):
        for columns in _sides(matrix.columns, chunk):
            shape = min(chunk, rows[1] - rows[0]), min(chunk, columns[1] - columns[0])
            yield _Chunks(matrix, rows, columns, shape, min(kept, shape[0] * shape[1]))


def _sides(n: int, chunk: int) -> list[tuple[int, int]]:
    """Return the part of n that whole chunks cover, and the rest.

    >>> _sides(10, 4), _sides(8, 4), _sides(3, 4)
    ([(0, 8), (8, 10)], [(0, 8)], [(0, 3)])
    """
    whole = n - n % chunk
    return [side for side in ((0, whole), (whole, n)) if side[0] < side[1]]


def _largest(coefficients: FloatArray, k: int) -> npt.NDArray[np.int64]:
    """Return the places of the k largest magnitudes of each row, ascending; NaN is the largest."""
    magnitudes = coefficients.view(np.uint32) & _MAGNITUDE
    first = magnitudes.shape[1] - k
    found: npt.NDArray[np.int64] = np.argpartition(magnitudes, first, axis=1)[:, first:]
    found.sort(axis=1)
    return found


def _ascend(places: npt.NDArray[np.uint16], size: int) -> bool:
    """Return whether the places of each chunk ascend, below its size."""
    return bool((places[:, -1] < size).all() and (places[:, 1:] > places[:, :-1]).all())


def _split(there: Bytes, chunks: _Chunks) -> tuple[FloatArray, npt.NDArray[np.uint16]]:
    """Return the views (chunks, kept) of values and of indices in their bytes."""
    at, shape = 4 * chunks.number * chunks.kept, (chunks.number, chunks.kept)
    values: FloatArray = there[:at].view("<f4").reshape(shape)
    places: npt.NDArray[np.uint16] = there[at:].view("<u2").reshape(shape)
    return values, places
