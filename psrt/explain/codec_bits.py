"""The fields of a frame, in order: where each lies, its bits, and what it means."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from psrt.arrays import Bytes, Vector
from psrt.codec import CODECS, Matrix
from psrt.codec.frame import HEADER_BYTES, read_header
from psrt.codec.indices import AS_THEY_ARE, DENSE, GAPS, unpack_indices
from psrt.codec.sparse import Chosen, drawn

#: Lengths of the parts of a float32's bits: its sign, exponent and mantissa.
_FLOAT32 = (1, 8, 23)
_HEADER = (
    *(("number of the codec", 1), ("form", 1), ("parameter", 2), ("elements", 4)),
    *(("elements sent", 4), ("bytes of payload", 8)),
)
_CASTS = {"float16": (1, 5, 10), "bfloat16": (1, 8, 7)}
_SMALL_FLOATS = {"float8-e4m3": (1, 4, 3), "float8-e5m2": (1, 5, 2), "float4-e3m0": (1, 3)}
_LEVELS = {"int8": 127, "ternary": 1, "ternary-base3": 1}
_SIGNS = "+-"


class Field(NamedTuple):
    """A part of a frame."""

    #: Its first bit in the frame, counted from the lowest one of each byte, and their number.
    at: int
    size: int
    #: Its bits, the highest one first, in groups.
    bits: str
    meaning: str


def fields(
    codec: str,
    frame: Bytes,
    knobs: Mapping[str, float | None],
    matrices: Sequence[Matrix],
    decoded: Vector,
) -> Iterator[Field]:
    """Yield the header's fields, then the payload's.

    Args:
        codec: its name.
        frame: of the codec.
        knobs: of the codec, all of them.
        matrices: that a codec of matrices was told of.
        decoded: (n,) what the frame decodes to.
    """
    reader = _Reader(frame)
    for name, nbytes in _HEADER:
        yield reader.whole(nbytes, name)
    header = read_header(frame)
    n, sent = header.n, header.sent
    if codec in _CASTS:
        for i in range(n):
            yield reader.take(_CASTS[codec], f"[{i}] {decoded[i]:g}")
    elif codec in _SMALL_FLOATS:
        yield from _small_floats(reader, codec, int(knobs["bucket"] or 0), decoded)
    elif "bucket" in knobs:
        yield from _scaled(reader, codec, knobs, decoded)
    elif codec == "random-k":
        seed = int(frame[HEADER_BYTES:][:8].view("<u8")[0])
        yield reader.whole(8, "seed, from which the indices follow")
        for i in drawn(seed, n, sent).tolist():
            yield reader.take(_FLOAT32, f"[{i}] {decoded[i]:g}")
    elif "rank" in knobs:
        yield from _thin(reader, int(knobs["rank"] or 0), matrices, n)
    elif "chunk" in knobs:
        yield from _chunks(reader, int(knobs["chunk"] or 0), int(knobs["kept"] or 0), n)
    elif isinstance(CODECS[codec].codec(0), Chosen):
        yield from _sparse(reader, header.form, sent, n)
    else:  # of another package
        for i in range(header.nbytes):
            yield reader.take([8], f"byte {i} of the payload")


class _Reader:
    """Takes fields off a frame, one after another."""

    def __init__(self, frame: Bytes) -> None:
        self.data = frame.tobytes()
        self._whole = int.from_bytes(self.data, "little")
        #: Bits that have been taken.
        self.at = 0

    def take(self, groups: Sequence[int], meaning: str) -> Field:
        """Return the next bits, in groups from the highest one on."""
        size = sum(groups)
        text = format(self._whole >> self.at & ((1 << size) - 1), f"0{size}b")
        parts, start = [], 0
        for group in groups:
            parts.append(text[start : start + group])
            start += group
        self.at += size
        return Field(self.at - size, size, " ".join(parts), meaning)

    def peek(self, size: int) -> int:
        """Return the next bits as a whole number."""
        return self._whole >> self.at & ((1 << size) - 1)

    def whole(self, nbytes: int, name: str) -> Field:
        """Return a whole number of so many bytes."""
        return self.take([8] * nbytes, f"{name}: {self.peek(8 * nbytes)}")

    def float32(self) -> float:
        """Return the number that the next 32 bits are."""
        [found] = struct.unpack("<f", struct.pack("<I", self.peek(32)))
        return float(found)

    def scale(self, bucket: int, size: int, n: int) -> Field:
        """Return the float32 scale of a bucket."""
        return self.take(_FLOAT32, f"scale of {_range(bucket, size, n)}: {self.float32():g}")

    def rest(self) -> Iterator[Field]:
        """Yield what fills the last byte up."""
        if self.at % 8:
            yield self.take([8 - self.at % 8], "nothing")


def _range(bucket: int, size: int, n: int) -> str:
    first, last = bucket * size, min(n, bucket * size + size) - 1
    return f"[{first}]" if first == last else f"[{first}..{last}]"


def _small_floats(reader: _Reader, codec: str, bucket: int, decoded: Vector) -> Iterator[Field]:
    n = decoded.size
    for i in range(-(-n // bucket)):
        power = reader.peek(8)
        scale = "not a number" if power == 255 else f"2^{power - 127}"
        yield reader.take([8], f"scale of {_range(i, bucket, n)}: {scale}")
    for i in range(n):
        yield reader.take(_SMALL_FLOATS[codec], f"[{i}] {decoded[i]:g}")
    yield from reader.rest()


def _scaled(
    reader: _Reader, codec: str, knobs: Mapping[str, float | None], decoded: Vector
) -> Iterator[Field]:
    n, bucket = decoded.size, int(knobs["bucket"] or 0)
    for i in range(-(-n // bucket)):
        yield reader.scale(i, bucket, n)
    if codec == "sign":
        for at in range(0, n, 8):
            # The first element is in the highest bit.
            signs = " ".join(_SIGNS[reader.peek(8) >> (7 - i) & 1] for i in range(min(8, n - at)))
            yield reader.take([1] * 8, f"{_range(at // 8, 8, n)} {signs}")
        return
    levels = int(knobs.get("levels") or _LEVELS[codec])
    if codec == "ternary-base3":
        for at in range(0, n, 5):
            byte = reader.peek(8)
            digits = [byte // 3**i % 3 for i in range(min(5, n - at))]
            sums = " + ".join(f"{digit}·{3**i}" for i, digit in enumerate(digits))
            yield reader.take([8], f"{_range(at // 5, 5, n)} {byte} = {sums}, less 1 each")
        return
    bits = (2 * levels).bit_length()
    for i in range(n):
        step = reader.peek(bits) - levels
        yield reader.take([bits], f"[{i}] {step:+d} of {levels}: {decoded[i]:g}")
    yield from reader.rest()


def _sparse(reader: _Reader, form: int, sent: int, n: int) -> Iterator[Field]:
    if form == DENSE:
        for i in range(n):
            yield reader.take(_FLOAT32, f"[{i}] {reader.float32():g}")
        return
    start = HEADER_BYTES + 4 * sent
    packed = np.frombuffer(reader.data[start:], np.uint8)
    indices = unpack_indices(form, packed, sent, n).tolist()
    for i in indices:
        yield reader.take(_FLOAT32, f"value of [{i}]: {reader.float32():g}")
    if form == AS_THEY_ARE:
        for _ in indices:
            yield reader.whole(4, "index")
    elif form == GAPS:
        last = -1
        for i in indices:
            size = 1
            while reader.data[reader.at // 8 + size - 1] & 0x80:
                size += 1
            yield reader.take([1, 7] * size, f"{i - last - 1} between [{last}] and [{i}]")
            last = i
    else:
        for at in range(0, n, 8):
            yield reader.take([1] * 8, f"which of {_range(at // 8, 8, n)}, the first one last")


def _thin(reader: _Reader, rank: int, matrices: Sequence[Matrix], n: int) -> Iterator[Field]:
    rest = n
    for it in matrices:
        if rank * (it.rows + it.columns) < it.rows * it.columns:
            rest -= it.rows * it.columns
            for name, rows in (("P", it.rows), ("Q", it.columns)):
                for row in range(rows):
                    for column in range(rank):
                        meaning = f"{name}[{row}, {column}] {reader.float32():g}"
                        yield reader.take(_FLOAT32, meaning)
    for i in range(n - rest, n):
        yield reader.take(_FLOAT32, f"[{i}] {reader.float32():g}")


def _chunks(reader: _Reader, chunk: int, kept: int, n: int) -> Iterator[Field]:
    whole = n // chunk
    for first, count, size in ((0, whole, chunk), (whole, 1, n % chunk)):
        if not count * size:
            continue
        each = min(kept, size)
        names = [f"chunk {first + i}" for i in range(count) for _ in range(each)]
        what = "element" if each == size else "coefficient"
        for name in names:
            yield reader.take(_FLOAT32, f"{what} of {name}: {reader.float32():g}")
        if each < size:
            for name in names:
                yield reader.whole(2, f"its place in {name}")
