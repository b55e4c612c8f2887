"""Matrices of low rank: each matrix of a model as the product of two thin ones.

One step of subspace iteration, which starts from the end of the last step: P = M·Q, made
orthonormal; Q = Mᵀ·P; and M is decoded as P·Qᵀ. Both P and Q are linear in M, so either may be
summed over workers instead of M.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from psrt.codec.codec import DenseCodec
from psrt.codec.fields import Field, FieldReader
from psrt.codec.frame import Header
from psrt.codec.matrices import Matrix, between
from psrt.codec.table import CODECS
from psrt.core.arrays import AnyVector, Bytes, FloatArray, Vector

#: Added to a column's squared length: a column that depends on earlier ones becomes 0, not NaN.
_TINY = 1e-30
#: The first Q is drawn with this seed, the same everywhere.
_SEED = 0


class LowRank(DenseCodec):
    """P and Q of each matrix that they make shorter; everything else as it is.

    A frame has r·(a + b) numbers for an (a, b) matrix, and one for every other element. It has
    a state, Q, which each encoder keeps by itself: a decoder needs none.

    Source: Vogels, Karimireddy & Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
    Distributed Optimization", NeurIPS 2019, arXiv:1905.13727.
    """

    row = CODECS["low-rank"]
    saved = of_span = ("q",)

    def __init__(self, n: int, *, matrices: Sequence[Matrix] = (), rank: int) -> None:
        """Set up, with the same first Q everywhere.

        Args:
            n: elements of a vector.
            matrices: in it, in the order of their starts, disjoint.
            rank: columns of P and Q, at least 1; limited by the size of a smaller matrix.

        Raises:
            ConfigError: if the matrices are not disjoint and in order.
        """
        self._thin = [it for it in matrices if rank * (it.rows + it.columns) < it.rows * it.columns]
        between(matrices, n)  # also those that are sent as they are must lie in order
        self._rest = between(self._thin, n)
        self.parameter = rank
        rng = np.random.default_rng(_SEED)
        #: Of each thin matrix, (b, r): the start of the next step.
        self.q = [rng.standard_normal((it.columns, rank), dtype=np.float32) for it in self._thin]
        self._p = [np.empty((it.rows, rank), np.float32) for it in self._thin]
        numbers = sum(rank * (it.rows + it.columns) for it in self._thin)
        super().__init__(n, 4 * (numbers + sum(span.size for span in self._rest)))
        right = sum(q.size for q in self.q)
        self.parts, self.dtype = (self.most // 4 - right, right), np.dtype(np.float32)

    def _pack(self, vector: Vector, payload: Bytes, rng: np.random.Generator) -> None:
        values, at = payload.view("<f4"), 0
        with np.errstate(all="ignore"):
            for matrix, p, q in zip(self._thin, self._p, self.q, strict=True):
                given = matrix.of(vector)
                np.dot(given, q, out=p)
                orthonormalize(p)
                np.dot(given.T, p, out=q)
                for factor in (p, q):
                    values[at : at + factor.size] = factor.ravel()
                    at += factor.size
                _prepare(q)
        for span in self._rest:
            values[at : at + span.size] = span.of(vector)
            at += span.size

    def _unpack(self, payload: Bytes, out: Vector) -> None:
        values, at = payload.view("<f4"), 0
        with np.errstate(all="ignore"):
            for matrix, p, q in zip(self._thin, self._p, self.q, strict=True):
                left = values[at : at + p.size].reshape(p.shape)
                right = values[at + p.size : at + p.size + q.size].reshape(q.shape)
                np.dot(left, right.T, out=matrix.of(out))
                at += p.size + q.size
        for span in self._rest:
            span.of(out)[:] = values[at : at + span.size]
            at += span.size

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        for matrix in self._thin:
            for name, rows in (("P", matrix.rows), ("Q", matrix.columns)):
                for row, column in product(range(rows), range(self.parameter)):
                    yield reader.float32(f"{name}[{row}, {column}]")
        for span in self._rest:
            for i in range(span.start, span.stop):
                yield reader.float32(f"[{i}]")

    def begin(self, rng: np.random.Generator) -> None:
        """Do nothing: the first Q is the same everywhere, and so are all that followed."""

    def project(self, part: int, vector: Vector, out: AnyVector) -> None:
        """Write M·Q of each matrix M and every other element; in the second part, Mᵀ·P."""
        at = 0
        with np.errstate(all="ignore"):
            for matrix, p, q in zip(self._thin, self._p, self.q, strict=True):
                given, factor = (matrix.of(vector), q) if part == 0 else (matrix.of(vector).T, p)
                size = given.shape[0] * self.parameter
                np.dot(given, factor, out=out[at : at + size].reshape(-1, self.parameter))
                at += size
        for span in self._rest if part == 0 else ():
            out[at : at + span.size] = span.of(vector)
            at += span.size

    def agree(self, part: int, mean: Vector) -> None:
        """Make P orthonormal, the same on all workers; begin the next round with this Q."""
        at = 0
        for factor in self._p if part == 0 else self.q:
            factor.ravel()[:] = mean[at : at + factor.size]
            at += factor.size
            with np.errstate(all="ignore"):
                if part == 0:
                    orthonormalize(factor)
                else:
                    _prepare(factor)

    def expand(self, parts: Sequence[Vector], out: Vector) -> None:
        """Write P·Qᵀ, and every other element."""
        at, left = 0, sum(p.size for p in self._p)
        with np.errstate(all="ignore"):
            for matrix, p, q in zip(self._thin, self._p, self.q, strict=True):
                right = parts[1][at : at + q.size].reshape(q.shape)
                np.dot(p, right.T, out=matrix.of(out))
                at += q.size
        for span in self._rest:
            span.of(out)[:] = parts[0][left : left + span.size]
            left += span.size


def _prepare(q: FloatArray) -> None:
    """Make the next step's Q of this one, in place: the same directions, magnitudes around 1.

    Otherwise P would grow like the square of a matrix, and leave the range of numbers long before
    the matrix does. Scaling by powers of two rounds nothing. A column of zeros, as from a matrix
    of zeros, would never get a direction: it is drawn again. If Q is not finite, all columns are.
    """
    largest = np.abs(q).max(axis=0)
    lost = largest == 0 if np.isfinite(largest).all() else np.ones(largest.shape, np.bool_)
    if lost.any():
        q[:, lost] = np.random.default_rng(_SEED).standard_normal(q.shape)[:, lost]
    np.ldexp(q, np.where(lost, 0, -np.frexp(largest)[1]), out=q)


def orthonormalize(p: FloatArray) -> None:
    """Make the columns of a matrix orthonormal, in place, by Gram and Schmidt.

    A column that depends on earlier ones becomes small, and gets no other direction: the earlier
    columns already span it.
    """
    # Scaled by powers of two, so that no square is out of range.
    np.ldexp(p, -np.frexp(np.abs(p).max(axis=0))[1], out=p)
    for i in range(p.shape[1]):
        column = p[:, i]
        if i:
            before = p[:, :i]
            # Twice is enough (Parlett), also where little is left after the first time.
            for _ in range(2):
                column -= before @ (before.T @ column)
        column /= np.float32(np.sqrt(np.float64(column @ column) + _TINY))
