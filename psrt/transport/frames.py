"""The layout of a message in memory and on the wire: fixed size, native byte order, no pickle.

Every frame is ``FRAME_BYTES`` long; byte 0 is the kind, the fields start at byte 8. All hosts of a
job must have the same byte order, as MPI's raw buffers require, too.
"""

from __future__ import annotations

import struct
from typing import get_type_hints

from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Message, Mix, Params, Park, Push, Relay
from psrt.core.stats import COLUMNS, Evaluated, Report, Sent, Sketch

#: Bytes of a frame of training traffic, and of each such message in the byte counters.
FRAME_BYTES = 64

# "=": the byte order of the host, but standard sizes without padding, which no compiler chooses.
# The last byte, and the seven behind the kind, have no fields: a link writes there what follows the
# message (``psrt.mpi.links.remote``).
_PUSH, _PARAMS, _LEAVE, _MIX, _PARK, _RELAY = 1, 2, 3, 4, 5, 6
_WRITE_PUSH, _READ_PUSH = struct.Struct("=B7xqqqqdiif"), struct.Struct("=8xqqqqdiif")
_WRITE_PARAMS, _READ_PARAMS = struct.Struct("=B7xqqqififqi"), struct.Struct("=8xqqqififqi")
_WRITE_LEAVE, _READ_LEAVE = struct.Struct("=B7xqqi?"), struct.Struct("=8xqqi?")
_WRITE_MIX, _READ_MIX = struct.Struct("=B7xqqqdi"), struct.Struct("=8xqqqdi")
_WRITE_PARK, _READ_PARK = struct.Struct("=B7xqqqi"), struct.Struct("=8xqqqi")
_WRITE_RELAY, _READ_RELAY = struct.Struct("=B7xqqqiii"), struct.Struct("=8xqqqiii")
#: A report's fields by their declared types, and the columns at its end by the types of their
#: initial values, so a new field needs no line here.
_CODES = {int: "q", float: "d", bool: "?"}
*_TYPES, _, _ = get_type_hints(Report).values()
_TYPES += [type(column.default) for column in COLUMNS.values()]
_REPORT = struct.Struct("=B7x" + "".join(map(_CODES.__getitem__, _TYPES)))
#: Fields of a report before its columns.
_FIELDS = len(Report._fields) - 2

_SKETCH = struct.Struct("=B7xqq")
_IS_REPORT, _IS_SKETCH, _IS_EVALUATED = 1, 2, 3

Buffer = bytearray | memoryview
#: Makes a named tuple from a tuple of its fields in half the time of ``_make``.
_new = tuple.__new__


def encode(message: Message, buffer: Buffer, offset: int = 0) -> None:
    """Write ``message`` into ``buffer`` at ``offset``, in at most ``FRAME_BYTES`` bytes.

    Args:
        message: the message to send.
        buffer: writable bytes.
        offset: of the frame's first byte.
    """
    # Pushes and parameters first: they are nearly all that is sent.
    kind = type(message)
    if kind is Push:
        _WRITE_PUSH.pack_into(buffer, offset, _PUSH, *message)
    elif kind is Params:
        _WRITE_PARAMS.pack_into(buffer, offset, _PARAMS, *message)
    elif kind is Mix:
        _WRITE_MIX.pack_into(buffer, offset, _MIX, *message)
    elif kind is Park:
        _WRITE_PARK.pack_into(buffer, offset, _PARK, *message)
    elif kind is Relay:
        _WRITE_RELAY.pack_into(buffer, offset, _RELAY, *message)
    else:
        _WRITE_LEAVE.pack_into(buffer, offset, _LEAVE, *message)


def decode(buffer: Buffer, offset: int = 0) -> Message:
    """Read the message at ``offset``.

    >>> buffer = bytearray(FRAME_BYTES)
    >>> encode(Leave(worker=3, clock=7, shard=1), buffer)
    >>> decode(buffer)
    Leave(worker=3, clock=7, shard=1, missed=False)

    Raises:
        ProtocolError: if the kind is unknown.
    """
    # ``unpack_from`` copies: the caller may let the bytes be overwritten once this has returned.
    code = buffer[offset]
    if code == _PUSH:
        return _new(Push, _READ_PUSH.unpack_from(buffer, offset))
    if code == _PARAMS:
        return _new(Params, _READ_PARAMS.unpack_from(buffer, offset))
    if code == _MIX:
        return _new(Mix, _READ_MIX.unpack_from(buffer, offset))
    if code == _LEAVE:
        return _new(Leave, _READ_LEAVE.unpack_from(buffer, offset))
    if code == _PARK:
        return _new(Park, _READ_PARK.unpack_from(buffer, offset))
    if code == _RELAY:
        return _new(Relay, _READ_RELAY.unpack_from(buffer, offset))
    raise ProtocolError(f"a frame of kind {code} came, expected 1, 2, 3, 4, 5 or 6")


def encode_report(report: Sent) -> bytes:
    """Return a report as bytes; it goes to rank 0 outside of the counted training traffic."""
    if isinstance(report, Sketch):
        return _SKETCH.pack(_IS_SKETCH, report.worker, report.clock) + report.numbers
    if isinstance(report, Evaluated):
        return bytes([_IS_EVALUATED]) + report.data
    # Columns without names: all ranks run the same version of psrt, which was checked at the start.
    head = _REPORT.pack(_IS_REPORT, *report[:_FIELDS], *report.columns)
    return head + report.figures.encode() if report.figures else head


def decode_report(buffer: Buffer | bytes) -> Sent:
    """Read what ``encode_report`` wrote."""
    if buffer[0] == _IS_SKETCH:
        _, worker, clock = _SKETCH.unpack_from(buffer)
        return Sketch(worker, clock, bytes(buffer[_SKETCH.size :]))
    if buffer[0] == _IS_EVALUATED:
        return Evaluated(bytes(memoryview(buffer)[1:]))
    # The text at the end has no length field: it is the rest of the message.
    _, *values = _REPORT.unpack_from(buffer)
    figures = bytes(buffer[_REPORT.size :]).decode()
    return Report._make((*values[:_FIELDS], tuple(values[_FIELDS:]), figures))
