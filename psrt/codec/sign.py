"""One bit per element: its sign, times the mean magnitude of its bucket.

A payload holds a float32 scale per bucket, then the packed signs. Buckets are multiples of 8, so
each begins at a byte of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from psrt.codec.buckets import Buckets, or_nan
from psrt.codec.codec import DenseCodec
from psrt.codec.fields import Field, FieldReader, elements
from psrt.codec.frame import Header
from psrt.codec.table import CODECS
from psrt.core.arrays import Bytes, Vector

#: Byte → its eight signs as factors 1 and -1; the first element is in the highest bit, as
#: ``np.packbits`` orders them, and a 1 means negative.
_FACTORS = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1)
_FACTORS = _FACTORS.astype(np.float32)


class Sign(DenseCodec):
    """Signs and the mean magnitude of each bucket: biased, so it needs error feedback.

    Source: Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018,
    arXiv:1802.04434; Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes", ICML 2019, arXiv:1901.09847, for the scale.

    >>> codec, out = Sign(4, bucket=8), np.empty(4, np.float32)
    >>> codec.decode(codec.encode(np.array([1, -2, 3, -4], np.float32), None), out)
    >>> out.tolist()
    [2.5, -2.5, 2.5, -2.5]
    """

    row = CODECS["sign"]

    def __init__(self, n: int, *, bucket: int) -> None:
        """Set up.

        Args:
            n: elements of a vector.
            bucket: elements that share a scale, a multiple of 8.
        """
        self._buckets = Buckets(n, bucket)
        self._at = 4 * self._buckets.count
        super().__init__(n, self._at + -(-n // 8))
        self.parameter = bucket
        block = min(n, self._buckets.step)
        self._magnitudes, self._signs = np.empty(block, np.float32), np.empty(block, np.bool_)

    def _pack(self, vector: Vector, payload: Bytes, rng: np.random.Generator) -> None:
        scales, packed = payload[: self._at].view("<f4"), payload[self._at :]
        whole, rest = divmod(self.n, self._buckets.size)
        with np.errstate(all="ignore"):
            for at, first, rows in self._buckets.rows(vector):
                block, signs = rows.ravel(), self._signs[: rows.size]
                magnitudes = np.abs(rows, out=self._magnitudes[: rows.size].reshape(rows.shape))
                np.add.reduce(magnitudes, axis=1, out=scales[first : first + len(rows)])
                # By the sign bit, so that 0 has a sign as well: there is no third value.
                np.signbit(block, out=signs)
                packed[at // 8 : -(-(at + block.size) // 8)] = np.packbits(signs)
            # So far scales are sums. Without a shorter last bucket, the second slice is empty, and
            # rest = 0 divides nothing.
            scales[:whole] /= np.float32(self._buckets.size)
            scales[whole:] /= np.float32(rest)
            or_nan(scales)

    def _unpack(self, payload: Bytes, out: Vector) -> None:
        scales, packed = payload[: self._at].view("<f4"), payload[self._at :]
        with np.errstate(all="ignore"):
            for at, first, rows in self._buckets.rows(out):
                block, whole = rows.reshape(-1), rows.size // 8
                bytes_ = packed[at // 8 : at // 8 + whole]
                np.take(
                    _FACTORS, bytes_, axis=0, out=block[: 8 * whole].reshape(-1, 8), mode="clip"
                )
                if 8 * whole < rows.size:
                    block[8 * whole :] = _FACTORS[packed[-1]][: rows.size - 8 * whole]
                scale = scales[first : first + len(rows)]
                np.multiply(rows, scale[:, np.newaxis], out=rows)

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        yield from self._buckets.scales(reader)
        for at in range(0, self.n, 8):
            byte = reader.peek(8)  # the first element is in the highest bit
            signs = " ".join("+-"[byte >> (7 - i) & 1] for i in range(min(8, self.n - at)))
            yield reader.take([1] * 8, f"{elements(at // 8, 8, self.n)} {signs}")
