"""Floating-point numbers of 8 and 4 bits, with a power of two as the scale of each bucket.

The scale is the smallest power of two that brings the largest magnitude of the bucket into the
range of the format. Each element is divided by it and rounded to nearest, ties to even.

A payload holds a byte per bucket, the exponent of its scale, then the packed codes of all elements,
each with the sign as its highest bit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from psrt.codec.buckets import Buckets, largest
from psrt.codec.codec import DenseCodec
from psrt.codec.fields import Field, FieldReader, elements
from psrt.codec.frame import Header
from psrt.codec.packing import bits_bytes, pack_bits, unpack_bits
from psrt.codec.table import CODECS
from psrt.core.arrays import Bytes, Vector

#: A scale of 2**e is sent as the byte e + _BIAS, that of a bucket that is not finite as _NAN.
_BIAS, _NAN = 127, 255


def format_numbers(exponent: int, mantissa: int, largest_code: int) -> npt.NDArray[np.float32]:
    """Return the numbers of a format that are 0 or more, in the order of their codes.

    >>> format_numbers(3, 0, 7).tolist()
    [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]

    Args:
        exponent: bits of the exponent; its bias is half its range, as in IEEE 754.
        mantissa: bits of the mantissa.
        largest_code: the code of the largest finite number.
    """
    codes = np.arange(largest_code + 1)
    field, fraction = codes >> mantissa, codes & ((1 << mantissa) - 1)
    bias = (1 << (exponent - 1)) - 1
    # An exponent field of 0 marks subnormal numbers: no leading 1, and the exponent of field 1.
    significand = fraction / (1 << mantissa) + (field > 0)
    if not mantissa:  # then 0 would be the only subnormal number: its code is the only special one
        significand = (codes > 0).astype(np.float64)
    power = np.maximum(field, 1 if mantissa else 0) - bias
    found: npt.NDArray[np.float32] = np.ldexp(significand, power).astype(np.float32)
    return found


@functools.cache  # on first use: making all of them would delay the start of every rank by 3 ms
def _table(exponent: int, mantissa: int, largest_code: int) -> Bytes:
    """Return the table: upper half of a float32 → code of the nearest number of a format.

    The last bit of the upper half is sticky: also 1 if any bit of the lower half is. The formats
    have at most 3 bits of mantissa and the upper half has 7, so a tie never has its last bit set:
    16 bits suffice to tell a tie from a number just above it.
    """
    numbers = format_numbers(exponent, mantissa, largest_code)
    upper = np.arange(1 << 15, dtype=np.uint32)
    given = (upper << 16).view(np.float32)
    given = np.where(np.isfinite(given), given, np.inf).astype(np.float64)
    middles = (numbers[:-1].astype(np.float64) + numbers[1:]) / 2
    below, above = (np.searchsorted(middles, given, side=side) for side in ("left", "right"))
    # The two differ only at a tie. Consecutive numbers have consecutive codes, so the neighbour
    # with an even mantissa is the one with the even code.
    half = np.where(below % 2 == 0, below, above).astype(np.uint8)
    return np.concatenate([half, half | np.uint8(1 << (exponent + mantissa))])


class _SmallFloat(DenseCodec):
    """A scale per bucket, then a code per element: its sign bit, and the code of its magnitude."""

    bits: ClassVar[int]
    numbers: ClassVar[npt.NDArray[np.float32]]
    format: ClassVar[tuple[int, int, int]]

    def __init_subclass__(cls, *, exponent: int, mantissa: int, largest_code: int) -> None:
        cls.bits = 1 + exponent + mantissa
        cls.format = (exponent, mantissa, largest_code)
        cls.parts_of_element = (1, exponent, mantissa)
        positive = format_numbers(exponent, mantissa, largest_code)
        sign = 1 << (cls.bits - 1)
        # Unused codes are never sent for a number, but decode to NaN: damage does not pass
        # for a value. All codes have an entry, so no payload can index outside the table.
        cls.numbers = np.full(2 * sign, np.nan, np.float32)
        cls.numbers[: positive.size] = positive
        cls.numbers[sign : sign + positive.size] = -positive

    def __init__(self, n: int, *, bucket: int) -> None:
        """Set up.

        Args:
            n: elements of a vector.
            bucket: elements with a common scale.

        Raises:
            ConfigError: if a frame cannot hold n elements.
        """
        self._table = _table(*self.format)
        self._buckets = Buckets(n, bucket)
        super().__init__(n, self._buckets.count + bits_bytes(n, self.bits))
        self.parameter = bucket
        self._scaled = np.empty(min(n, self._buckets.step), np.float32)
        self._codes = np.empty(n, np.uint8)

    def _pack(self, vector: Vector, payload: Bytes, rng: np.random.Generator) -> None:
        buckets, codes = self._buckets, self._codes
        _, top = np.frexp(np.nanmax(self.numbers))
        with np.errstate(all="ignore"):
            for at, first, rows in buckets.rows(vector):
                scaled = self._scaled[: rows.size].reshape(rows.shape)
                most = largest(rows, scaled)
                # most = fraction · 2**power and the largest number = limit · 2**top, both
                # fractions in [½, 1): 2**(power - top) is enough of a scale unless fraction
                # exceeds limit, and then the next power of two is.
                fraction, power = np.frexp(most)
                limit = np.ldexp(np.float32(np.nanmax(self.numbers)), -top)
                # Upper bound: the largest number times the scale stays below 2**128, so decoding is
                # finite. Lower bound: the byte is at least 0, and 2**127 is a finite float32. With
                # top ≥ 1 the byte is below 255 too, so no scale is mistaken for _NAN.
                power = np.clip(power - top + (fraction > limit), -_BIAS, 128 - top)
                np.multiply(rows, np.ldexp(np.float32(1), -power)[:, np.newaxis], out=scaled)
                self._look_up(scaled.ravel(), codes[at : at + rows.size])
                scale = np.where(np.isfinite(most), power + _BIAS, _NAN)
                payload[first : first + len(rows)] = scale
        pack_bits(codes, self.bits, payload[buckets.count :])

    def _look_up(self, scaled: Vector, codes: Bytes) -> None:
        bits = scaled.view(np.uint32)
        upper = bits >> 16  # sign, exponent and 7 bits of mantissa; then the sticky bit
        upper |= (bits & 0xFFFF) != 0
        np.take(self._table, upper, out=codes, mode="clip")

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        for i in range(self._buckets.count):
            power = reader.peek(8)
            scale = "NaN" if power == _NAN else f"2^{power - _BIAS}"
            which = elements(i, self._buckets.size, self.n)
            yield reader.take([8], f"scale of {which}: {scale}")
        yield from super()._fields(reader, header, decoded)

    def _unpack(self, payload: Bytes, out: Vector) -> None:
        buckets, codes = self._buckets, self._codes
        unpack_bits(payload[buckets.count :], self.bits, codes)
        np.take(self.numbers, codes, out=out, mode="clip")
        bytes_ = payload[: buckets.count].astype(np.int32)
        scales = np.where(bytes_ == _NAN, np.nan, np.ldexp(1.0, bytes_ - _BIAS)).astype(np.float32)
        with np.errstate(all="ignore"):
            for _, first, rows in buckets.rows(out):
                np.multiply(rows, scales[first : first + len(rows), np.newaxis], out=rows)


class Float8E4M3(_SmallFloat, exponent=4, mantissa=3, largest_code=0x7E):
    """4 bits of exponent, 3 bits of mantissa, magnitudes up to 448.

    Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022, arXiv:2209.05433.
    """

    row = CODECS["float8-e4m3"]


class Float8E5M2(_SmallFloat, exponent=5, mantissa=2, largest_code=0x7B):
    """5 bits of exponent, 2 bits of mantissa, magnitudes up to 57,344; see ``Float8E4M3``."""

    row = CODECS["float8-e5m2"]


class Float4E3M0(_SmallFloat, exponent=3, mantissa=0, largest_code=7):
    """3 bits of exponent and no mantissa: powers of two, and 0.

    Source: Douillard et al., "Streaming DiLoCo with overlapping communication", 2025,
    arXiv:2501.18512.
    """

    row = CODECS["float4-e3m0"]
