"""Low-rank compression (PowerSGD): each matrix of a model as the product of two thin ones.

One step of subspace iteration, starting from the Q of the last step: P = M·Q, orthonormalized; then
Q = Mᵀ·P; M is decoded as P·Qᵀ. For a fixed other factor, P and Q are linear in M: so each may be
summed over workers instead of M.

A payload holds P and then Q of each thin matrix by rows, then all other elements, as float32.
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

#: Added to a column's squared norm: a column that depends on earlier ones becomes 0, not NaN.
_TINY = 1e-30
#: The first Q is drawn with this seed: all workers must begin with the same one.
_SEED = 0


class LowRank(DenseCodec):
    """P and Q of each matrix that is larger than both; everything else uncompressed.

    At rank r, an (a, b) matrix takes r·(a + b) numbers. Q is the state of an encoder; a decoder has
    none, since a frame has both factors.

    Source: Vogels, Karimireddy & Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
    Distributed Optimization", NeurIPS 2019, arXiv:1905.13727.
    """

    row = CODECS["low-rank"]
    saved = of_span = ("q",)

    def __init__(self, n: int, *, matrices: Sequence[Matrix] = (), rank: int) -> None:
        """Set up, with the same first Q on every rank.

        Args:
            n: elements of a vector.
            matrices: of the vector, in order of their starts, disjoint.
            rank: columns of P and Q, at least 1. Matrices that this would not shrink stay as they
                are.

        Raises:
            ConfigError: if matrices overlap, are out of order, or exceed the vector.
        """
        self._thin = [it for it in matrices if rank * (it.rows + it.columns) < it.rows * it.columns]
        between(matrices, n)  # checks all matrices, also those that stay uncompressed
        self._rest = between(self._thin, n)
        self.parameter = rank
        rng = np.random.default_rng(_SEED)
        #: For each thin matrix, (b, r): the Q from which the next step starts.
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
                np.dot(given.T, p, out=q)  # with the orthonormal P, so P·Qᵀ projects M onto it
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
        """Do nothing: all workers began with one Q, and every later Q is a mean that all share."""

    def project(self, part: int, vector: Vector, out: AnyVector) -> None:
        """Write part 0, M·Q of each matrix M and all other elements, or part 1, Mᵀ·P."""
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
        """Orthonormalize the mean P; make the mean Q the start of the next round."""
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
        """Write P·Qᵀ of each matrix, and all other elements."""
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
    """Scale the columns of Q to a magnitude of about 1, in place, as the start of the next step.

    Q has the magnitude of M, so M·Q would have that of M² and overflow long before M does. Scaling
    by powers of two is exact. A column of zeros, as from a matrix of zeros, would stay zero
    forever: it is drawn again. If Q is not finite, all columns are.
    """
    largest = np.abs(q).max(axis=0)
    lost = largest == 0 if np.isfinite(largest).all() else np.ones(largest.shape, np.bool_)
    if lost.any():
        q[:, lost] = np.random.default_rng(_SEED).standard_normal(q.shape)[:, lost]
    np.ldexp(q, np.where(lost, 0, -np.frexp(largest)[1]), out=q)


def orthonormalize(p: FloatArray) -> None:
    """Orthonormalize the columns of a matrix, in place, by Gram-Schmidt with reorthogonalization.

    A column that depends on earlier ones becomes small instead of getting an arbitrary direction:
    the matrix has no more directions for it.
    """
    # Scaled by powers of two, which is exact, so that squares neither overflow nor underflow.
    np.ldexp(p, -np.frexp(np.abs(p).max(axis=0))[1], out=p)
    for i in range(p.shape[1]):
        column = p[:, i]
        if i:
            before = p[:, :i]
            # Twice is enough (Kahan and Parlett): one pass leaves rounding errors along ``before``
            # that matter if the column nearly depends on it.
            for _ in range(2):
                column -= before @ (before.T @ column)
        column /= np.float32(np.sqrt(np.float64(column @ column) + _TINY))
