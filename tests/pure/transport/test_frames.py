"""Messages as bytes and back."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.errors import ProtocolError
from psrt.messages import Leave, Mix, Params, Park, Push, Report, Sketch
from psrt.stats import COLUMNS
from psrt.transport.frames import FRAME_BYTES, decode, decode_report, encode, encode_report
from support.cases import each

whole = st.integers(-(2**63), 2**63 - 1)
shard = st.integers(0, 2**31 - 1)
real = st.floats(allow_nan=False)
single = st.floats(allow_nan=False, width=32)
messages = st.one_of(
    st.builds(Push, *[whole] * 4, real, shard),
    st.builds(Params, *[whole] * 4, single, st.integers(-1, 2**31 - 1), single, whole),
    st.builds(Leave, whole, whole, shard, st.booleans()),
    st.builds(Park, whole, whole, whole, shard),
    st.builds(Mix, whole, whole, whole, real, shard),
)
reports = st.builds(
    Report, *[whole] * 3, real, *[whole] * 4, *[real] * 3, whole, real, whole, real, real,
    st.booleans(), st.booleans(), st.tuples(*[whole] * len(COLUMNS)),
)  # fmt: skip


@given(messages, st.integers(0, 40))
def test_a_message_comes_back(message, offset):
    buffer = bytearray(b"\xff" * (offset + FRAME_BYTES))
    encode(message, buffer, offset)
    got = decode(buffer, offset)
    assert got == message
    assert type(got) is type(message)
    assert buffer[:offset] == b"\xff" * offset
    assert buffer[-1] == 0xFF  # the last byte is the transport's


@pytest.mark.skipif(sys.byteorder == "big", reason="frames are in native byte order")
def test_golden_frames():
    assert FRAME_BYTES == 64
    buffer = bytearray(FRAME_BYTES)
    encode(Push(worker=3, clock=258, version=2, samples=32, progress=0.5, shard=5), buffer)
    assert buffer[:56].hex(" ", 8) == (
        "0100000000000000 0300000000000000 0201000000000000 0200000000000000 "
        "2000000000000000 000000000000e03f 0500000000000000"
    )
    encode(Params(shard=1, version=9, clock=4, staleness=7), buffer)
    assert buffer[:40].hex(" ", 8) == (
        "0200000000000000 0100000000000000 0900000000000000 0400000000000000 0700000000000000"
    )
    encode(Mix(worker=1, clock=7, version=3, weight=0.5), buffer)
    assert buffer[:40].hex(" ", 8) == (
        "0400000000000000 0100000000000000 0700000000000000 0300000000000000 000000000000e03f"
    )
    encode(Leave(worker=5, clock=6), buffer)
    assert buffer[:24].hex(" ", 8) == "0300000000000000 0500000000000000 0600000000000000"
    encode(Park(worker=5, clock=6, cut=8), buffer)
    assert buffer[:32].hex(" ", 8) == (
        "0500000000000000 0500000000000000 0600000000000000 0800000000000000"
    )


@each("code", [0, 6, 255])
def test_an_unknown_kind_is_refused(code):
    buffer = bytearray(FRAME_BYTES)
    buffer[0] = code
    with pytest.raises(ProtocolError, match=f"of kind {code} came, expected 1, 2, 3, 4 or 5"):
        decode(buffer)


@given(reports)
def test_a_report_comes_back(report):
    """What was not asked stays nan, and words of any language are themselves."""
    got = decode_report(bytearray(encode_report(report)))
    assert got == report
    assert type(got.epoch_end) is bool
    told = report._replace(test_accuracy=math.nan, figures='{"f1": 0.5, "größe": 1.0}')
    found = decode_report(encode_report(told))
    assert math.isnan(found.test_accuracy)
    assert found.figures == told.figures


@each("numbers", [b"", np.arange(7.0).tobytes()])
def test_a_sketch_comes_back(numbers):
    sketch = Sketch(3, 1 << 40, numbers)
    assert decode_report(bytearray(encode_report(sketch))) == sketch
