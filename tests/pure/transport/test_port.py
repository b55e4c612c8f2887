"""Who is who, the port of a job of one, what may be under way, and messages as bytes and back."""

from __future__ import annotations

import asyncio
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrt.core.errors import ProtocolError
from psrt.core.messages import LATE, Leave, Mix, Params, Park, Push, Relay
from psrt.core.partition import Span, even_spans
from psrt.core.stats import COLUMNS, Report, Sketch
from psrt.transport import CONTROL, RoleMap, SoloPort, drive
from psrt.transport.frames import FRAME_BYTES, decode, decode_report, encode, encode_report
from psrt.transport.port import outliers
from psrt.transport.window import BYTES, SHARDS, Window
from support.cases import each


@each(("servers", "shards", "most"), [
    ((4, 1), [(), (1,), (), (), (0,)], 1),
    ((4, 1, 4), [(), (1,), (), (), (0, 2)], 2),
])  # fmt: skip
def test_workers_and_servers_are_found_by_rank(servers, shards, most):
    spans = even_spans(9, len(servers))
    role_map = RoleMap(9, workers=(0, 2, 3), servers=servers, spans=spans)
    assert [role_map.worker_of(rank) for rank in range(5)] == [0, None, 1, 2, None]
    assert [role_map.shards_of(rank) for rank in range(5)] == shards
    assert (role_map.size, role_map.server_ranks, role_map.most_shards) == (5, (4, 1), most)


class TestSolo:
    def test_work_is_done_on_the_spot(self):
        async def role():
            doubled = await port.compute(np.multiply, port.theta, 2)
            await port.until(lambda: True, lambda: "nothing")
            assert await port.differing(7) == []
            return doubled

        port = SoloPort(3)
        assert (port.theta.shape, port.gradient.shape) == ((3,), (3 + CONTROL,))
        port.theta[:] = 1, 2, 3
        assert drive(role()).tolist() == [2, 4, 6]

    def test_its_sums_are_its_own_numbers(self):
        port, taken = SoloPort(5), []
        port.gradient[:] = range(8)
        whole = port.reduction(Span(0, 8), port.choice("auto", 8)[0], None)
        part = port.reduction(
            Span(1, 4), "ring", lambda span, sums: taken.append((span, sums.tolist()))
        )
        for reduction in (whole, part):
            reduction.begin()
            assert reduction.poll()
            drive(reduction.finish())  # once is enough
        assert port.gradient.tolist() == list(range(8))
        assert taken == [(Span(1, 4), [1.0, 2.0, 3.0])]
        part.begin()
        drive(part.finish())
        assert len(taken) == 2

    @each("talk", [
        lambda port: port.send(1, Leave(0, 0)),
        lambda port: port.payload(0, 0),
        lambda port: port.in_flight(1, 0),
        lambda port: drive(port.receive()),
        lambda port: drive(port.until(lambda: False, lambda: "")),
    ])  # fmt: skip
    def test_there_is_nobody_to_talk_to(self, talk):
        with pytest.raises(ProtocolError, match="no peer to send to"):
            talk(SoloPort(1))

    def test_a_role_that_suspends_is_a_mistake(self):
        role = asyncio.sleep(0)
        with pytest.raises(AssertionError, match="suspended"):
            drive(role)
        role.close()


@each(("numbers", "expected"), [
    ([5], []), ([5, 5, 5], []), ([1, 5, 5], [0]), ([5, 1, 5, 2], [1, 3]), ([1, 2], [1]),
    ([1, 2, 2, 1], [1, 2]), ([1, 2, 3], [1, 2]),
])  # fmt: skip
def test_who_says_something_else_than_most(numbers, expected):
    assert outliers(numbers) == expected


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_those_who_agree_are_all_equal_and_at_least_as_many_as_any(numbers):
    wrong = outliers(numbers)
    usual = {number for i, number in enumerate(numbers) if i not in wrong}
    assert len(usual) == 1
    assert max(numbers.count(number) for number in numbers) == len(numbers) - len(wrong)


def pushes(window, sizes):
    """Push shards of these sizes; return those that have left, a list that grows."""
    left = []
    for shard, nbytes in enumerate(sizes):
        if window.admits(nbytes, lambda shard=shard: left.append(shard)):
            left.append(shard)
    return left


def test_long_shards_wait_for_the_answer_to_the_one_before_the_last():
    window = Window()
    left = pushes(window, [BYTES] * 5)
    assert left == [0, 1]
    window.answered(BYTES)
    assert left == [0, 1, 2]


def test_short_shards_do_not_wait_and_one_long_answer_lets_several_go():
    assert pushes(Window(), [BYTES // 16] * 16) == list(range(16))
    window = Window()
    left = pushes(window, [BYTES, BYTES, 8, 8, 8])
    window.answered(BYTES)
    assert left == [0, 1, 2]
    window.answered(BYTES)
    assert left == [0, 1, 2, 3, 4]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 2 * BYTES)), st.data())
def test_all_leave_in_order_and_never_too_many_at_a_time(sizes, data):
    window, answered = Window(), set()
    left = pushes(window, sizes)
    while len(answered) < len(sizes):
        open_ = [shard for shard in left if shard not in answered]
        assert open_
        assert len(open_) <= SHARDS or sum(sizes[shard] for shard in open_) <= BYTES
        shard = data.draw(st.sampled_from(open_))
        answered.add(shard)
        window.answered(sizes[shard])
        assert left == sorted(left)
    assert left == list(range(len(sizes)))


whole = st.integers(-(2**63), 2**63 - 1)
shard = small = st.integers(0, 2**31 - 1)
real = st.floats(allow_nan=False)
single = st.floats(allow_nan=False, width=32)
messages = st.one_of(
    st.builds(Push, *[whole] * 4, real, shard, small, single),
    st.builds(
        Params, *[whole] * 3, small, single, st.integers(-1, 2**31 - 1), single, whole, small
    ),
    st.builds(Leave, whole, whole, shard, st.booleans()),
    st.builds(Park, whole, whole, whole, shard),
    st.builds(Mix, whole, whole, whole, real, shard),
    st.builds(Relay, whole, whole, whole, st.integers(-1, 2**31 - 1), small, shard),
)
reports = st.builds(
    Report, *[whole] * 3, real, *[whole] * 4, *[real] * 3, whole, real, whole, real, real,
    st.booleans(), st.booleans(), st.tuples(*[whole] * len(COLUMNS)),
)  # fmt: skip


@settings(max_examples=50)
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
    encode(Push(3, 258, 2, samples=32, progress=0.5, shard=5, steps=6, pace=1.5), buffer)
    assert buffer[:60].hex(" ", -8) == (
        "0100000000000000 0300000000000000 0201000000000000 0200000000000000 "
        "2000000000000000 000000000000e03f 0500000006000000 0000c03f"
    )
    encode(Relay(worker=3, clock=258, version=2, cause=1, what=LATE, shard=5), buffer)
    assert buffer[:44].hex(" ", -8) == (
        "0600000000000000 0300000000000000 0201000000000000 0200000000000000 "
        "0100000002000000 05000000"
    )
    encode(Params(shard=1, version=9, clock=4, staleness=7, steps=3), buffer)
    assert buffer[60:63].hex() == "000000"
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


@each("code", [0, 7, 255])
def test_an_unknown_kind_is_refused(code):
    buffer = bytearray(FRAME_BYTES)
    buffer[0] = code
    with pytest.raises(ProtocolError, match=f"of kind {code} came, expected 1, 2, 3, 4, 5 or 6"):
        decode(buffer)


@settings(max_examples=30)
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
