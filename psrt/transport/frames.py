"""How a message lies in memory and on the wire: fixed size, native byte order, no pickle.

Every frame is ``FRAME_BYTES`` long; byte 0 tells the kind, the fields follow from byte 8 on.
Hosts of one job must share a byte order, as MPI's own raw buffers ask.
"""

from __future__ import annotations

import struct

from psrt.errors import ProtocolError
from psrt.messages import Leave, Message, Params, Push, Report

#: Bytes of a frame of the training's own traffic, and what each such message counts for.
FRAME_BYTES = 64

_PUSH = struct.Struct("=B7xqqqqdd")
_PARAMS = struct.Struct("=B7xqqqq")
_LEAVE = struct.Struct("=B7xqq")
_REPORT = struct.Struct("=qqqdqqqqqqddd??")

#: Bytes of a report; reports travel apart and are not counted.
REPORT_BYTES = _REPORT.size

_CODES: dict[type, tuple[int, struct.Struct]] = {
    Push: (1, _PUSH),
    Params: (2, _PARAMS),
    Leave: (3, _LEAVE),
}
Buffer = bytearray | memoryview


def encode(message: Message, buffer: Buffer, offset: int = 0) -> None:
    """Write ``message`` into ``buffer`` at ``offset``."""
    code, layout = _CODES[type(message)]
    layout.pack_into(buffer, offset, code, *message)


def decode(buffer: Buffer, offset: int = 0) -> Message:
    """Read the message at ``offset``.

    >>> buffer = bytearray(FRAME_BYTES)
    >>> encode(Leave(worker=3, clock=7), buffer)
    >>> decode(buffer)
    Leave(worker=3, clock=7)

    Raises:
        ProtocolError: if no kind of message has this code.
    """
    code = buffer[offset]
    if code == 1:
        _, *fields = _PUSH.unpack_from(buffer, offset)
        return Push._make(fields)
    if code == 2:
        _, *fields = _PARAMS.unpack_from(buffer, offset)
        return Params._make(fields)
    if code == 3:
        _, *fields = _LEAVE.unpack_from(buffer, offset)
        return Leave._make(fields)
    raise ProtocolError(f"a frame of kind {code} came, expected 1, 2 or 3")


def encode_report(report: Report) -> bytes:
    """Return ``report`` as ``REPORT_BYTES`` bytes."""
    return _REPORT.pack(*report)


def decode_report(buffer: Buffer | bytes) -> Report:
    """Read a report back."""
    return Report._make(_REPORT.unpack_from(buffer))
