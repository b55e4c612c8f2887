"""What a compressed vector looks like on the wire: a header of 20 bytes, then the payload.

=======  ======  ==========================================================
offset   type    meaning
=======  ======  ==========================================================
0        uint8   number of the codec in the registry
1        uint8   form of the payload, where a codec has several
2        uint16  the codec's parameter: levels, bucket, …, so that both ends agree
4        uint32  elements of the vector
8        uint32  elements that were sent; all of them in a dense codec
12       uint64  bytes of the payload
=======  ======  ==========================================================

All numbers are little-endian. A receiver knows codec, parameter and number of elements beforehand
and checks the header against them, so a damaged frame is refused; it never decides how much memory
is allocated, and no payload is decoded whose length does not match its header.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from psrt.core.arrays import Bytes
from psrt.core.errors import CodecError

# "<" sets little-endian order and no padding: 1 + 1 + 2 + 4 + 4 + 8 bytes. The header is not a
# multiple of 8 bytes long, but one of 4: float32 values behind it are aligned if the frame is.
_LAYOUT = struct.Struct("<BBHIIQ")
HEADER_BYTES = _LAYOUT.size
#: Largest number of elements of a vector: what the header's uint32 holds.
MOST = 2**32 - 1


class Header(NamedTuple):
    """The fields in front of a payload, in the order of the wire."""

    code: int
    form: int
    parameter: int
    #: Elements of the vector, and those that were sent.
    n: int
    sent: int
    #: Bytes of the payload.
    nbytes: int


def write_header(frame: Bytes, header: Header) -> None:
    """Write the header, the first ``HEADER_BYTES`` bytes of a frame."""
    _LAYOUT.pack_into(frame.data, 0, *header)


def read_header(frame: Bytes) -> Header:
    """Return the header of a whole frame, after checking it against the frame's length.

    Raises:
        CodecError: if the frame is shorter or longer than its header says, or the header says
            that more elements were sent than the vector has.
    """
    if frame.size < HEADER_BYTES:
        raise CodecError(f"a frame of {frame.size} bytes, expected at least {HEADER_BYTES}")
    header = Header(*_LAYOUT.unpack_from(frame.data))
    # Both ends of a slice of the payload derive from nbytes and sent; once these two checks hold,
    # a codec only has to compare them with the lengths that it expects.
    if header.nbytes != frame.size - HEADER_BYTES:
        raise CodecError(
            f"a frame with {frame.size - HEADER_BYTES} bytes of payload, expected {header.nbytes}"
        )
    if header.sent > header.n:
        raise CodecError(f"a frame with {header.sent} of {header.n} elements")
    return header


def read_length(first: Bytes) -> int:
    """Return the length in bytes of the frame that begins with ``first``.

    Raises:
        CodecError: if ``first`` is shorter than a header.
    """
    if first.size < HEADER_BYTES:
        raise CodecError(f"the first {first.size} bytes of a frame, expected {HEADER_BYTES}")
    # Not checked against the bytes there are: the rest may not have arrived yet.
    return HEADER_BYTES + Header(*_LAYOUT.unpack_from(first.data)).nbytes
