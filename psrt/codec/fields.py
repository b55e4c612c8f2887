"""The fields of a frame in order, for display: the position of each, its bits, and its meaning."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from psrt.core.arrays import Bytes

#: Bits of a float32's sign, exponent and mantissa.
FLOAT32 = (1, 8, 23)
_HEADER = (
    *(("number of the codec", 1), ("form", 1), ("parameter", 2), ("elements", 4)),
    *(("elements sent", 4), ("bytes of payload", 8)),
)


class Field(NamedTuple):
    """One field of a frame."""

    #: Its first bit in the frame, counted from the lowest bit of each byte, and its length in bits.
    at: int
    size: int
    #: Its bits, the highest first, in groups separated by spaces.
    bits: str
    meaning: str


class FieldReader:
    """Reads fields of a frame, one after another."""

    def __init__(self, frame: Bytes) -> None:
        self.data = frame.tobytes()
        # The frame as one integer: as packed numbers begin in the lowest bits, any field is a shift
        # and a mask, also one that spans bytes.
        self._whole = int.from_bytes(self.data, "little")
        #: Bits that have been read.
        self.at = 0

    def header(self) -> Iterator[Field]:
        """Yield the fields of the header, after which the payload begins."""
        for name, nbytes in _HEADER:
            yield self.whole(nbytes, name)

    def take(self, groups: Sequence[int], meaning: str) -> Field:
        """Read a field whose bits are shown in groups of these lengths, from the highest on."""
        size = sum(groups)
        text = format(self._whole >> self.at & ((1 << size) - 1), f"0{size}b")
        parts, start = [], 0
        for group in groups:
            parts.append(text[start : start + group])
            start += group
        self.at += size
        return Field(self.at - size, size, " ".join(filter(None, parts)), meaning)

    def peek(self, size: int) -> int:
        """Return the next bits as an integer, without reading them."""
        return self._whole >> self.at & ((1 << size) - 1)

    def whole(self, nbytes: int, name: str) -> Field:
        """Read an integer of ``nbytes`` bytes."""
        return self.take([8] * nbytes, f"{name}: {self.peek(8 * nbytes)}")

    def float32(self, name: str) -> Field:
        """Read a float32; its value follows ``name`` in the meaning."""
        [found] = struct.unpack("<f", struct.pack("<I", self.peek(32)))
        return self.take(FLOAT32, f"{name} {float(found):g}")

    def rest(self) -> Iterator[Field]:
        """Yield the padding of the last byte, if any."""
        if self.at % 8:
            yield self.take([8 - self.at % 8], "padding")


def elements(group: int, size: int, n: int) -> str:
    """Return the indices of a group of ``size`` out of n elements, for display.

    >>> elements(1, 4, 10), elements(2, 4, 9)
    ('[4..7]', '[8]')
    """
    first, last = group * size, min(n, group * size + size) - 1
    return f"[{first}]" if first == last else f"[{first}..{last}]"
