"""The format of a compressed vector on the wire: a header of 20 bytes, then the payload.

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

All numbers are little-endian. Nothing in a frame is trusted before it has been checked, and no
memory is allocated by its numbers.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from psrt.core.arrays import Bytes
from psrt.core.errors import CodecError

_LAYOUT = struct.Struct("<BBHIIQ")
HEADER_BYTES = _LAYOUT.size
#: The most elements of a vector.
MOST = 2**32 - 1


class Header(NamedTuple):
    """The fields before a payload."""

    code: int
    form: int
    parameter: int
    #: Elements of the vector, and those that were sent.
    n: int
    sent: int
    #: Bytes of the payload.
    nbytes: int


def write_header(frame: Bytes, header: Header) -> None:
    """Write the first bytes of a frame."""
    _LAYOUT.pack_into(frame.data, 0, *header)


def read_header(frame: Bytes) -> Header:
    """Return the header of a frame.

    Raises:
        CodecError: if the frame has another length than it says, or says that more elements were
            sent than exist.
    """
    if frame.size < HEADER_BYTES:
        raise CodecError(f"a frame of {frame.size} bytes, expected at least {HEADER_BYTES}")
    header = Header(*_LAYOUT.unpack_from(frame.data))
    if header.nbytes != frame.size - HEADER_BYTES:
        raise CodecError(
            f"a frame with {frame.size - HEADER_BYTES} bytes of payload, which says {header.nbytes}"
        )
    if header.sent > header.n:
        raise CodecError(f"a frame with {header.sent} of {header.n} elements")
    return header


def read_length(first: Bytes) -> int:
    """Return the bytes of the frame that begins with ``first``, which may be all of it.

    Raises:
        CodecError: if the header has not arrived yet.
    """
    if first.size < HEADER_BYTES:
        raise CodecError(f"the first {first.size} bytes of a frame, expected {HEADER_BYTES}")
    return HEADER_BYTES + Header(*_LAYOUT.unpack_from(first.data)).nbytes
