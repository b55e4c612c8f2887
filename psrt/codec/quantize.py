"""Stochastic quantization: multiples of a step, rounded up or down so that the mean is exact.

A bucket's scale is divided into ``levels`` equal steps. An element x becomes ⌊x·levels/scale + u⌋
with u uniform in [0, 1): unbiased, with a variance of at most ¼ step² per element, since it takes
one of two neighbours f and 1 − f away and f·(1 − f) ≤ ¼.

A payload holds a float32 scale per bucket, then the packed numbers, each plus ``levels`` so that
none is negative.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from psrt.codec.buckets import Buckets, largest, or_nan
from psrt.codec.codec import DenseCodec
from psrt.codec.fields import Field, FieldReader, elements
from psrt.codec.frame import Header
from psrt.codec.packing import (
    bits_bytes,
    pack_bits,
    pack_trits,
    trits_bytes,
    unpack_bits,
    unpack_trits,
)
from psrt.codec.table import CODECS
from psrt.core.arrays import Bytes, FloatArray, Vector

#: Random numbers of 16 bits, four from a draw of 64. The mean of u is ½ − 2⁻¹⁷ instead of ½: that
#: is the bias of a rounded element, in steps.
_DRAWS = 4
_U = np.float32(2.0**-16)


class _Levels(DenseCodec):
    """A scale per bucket, then a number per element."""

    def __init__(self, n: int, levels: int, bucket: int) -> None:
        self._buckets = Buckets(n, bucket)
        super().__init__(n, 4 * self._buckets.count + self._packed_bytes(n, levels))
        self._levels = levels
        self.parameter = bucket
        block = min(n, self._buckets.step)
        self._steps, self._random = np.empty((2, block), np.float32)
        self._numbers = np.empty(n, np.uint8)

    def _pack(self, vector: Vector, payload: Bytes, rng: np.random.Generator) -> None:
        buckets, levels, numbers = self._buckets, self._levels, self._numbers
        scales = payload[: 4 * buckets.count].view("<f4")
        with np.errstate(all="ignore"):
            for at, first, rows in buckets.rows(vector):
                steps = self._steps[: rows.size].reshape(rows.shape)
                # A bucket with an element that is not finite gets the scale NaN: all of it decodes
                # to NaN, so that divergence shows at the receiver instead of a plausible number.
                scale = or_nan(self._scale(rows, steps))
                scales[first : first + len(rows)] = scale
                factor = np.float32(levels) / scale
                # 0 for a bucket of zeros, for a scale so small that levels / scale overflows, and
                # for a scale of NaN: every element then rounds to 0 steps.
                factor[~np.isfinite(factor)] = 0
                np.multiply(rows, factor[:, np.newaxis], out=steps)
                if not np.isfinite(scale).all():
                    # 0 · infinity is NaN, and casting NaN to an integer is undefined.
                    np.nan_to_num(steps, copy=False, posinf=0.0, neginf=0.0)
                self._round(steps.ravel(), numbers[at : at + rows.size], rng)
        self._pack_numbers(numbers, payload[4 * buckets.count :])

    def _round(self, steps: Vector, numbers: Bytes, rng: np.random.Generator) -> None:
        """Round stochastically to integers from 0 to 2·levels; overwrites ``steps``."""
        random, count = self._random[: steps.size], -(-steps.size // _DRAWS)
        draws = rng.bit_generator.random_raw(count).view(np.uint16)[: steps.size]
        np.multiply(draws, _U, out=random)
        np.add(steps, random, out=steps)
        np.add(steps, np.float32(self._levels), out=steps)
        # An element may exceed its scale by a rounding error, in either direction. Above, this
        # clips it; below, the sum is greater than -1, and the cast rounds towards 0: no number is
        # negative.
        np.minimum(steps, np.float32(2 * self._levels), out=steps)
        np.copyto(numbers, steps, casting="unsafe")

    def _unpack(self, payload: Bytes, out: Vector) -> None:
        buckets = self._buckets
        with np.errstate(all="ignore"):  # a scale of a damaged frame may be anything
            scales = payload[: 4 * buckets.count].view("<f4")
            steps = scales / np.float32(self._levels)
            # A scale close to the largest float32: if the division rounded up, levels · step would
            # overflow although the scale itself is finite. The next smaller step does not.
            over = np.isfinite(scales) & np.isinf(steps * np.float32(self._levels))
            steps[over] = np.nextafter(steps[over], np.float32(0))
        self._unpack_numbers(payload[4 * buckets.count :], out)
        with np.errstate(all="ignore"):
            for _, first, rows in buckets.rows(out):
                scale = steps[first : first + len(rows)]
                np.multiply(rows, scale[:, np.newaxis], out=rows)

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        yield from self._buckets.scales(reader)
        yield from self._number_fields(reader, decoded)
        yield from reader.rest()

    def _number_fields(self, reader: FieldReader, decoded: Vector) -> Iterator[Field]:
        bits, levels = _bits(self._levels), self._levels
        for i in range(self.n):
            step = reader.peek(bits) - levels
            yield reader.take([bits], f"[{i}] {step:+d} of {levels}: {decoded[i]:g}")

    def _scale(self, rows: FloatArray, scratch: FloatArray) -> npt.NDArray[np.float32]:
        """Return the scale of each bucket, which no element exceeds except by a rounding error."""
        return largest(rows, scratch)

    @staticmethod
    def _packed_bytes(n: int, levels: int) -> int:
        return bits_bytes(n, _bits(levels))

    def _pack_numbers(self, numbers: Bytes, out: Bytes) -> None:
        pack_bits(numbers, _bits(self._levels), out)

    def _unpack_numbers(self, packed: Bytes, out: Vector) -> None:
        """Write the unpacked numbers minus ``levels``: from -levels to levels if undamaged."""
        unpack_bits(packed, _bits(self._levels), self._numbers)
        np.subtract(self._numbers, np.float32(self._levels), out=out)


def _bits(levels: int) -> int:
    """Return the bits of a number from 0 to 2·levels."""
    return (2 * levels).bit_length()


class Int8(_Levels):
    """127 levels of the largest magnitude of a bucket: 8 bits per element."""

    row = CODECS["int8"]

    def __init__(self, n: int, *, bucket: int) -> None:
        super().__init__(n, 127, bucket)


class Qsgd(_Levels):
    """Levels of the L2 norm of a bucket, in ⌈log₂(2·levels + 1)⌉ bits per element.

    Source: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding", NeurIPS 2017, arXiv:1610.02132.
    """

    row = CODECS["qsgd"]

    def __init__(self, n: int, *, levels: int, bucket: int) -> None:
        super().__init__(n, levels, bucket)

    def _scale(self, rows: FloatArray, scratch: FloatArray) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        return found


class Ternary(_Levels):
    """−1, 0 or 1 times the largest magnitude of a bucket, in 2 bits per element.

    Source: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
    Learning", NeurIPS 2017, arXiv:1705.07878.
    """

    row = CODECS["ternary"]

    def __init__(self, n: int, *, bucket: int) -> None:
        super().__init__(n, 1, bucket)


class TernaryBase3(Ternary):
    """As ``Ternary``, with five elements per byte: 1.6 bits per element."""

    row = CODECS["ternary-base3"]

    @staticmethod
    def _packed_bytes(n: int, levels: int) -> int:
        return trits_bytes(n)

    def _pack_numbers(self, numbers: Bytes, out: Bytes) -> None:
        pack_trits(numbers, out)

    def _unpack_numbers(self, packed: Bytes, out: Vector) -> None:
        unpack_trits(packed, out)

    def _number_fields(self, reader: FieldReader, decoded: Vector) -> Iterator[Field]:
        for i in range(-(-self.n // 5)):
            byte = reader.peek(8)
            digits = [byte // 3**k % 3 for k in range(min(5, self.n - 5 * i))]
            sums = " + ".join(f"{digit}·{3**k}" for k, digit in enumerate(digits))
            yield reader.take([8], f"{elements(i, 5, self.n)} {byte} = {sums}, minus 1 each")
