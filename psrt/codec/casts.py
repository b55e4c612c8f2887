"""Casts to 16-bit floating point: each element by itself, rounded to nearest, ties to even."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.codec.codec import BLOCK, DenseCodec
from psrt.codec.table import CODECS
from psrt.core.arrays import AnyVector, Bytes, Vector

#: Half a unit in the last place of a bfloat16, minus one, within the bits of a float32.
_HALF = np.uint32(0x7FFF)
#: The least normal float16; a float32 whose neighbours differ as float16's smaller numbers do.
_NORMAL, _SAME_GRID = np.float32(2**-14), np.float32(0.75)


class Float16(DenseCodec):
    """IEEE 754 binary16: 11 bits of precision; magnitudes from 65,520 on become infinite.

    >>> codec, out = Float16(3), np.empty(3, np.float32)
    >>> codec.decode(codec.encode(np.array([1, 1e-9, 1e6], np.float32), None), out)
    >>> out.tolist()
    [1.0, 0.0, inf]
    """

    row = CODECS["float16"]
    parts_of_element = (1, 5, 10)

    def __init__(self, n: int) -> None:
        super().__init__(n, 2 * n)
        self.parts, self.dtype = (n,), np.dtype("<f2")
        self._rounded = np.empty(min(n, BLOCK), np.float32)

    def _pack(self, vector: Vector, payload: Bytes, rng: np.random.Generator) -> None:
        self.project(0, vector, payload.view("<f2"))

    def _unpack(self, payload: Bytes, out: Vector) -> None:
        np.copyto(out, payload.view("<f2"))

    def begin(self, rng: np.random.Generator) -> None:
        """Do nothing: rounding is deterministic."""

    def project(self, part: int, vector: Vector, out: AnyVector) -> None:
        """Round the vector to float16."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for at in range(0, vector.size, BLOCK):
                block = vector[at : at + BLOCK]
                np.copyto(out[at : at + BLOCK], self._on_grid(block), casting="same_kind")

    def _on_grid(self, block: Vector) -> Vector:
        """Round what float16 has no normal number for to its grid, 2⁻²⁴; return all numbers.

        NumPy is 20 times as slow where such a number has to be rounded. Near 0.75 float32 has the
        same grid, to which adding rounds, ties to even.
        """
        rounded = self._rounded[: block.size]
        np.abs(block, out=rounded)
        is_small = rounded < _NORMAL
        if not is_small.any():
            return block
        np.add(block, _SAME_GRID, out=rounded)
        np.subtract(rounded, _SAME_GRID, out=rounded)
        np.copysign(rounded, block, out=rounded)  # zeros keep their sign
        np.copyto(rounded, block, where=~is_small)
        return rounded

    def agree(self, part: int, mean: Vector) -> None:
        """Do nothing: there is one part."""

    def expand(self, parts: Sequence[Vector], out: Vector) -> None:
        """Widen the part to float32."""
        np.copyto(out, parts[0])


class BFloat16(DenseCodec):
    """The upper half of a float32: its range, and 8 bits of precision.

    >>> codec, out = BFloat16(3), np.empty(3, np.float32)
    >>> codec.decode(codec.encode(np.array([1, 1 + 2**-8, 1e30], np.float32), None), out)
    >>> [f"{x:g}" for x in out]
    ['1', '1', '1.00026e+30']
    """

    row = CODECS["bfloat16"]
    parts_of_element = (1, 8, 7)

    def __init__(self, n: int) -> None:
        super().__init__(n, 2 * n)
        self._bits, self._odd = np.empty((2, min(n, BLOCK)), np.uint32)

    def _pack(self, vector: Vector, payload: Bytes, rng: np.random.Generator) -> None:
        given, result = vector.view(np.uint32), payload.view("<u2")
        for at in range(0, self.n, BLOCK):
            block = given[at : at + BLOCK]
            bits, odd = self._bits[: block.size], self._odd[: block.size]
            # Round half to even on the bits: add 0x8000 (half a unit in the last place) where the
            # last bit kept is 1, and 0x7FFF where it is 0, then truncate. A tie so ends at an even
            # last bit. A carry into the exponent is right: the next number up is a power of two,
            # or infinity.
            np.right_shift(block, 16, out=odd)
            np.bitwise_and(odd, 1, out=odd)
            np.add(odd, _HALF, out=odd)
            np.add(block, odd, out=bits)
            np.right_shift(bits, 16, out=bits)
            np.copyto(result[at : at + BLOCK], bits, casting="unsafe")
            # A carry may turn a NaN into a number, even wrap around to 0. The sum of a block is
            # NaN if an element is, so a single pass tells that nothing needs repair. It is also
            # NaN if both infinities occur or partial sums overflow both ways; then no NaN is found.
            with np.errstate(all="ignore"):
                is_odd = np.isnan(np.add.reduce(vector[at : at + BLOCK]))
            if is_odd:
                nan = np.flatnonzero(np.isnan(vector[at : at + BLOCK]))
                result[at + nan] = block[nan] >> 16 & 0x8000 | 0x7FC0  # a quiet NaN of that sign

    def _unpack(self, payload: Bytes, out: Vector) -> None:
        np.copyto(out.view(np.uint32), payload.view("<u2"))
        np.left_shift(out.view(np.uint32), 16, out=out.view(np.uint32))
