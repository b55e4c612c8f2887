"""What encoding and decoding take in virtual time, exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.codec import TABLE
from psrt.codec.times import CodecTimes, FrameTimes, Line
from psrt.config import TrainConfig
from psrt.history import Kind, read_history
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts

N = 64
#: Whole numbers and their halves, so that times are exact.
TIMES = CodecTimes(encode=Line(4.0, 0.5), decode=Line(2.0, 0.25))
ENCODE, DECODE = TIMES.encode.at(N), TIMES.decode.at(N)


def seconds(config, workers=1, numerics=False, crashes=(), **costs):
    """Return how long a run takes whose links take no time."""
    asked = {"codecs": {"int8": TIMES}, "compute": lambda *_: 1.0, "latency": lambda _: 0.0}
    more = {} if numerics else {"parameters": N}
    common = {"steps": 1, "batch_size": 1, "codec": "int8"}
    return simulate(
        TrainConfig(**common | config), workers=workers, numerics=numerics, crashes=crashes,
        costs=SimulationCosts(**asked | costs), **more,
    ).seconds  # fmt: skip


@pytest.mark.parametrize(("mode", "workers"), [("sync", 2), ("async", 1), ("ssp", 5)])
def test_workers_encode_at_a_time_and_a_server_decodes_one_by_one(mode, workers):
    config = {"mode": mode, "servers": 1}
    assert seconds(config, workers) == 1 + ENCODE + workers * DECODE
    assert seconds(config | {"codec": None}, workers) == 1
    assert seconds(config, workers, codec_speed=2.0) == 1 + (ENCODE + workers * DECODE) / 2
    assert seconds(config, workers, codec_speed=math.inf) == 1
    assert seconds(config, workers, framed=True) == 1


def test_a_server_decodes_while_the_next_frame_is_on_its_way():
    """Where a frame takes longer than decoding it, only the last one is waited for."""
    config = {"mode": "sync", "servers": 1}
    for workers in (1, 2, 3):
        free = seconds(config, workers, bandwidth=4.0, codec_speed=math.inf)
        assert seconds(config, workers, bandwidth=4.0) == free + ENCODE + DECODE


def test_replies_are_encoded_for_each_worker_or_once_for_all():
    config = {"mode": "sync", "servers": 1, "codec_reply": "int8"}
    times = FrameTimes.of(TIMES, feeds_back=False, reply=TIMES)
    encode, decode = times.encode_reply.at(N), times.decode_reply.at(N)
    assert encode > ENCODE + DECODE  # the server decodes, too, and adds it up
    pushed = 1 + ENCODE + 3 * DECODE
    assert seconds(config, 3) == pytest.approx(pushed + 3 * encode + decode)
    shared = config | {"codec_reply_shared": True}
    assert seconds(shared, 3) == pytest.approx(pushed + encode + decode)
    two = seconds(shared | {"steps": 2}, 3)
    assert two == pytest.approx(2 * (pushed + encode + decode))


@pytest.mark.parametrize(
    ("order", "workers"),
    [("combine-then-adapt", 1), ("adapt-then-combine", 2), ("combine-then-adapt", 5)],
)
def test_what_neighbours_are_told_is_encoded_once_and_decoded_by_each(order, workers):
    """The sender decodes it, too, and all add it up."""
    times = FrameTimes.of(TIMES, feeds_back=False, reply=TIMES)
    encode, decode = times.encode_reply.at(N), times.decode_reply.at(N)
    config = {"mode": "gossip", "topology": "full", "order": order, "steps": 3}
    due = 3 * (1 + encode * (workers > 1) + (workers - 1) * decode)
    assert seconds(config, workers) == pytest.approx(due)
    assert seconds(config, workers, codec_speed=math.inf) == 3


def test_what_is_fed_back_is_decoded_by_its_sender():
    plain = FrameTimes.of(TIMES, feeds_back=False).encode.at(N)
    fed_back = FrameTimes.of(TIMES, feeds_back=True).encode.at(N)
    assert plain == ENCODE
    assert ENCODE + DECODE < fed_back < ENCODE + DECODE + 1e-4
    config = {"mode": "async", "codec": "sign"}
    there = {"codecs": {"sign": TIMES}}
    without = config | {"error_feedback": False}
    assert seconds(without, **there) == 1 + ENCODE + DECODE
    assert seconds(config, **there) == pytest.approx(1 + fed_back + DECODE)


@pytest.mark.parametrize("numerics", [True, False])
def test_two_phases_of_a_sum(numerics):
    """Both chunks, one by one; both contributions to the own one; its mean; and both means."""
    model = {"dataset": "synthetic:64x20x3", "hidden": ()} if numerics else {}
    n = 63 if numerics else N
    times = CodecTimes(Line(0.0, 0.5), Line(0.0, 0.25))
    spent = seconds(
        {"mode": "allreduce", "allreduce": "all-pairs", "overlap": False} | model,
        2,
        numerics,
        codecs={"int8": times},
    )
    own = (n + 1) // 2  # the larger chunk's owner is done last
    first = 0.5 * n + 0.25 * 2 * own + 0.5 * own
    assert spent == 1 + first + 0.25 * n


def test_what_is_pushed_amid_a_gradient_holds_it_up():
    """Each shard is encoded when its layer is there; then the gradient goes on."""
    config = {
        "mode": "async", "servers": 1, "shards_per_server": 2, "hidden": (3,),
        "dataset": "synthetic:64x5x3",
    }  # fmt: skip
    times = CodecTimes(Line(0.0, 2.0), Line(0.0, 0.0))
    free = seconds(config, numerics=True, codec_speed=math.inf)
    assert free == 1
    assert seconds(config, numerics=True, codecs={"int8": times}) == 1 + 2.0 * (5 * 3 + 3 + 12)


def test_who_dies_while_it_encodes_has_sent():
    config = {"mode": "async", "servers": 1, "steps": 3}
    at = 1 + ENCODE / 2
    assert seconds(config, 2, crashes=((1, at),)) > at


def test_every_codec_has_its_times():
    for name in TABLE:
        times = CodecTimes.of(name)
        for line in (times.encode, times.decode):
            assert 0 < line.call < 1e-4, name
            assert 0 < line.element < 2e-8, name


def test_events_have_the_time_at_which_their_rank_got_there(tmp_path):
    config = {"mode": "async", "record": True, "out": str(tmp_path / "run"), "steps": 2}
    assert seconds(config) == 2 * (1 + ENCODE + DECODE)
    history = read_history(tmp_path / "run")
    [worker], [shard] = history.workers, history.shards
    pushed = worker["time"][worker["kind"] == Kind.PUSH]
    received = shard["time"][shard["kind"] == Kind.RECEIVE]
    whole = 1 + ENCODE + DECODE
    np.testing.assert_array_equal(pushed, [1, 1 + whole])
    np.testing.assert_array_equal(received[:2], [whole, 2 * whole])
