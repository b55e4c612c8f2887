"""Pushes by a codec, in every mode with servers: in virtual time, recorded, checked, repeated."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from psrt.codec import TABLE, Codec, ErrorFeedback, Matrix
from psrt.codec.frame import HEADER_BYTES
from psrt.config import TrainConfig
from psrt.errors import CodecError, ConfigError
from psrt.history import Kind, read_history
from psrt.history.check import check
from psrt.history.check.frames import payload_bounds
from psrt.history.check.run import check_run
from psrt.job.codecs import JobCodec
from psrt.job.virtual import simulate
from psrt.messages import Push
from psrt.partition import Span
from psrt.runtime.checksum import digest
from psrt.runtime.push_codec import PushDecoder, PushEncoder
from psrt.runtime.reply_codec import ReplyDecoder
from psrt.simulation import SimulationCosts
from psrt.transport.frames import FRAME_BYTES
from support.cases import pairs
from support.histories import altered, codec_knobs

#: A little model whose weights low rank makes shorter; the last batch of an epoch is smaller.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16,), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "servers": 2,
}  # fmt: skip
#: The modes with servers, with what makes them more than async.
SERVED = {
    "sync": {"mode": "sync"},
    "backup": {"mode": "sync", "backup": 1},
    "async": {"mode": "async"},
    "ssp": {"mode": "ssp", "staleness": 1},
    "softsync": {"mode": "softsync", "softsync": 2},
}
#: Codecs take none, so the order of events is that without.
NO_TIME = SimulationCosts(codec_speed=math.inf)
EVERY_CODEC = pytest.mark.parametrize("codec", TABLE)
EVERY_MODE = pytest.mark.parametrize("mode", SERVED)


def config_of(mode, codec=None, **more):
    rule = {"optimizer": "sign-sgd"} if codec == "demo" else {}
    return TrainConfig(**KNOBS | SERVED[mode] | codec_knobs(codec) | rule | more)


def replayed(config):
    """Repeat a recorded run, with other delays."""
    again = replace(config, replay=config.out, out=None, record=False)
    return simulate(again, workers=3, seed=99)


@pytest.mark.parametrize(("mode", "codec"), pairs(SERVED, TABLE, one_in=4))
@pytest.mark.one_in(3)
def test_what_is_sent_is_what_the_formula_says(tmp_path, mode, codec):
    """Counted at the send, recorded, checked against the formula, and repeated to the bit."""
    out = tmp_path / "run"
    config = config_of(mode, codec, shards_per_server=2, record=True, out=str(out))
    run = simulate(config, workers=3)
    outcome = check_run(out)
    assert outcome.ok, "\n".join(outcome.lines())
    history, spans = read_history(out), run.world.role_map.spans
    frames, messages, dense = 0, 0, 0
    for events in history.workers:
        sent = events[events["kind"] == Kind.ENCODE]
        assert len(sent) == np.count_nonzero(
            (events["kind"] == Kind.PUSH) & (events["samples"] > 0)
        )
        frames += int(sent["samples"].sum())
    for span, events in zip(spans, history.shards, strict=True):
        replies = np.count_nonzero(events["kind"] == Kind.REPLY)
        heard = np.isin(events["kind"], (Kind.RECEIVE, Kind.LEFT))
        messages += np.count_nonzero(heard) + replies
        dense += 4 * span.size * replies
    assert run.summary.frame_bytes == frames
    assert run.summary.bytes_sent == run.summary.bytes_received
    assert run.summary.bytes_sent == FRAME_BYTES * messages + frames + dense
    assert replayed(config).summary.parameters_sha256 == run.summary.parameters_sha256


@pytest.mark.parametrize(
    ("codec", "knob"), [("threshold", "codec_threshold"), ("dgc", "codec_clip_norm")]
)
def test_the_largest_knob_is_one_of_a_history(tmp_path, codec, knob):
    config = config_of("sync", codec, record=True, out=str(tmp_path / "run"), **{knob: 1e30})
    simulate(config, workers=2)
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())


@EVERY_CODEC
def test_without_numbers_the_same_bytes_are_sent_or_the_most(codec):
    whole = simulate(config_of("sync", codec), workers=3).summary
    bare = simulate(config_of("sync", codec), workers=3, numerics=False).summary
    assert bare.framed_bytes == whole.framed_bytes
    if codec in ("top-k", "threshold", "dgc", "nonzero"):
        assert bare.frame_bytes >= whole.frame_bytes
    else:
        assert (bare.frame_bytes, bare.bytes_sent) == (whole.frame_bytes, whole.bytes_sent)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 129, 1000, 100_000])
@EVERY_CODEC
def test_the_checker_has_the_formula_of_every_codec(codec, n):
    knobs = dict(TABLE[codec].knobs)
    rows = min(40, n // 50)
    matrices = [(n // 4, rows, 30)] if rows else []
    push_codec = JobCodec(codec, knobs, matrices=[Matrix(*it) for it in matrices])
    encoder = PushEncoder([push_codec.sender(Span(0, n))], seed=1, worker=0)
    rng = np.random.default_rng(3)
    for clock in range(3):
        push = Push(0, clock, 0, 1, float(clock))
        frame = encoder.encode(push, rng.standard_normal(n).astype(np.float32))
        low, high = payload_bounds(codec, knobs, n, clock, matrices)
        assert HEADER_BYTES + low <= frame.size <= HEADER_BYTES + high
        assert low == high or codec in ("top-k", "threshold", "dgc", "nonzero")


# --- replies ------------------------------------------------------------------------------------

REPLIES = [row.name for row in TABLE.values() if row.sends_differences]


@pytest.mark.parametrize(("mode", "codec"), pairs(SERVED, REPLIES, one_in=4))
@pytest.mark.one_in(3)
def test_replies_are_counted_checked_and_repeated(tmp_path, mode, codec):
    out = tmp_path / "run"
    more = {"shards_per_server": 2, "record": True, "out": str(out), "codec_reply": codec}
    config = config_of(mode, "sign", **more)
    run = simulate(config, workers=3)
    outcome = check_run(out)
    assert outcome.ok, "\n".join(outcome.lines())
    history = read_history(out)
    replies = [events[events["kind"] == Kind.REPLY_ENCODE] for events in history.shards]
    pushes = [events[events["kind"] == Kind.ENCODE] for events in history.workers]
    frames = sum(int(events["samples"].sum()) for events in (*replies, *pushes))
    answers = sum(np.count_nonzero(events["kind"] == Kind.REPLY) for events in history.shards)
    heard = sum(
        np.count_nonzero(np.isin(events["kind"], (Kind.RECEIVE, Kind.LEFT)))
        for events in history.shards
    )
    assert run.summary.frame_bytes == frames
    assert run.summary.bytes_sent == FRAME_BYTES * (answers + heard) + frames
    assert replayed(config).summary.parameters_sha256 == run.summary.parameters_sha256


@pytest.mark.parametrize("bucket", [None, 64])
def test_a_knob_holds_for_pushes_and_replies(tmp_path, bucket):
    """The header says what each codec had, and the checker believes nothing else."""
    out = tmp_path / "run"
    more = {"codec_reply": "float8-e4m3", "codec_bucket": bucket, "record": True, "out": str(out)}
    config = config_of("async", "sign", servers=1, **more)
    run = simulate(config, workers=3)
    history = read_history(out)
    assert check(history).ok
    knobs = history.header.codec_knobs["bucket"], history.header.reply_knobs["bucket"]
    assert knobs == ((1024, 128) if bucket is None else (bucket, bucket))
    [shard], n = history.shards, run.world.role_map.n
    for kind, expected in (
        (Kind.DECODE, 4 * -(-n // knobs[0]) + -(-n // 8)),
        (Kind.REPLY_ENCODE, -(-n // knobs[1]) + n),
    ):
        assert set(shard["samples"][shard["kind"] == kind]) == {HEADER_BYTES + expected}
    assert replayed(config).summary.parameters_sha256 == run.summary.parameters_sha256
    other = replace(history, header=replace(history.header, reply_knobs={"bucket": 32}))
    if bucket is None:
        assert check(other).violation.text.endswith("float8-e4m3 makes 305 to 305")
    else:
        with pytest.raises(ConfigError, match="with bucket 32, its config 64"):
            check(other)
    with pytest.raises(ConfigError, match="codec float8-e4m3 with bucket None, its config"):
        check(replace(history, header=replace(history.header, reply_knobs={})))


@EVERY_MODE
@pytest.mark.parametrize("codec", ["sign", "top-k", "low-rank"])
def test_a_server_knows_to_the_bit_what_each_worker_holds(mode, codec):
    run = simulate(config_of(mode, "sign", codec_reply=codec, shards_per_server=2), workers=3)
    for server in run.servers:
        span = run.world.role_map.spans[server.number]
        for number, worker in enumerate(run.workers):
            held = server._replies.held[number]
            np.testing.assert_array_equal(held, span.of(worker._port.theta))
        assert np.abs(server.shard.theta - server._replies.held[0]).max() < 1.0


@pytest.mark.parametrize("codec", REPLIES)
def test_one_frame_may_serve_all_workers(tmp_path, codec, monkeypatch):
    """Without random numbers, which are drawn by worker, it is that of each by itself."""
    made = []
    encode = Codec.encode
    monkeypatch.setattr(Codec, "encode", lambda *args: made.append(0) or encode(*args))
    apart = config_of("sync", "float16", codec_reply=codec)
    out = tmp_path / "run"
    shared = replace(apart, codec_reply_shared=True, record=True, out=str(out))
    run, encoded = simulate(shared, workers=3), len(made)
    other = simulate(apart, workers=3)
    pushes = 3 * run.summary.updates * 2
    assert encoded == pushes + (len(made) - encoded - pushes) // 3
    assert run.summary.frame_bytes == other.summary.frame_bytes or codec in ("top-k", "threshold")
    if codec not in ("int8", "qsgd", "random-k"):
        np.testing.assert_array_equal(run.theta, other.theta)
    for worker in run.workers:
        np.testing.assert_array_equal(worker._port.theta, run.workers[0]._port.theta)
    check(read_history(out))
    np.testing.assert_array_equal(replayed(shared).theta, run.theta)


def test_one_frame_for_all_is_where_all_read_every_version():
    asked = {"codec_reply": "sign", "codec_reply_shared": True}
    for mode in ("async", "ssp", "softsync"):
        with pytest.raises(
            ConfigError, match=f"all read every version, as in sync, got --mode {mode}"
        ):
            config_of(mode, "sign", **asked)
    with pytest.raises(ConfigError, match="all read every version, as in sync, got --backup 1"):
        config_of("backup", "sign", **asked)
    with pytest.raises(ConfigError, match="--codec-reply-shared has no effect without ") as refused:
        config_of("sync", "sign", codec_reply_shared=True)
    assert "ternary" not in str(refused.value)  # it is for pushes only


@EVERY_MODE
def test_replies_that_lose_nothing_leave_but_rounding(mode):
    """A difference is rounded, and so is its sum: equal but for that."""
    plain = simulate(config_of(mode), workers=3)
    codecs = {"codec_density": 1.0, "codec_reply": "top-k"}
    framed = simulate(config_of(mode, "top-k", **codecs), workers=3, costs=NO_TIME)
    np.testing.assert_allclose(framed.theta, plain.theta, atol=1e-4)


@pytest.mark.parametrize("codec", REPLIES)
def test_without_numbers_replies_have_the_same_bytes_or_the_most(codec):
    config = config_of("sync", "sign", codec_reply=codec)
    whole = simulate(config, workers=3).summary
    bare = simulate(config, workers=3, numerics=False).summary
    if codec in ("top-k", "threshold"):
        assert bare.frame_bytes >= whole.frame_bytes
    else:
        assert (bare.frame_bytes, bare.bytes_sent) == (whole.frame_bytes, whole.bytes_sent)


@pytest.mark.parametrize("codec", [name for name in TABLE if name not in REPLIES])
def test_what_keeps_back_by_itself_or_loses_too_much_sends_no_differences(codec):
    with pytest.raises(ConfigError, match="codec-reply must be one of"):
        config_of("async", "sign", codec_reply=codec)


def test_replies_by_a_codec_need_one_of_pushes():
    with pytest.raises(ConfigError, match="--codec-reply sign has no effect without --codec"):
        config_of("async", codec_reply="sign")


def test_a_worker_that_adds_up_something_else(tmp_path, monkeypatch):
    read = ReplyDecoder.read

    def wrong(self, reply):
        read(self, reply)
        self._spans[reply.shard][0] += 1e-3

    monkeypatch.setattr(ReplyDecoder, "read", wrong)
    out = tmp_path / "run"
    config = config_of("async", "sign", codec_reply="sign", record=True, out=str(out))
    simulate(config, workers=3)
    violation = check_run(out).violation
    assert violation.rule == "frames"
    assert "came to other numbers" in violation.text


# --- equivalences -------------------------------------------------------------------------------


@EVERY_MODE
@pytest.mark.parametrize("each", [1, 2])
def test_all_elements_of_top_k_are_what_is_sent_without_a_codec(mode, each):
    """Lossless is none, to the bit; and nothing is kept back."""
    more = {"shards_per_server": each}
    plain = simulate(config_of(mode, **more), workers=3)
    whole = config_of(mode, "top-k", codec_density=1.0, **more)
    framed = simulate(whole, workers=3, costs=NO_TIME)
    np.testing.assert_array_equal(framed.theta, plain.theta)
    assert framed.summary.staleness == plain.summary.staleness
    for worker in framed.workers:
        senders = worker.strategy._encoder._senders
        assert all(not sender.residual.any() for sender in senders)


@EVERY_MODE
def test_demo_that_sends_everything_is_signed_descent(mode):
    """For one worker. Some chunks have fewer elements than are sent of a chunk, others as many."""
    whole = {"optimizer": "demo", "codec": "demo", "codec_chunk": 8, "codec_kept": 64}
    signed = {"optimizer": "sign-sgd"}
    one = {"backup": {"backup": 0}, "softsync": {"softsync": 1}}.get(mode, {})
    thetas = [
        simulate(config_of(mode, lr=0.01, **one, **more), workers=1).theta
        for more in (whole, signed)
    ]
    np.testing.assert_array_equal(*thetas)


@EVERY_MODE
def test_demo_is_an_optimizer_that_brings_its_codec(mode):
    whole = simulate(config_of(mode, optimizer="demo", lr=0.01), workers=3)
    apart = simulate(config_of(mode, "demo", codec_chunk=64, codec_kept=32, lr=0.01), workers=3)
    np.testing.assert_array_equal(whole.theta, apart.theta)
    assert whole.summary.bytes_sent == apart.summary.bytes_sent


@EVERY_CODEC
def test_the_sum_of_what_is_decoded_and_kept_back_is_what_was_given(codec):
    """p = C(p) + e, so Σ of all gradients = Σ of all that was decoded + the last e."""
    if TABLE[codec].feeds_back is None:
        pytest.skip("it keeps a momentum, not what it lost")
    n, rng = 1000, np.random.default_rng(5)
    knobs = dict(TABLE[codec].knobs) | ({"scaled": False} if codec == "random-k" else {})
    push_codec = JobCodec(codec, knobs, error_feedback=True)
    sender, receiver = push_codec.sender(Span(0, n)), push_codec.codec(Span(0, n))
    encoder = PushEncoder([sender], seed=1, worker=0)
    given, got, out = np.zeros(n), np.zeros(n), np.empty(n, np.float32)
    for clock in range(20):
        gradient = rng.standard_normal(n).astype(np.float32)
        frame = encoder.encode(Push(0, clock, 0, 1, 0.0), gradient)
        receiver.decode(frame, out)
        given, got = given + gradient, got + out
    np.testing.assert_allclose(got + sender.residual, given, atol=1e-4)


def test_gradients_are_clipped_before_they_are_encoded():
    sent = []

    class Spy(PushEncoder):
        def encode(self, push, gradient):
            sent.append(float(np.linalg.norm(gradient)))
            return super().encode(push, gradient)

    knobs = config_of("async", "sign", servers=1, clip_norm=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("psrt.job.codecs.PushEncoder", Spy)
        simulate(knobs, workers=2)
    assert sent
    assert max(sent) <= 0.01 * (1 + 1e-5)


def test_a_simulation_of_a_run_on_one_host_sends_as_it_did():
    """As by the config of a recorded run in which the codec was not in effect."""
    said = []
    config = config_of("async", "sign", codec_everywhere=False)
    run = simulate(config, workers=3, say=said.append)
    assert run.summary.frame_bytes == 0
    assert any("--codec sign has no effect on one host" in line for line in said)
    np.testing.assert_array_equal(run.theta, simulate(config_of("async"), workers=3).theta)


# --- broken, it must be seen --------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The history of a run, to be broken in copies."""
    out = tmp_path_factory.mktemp("good") / "run"
    config = config_of("async", "sign", codec_reply="sign", record=True, out=str(out))
    simulate(config, workers=3)
    history = read_history(out)
    assert check(history).ok
    return history


@pytest.mark.parametrize(
    "which", [Kind.ENCODE, Kind.DECODE, Kind.RESIDUAL, Kind.REPLY_ENCODE, Kind.REPLY_DECODE]
)
@pytest.mark.parametrize("field", ["version", "samples", "worker", "clock", "gone", "twice"])
def test_a_history_whose_frames_contradict_each_other(good, which, field):
    workers, shards = list(good.workers), list(good.shards)
    parts = shards if which in (Kind.DECODE, Kind.REPLY_ENCODE) else workers
    if field == "samples" and which == Kind.RESIDUAL:
        pytest.skip("it has none")
    at = int(np.flatnonzero(parts[1]["kind"] == which)[5])
    parts[1] = altered(parts[1], at, field)
    outcome = check(replace(good, workers=tuple(workers), shards=tuple(shards)))
    assert not outcome.ok


#: What a sender with error feedback may do wrong, of which its digests tell nothing: what is to be
#: sent, and what is kept back of it, by v, e, what is decoded, and what was kept back elsewhere.
WRONG = {
    "dropped": lambda v, e, other: v,
    "doubled": lambda v, e, other: v + 2 * e,
    "of the other sign": lambda v, e, other: v - e,
    "of another shard": lambda v, e, other: v + other,
    "a part of it": lambda v, e, other: v + np.float32(0.999) * e,
    "twice the gradient": lambda v, e, other: 2 * v + e,
}
WRONGLY_KEPT = {
    "of the other sign": lambda p, c, e: c - p,
    "all of it": lambda p, c, e: p,
    "nothing": lambda p, c, e: np.zeros_like(p),
    "what was there": lambda p, c, e: e,
    "but for one": lambda p, c, e: np.where(np.arange(p.size) == np.abs(p - c).argmax(), 0, p - c),
}


@pytest.mark.parametrize("wrong", [*WRONG, *(f"kept: {it}" for it in WRONGLY_KEPT), "not at all"])
@pytest.mark.parametrize("codec", ["sign", "low-rank"])
def test_error_feedback_that_is_wrong(tmp_path, monkeypatch, codec, wrong):
    right, others = ErrorFeedback.encode, {}

    def encode(self, vector, rng):
        before = self.residual.copy()
        other = others.get(self.n, before) * np.float32(0.5)
        others[self.n] = before
        given = WRONG[wrong](vector, before, other) - before if wrong in WRONG else vector
        frame = right(self, given, rng)
        if kept := WRONGLY_KEPT.get(wrong.removeprefix("kept: ")):
            self.residual[:] = kept(given + before, self.decoded, before)
        return frame

    monkeypatch.setattr(ErrorFeedback, "encode", encode)
    out = tmp_path / "run"
    simulate(config_of("async", codec, record=True, out=str(out)), workers=3)
    outcome = check_run(out)
    if wrong == "not at all":
        assert outcome.ok, "\n".join(outcome.lines())
        return
    assert outcome.violation.rule == "residuals"
    assert "sent and keeps back at clock" in outcome.violation.text


@pytest.mark.parametrize("field", ["rate", "gap", "weight", "seconds"])
def test_sums_of_what_is_kept_back_are_believed_together_only(tmp_path, field):
    out = tmp_path / "run"
    simulate(config_of("async", "sign", record=True, out=str(out)), workers=3)
    history = read_history(out)
    workers = list(history.workers)
    at = int(np.flatnonzero(workers[1]["kind"] == Kind.RESIDUAL)[5])
    workers[1] = altered(workers[1], at, field)
    outcome = check(replace(history, workers=tuple(workers)))
    assert outcome.ok == (field == "seconds")  # a bound, which may be larger


def test_frames_of_a_run_that_has_no_codec(tmp_path):
    out = tmp_path / "run"
    simulate(config_of("async", "sign", record=True, out=str(out)), workers=3)
    history = read_history(out)
    header = replace(history.header, config=history.header.config | {"codec": None})
    outcome = check(replace(history, header=header))
    assert outcome.violation.rule == "frames"
    assert "in a run without a codec" in outcome.violation.text


def test_what_is_kept_back_and_forgotten(tmp_path, monkeypatch):
    encode = PushEncoder.encode

    def forgetful(self, push, gradient):
        residual = self._senders[push.shard].residual
        residual.fill(0)
        self._kept[push.shard] = digest(residual)
        return encode(self, push, gradient)

    monkeypatch.setattr(PushEncoder, "encode", forgetful)
    out = tmp_path / "run"
    simulate(config_of("async", "sign", record=True, out=str(out)), workers=3)
    assert check_run(out).violation.rule == "residuals"


def test_a_server_that_decodes_otherwise(tmp_path, monkeypatch):
    decode = PushDecoder.decode

    def wrong(self, push):
        decode(self, push)
        self.gradient(push.worker)[0] += 1

    monkeypatch.setattr(PushDecoder, "decode", wrong)
    out = tmp_path / "run"
    simulate(config_of("async", "sign", record=True, out=str(out)), workers=3)
    violation = check_run(out).violation
    assert violation.rule == "frames"
    assert "came to other numbers" in violation.text


def test_a_frame_of_another_length(tmp_path):
    """As by a header that says another bucket: the frames are not as long as it makes them."""
    out = tmp_path / "run"
    simulate(config_of("async", "sign", record=True, out=str(out)), workers=3)
    history = read_history(out)
    config = history.header.config | {"codec_bucket": 8}
    header = replace(history.header, config=config, codec_knobs={"bucket": 8})
    violation = check(replace(history, header=header)).violation
    assert violation.rule == "frames"
    assert "sign makes" in violation.text


def test_a_frame_that_is_damaged_on_its_way_ends_the_run(monkeypatch):
    encode = PushEncoder.encode

    def damaged(self, push, gradient):
        frame = encode(self, push, gradient).copy()
        frame[4] ^= 1  # the number of elements
        return frame

    monkeypatch.setattr(PushEncoder, "encode", damaged)
    with pytest.raises(CodecError, match=r"worker . pushed at clock 0 to shard .: a frame of"):
        simulate(config_of("async", "sign"), workers=2)


# --- what a user sees ---------------------------------------------------------------------------


def test_the_first_lines_and_the_table_say_what_is_sent():
    said = []
    simulate(config_of("async", "sign"), workers=2, say=said.append)
    text = "\n".join(said)
    assert "codec: sign, with error feedback: a gradient is" in text
    assert "frames" in text
    assert "times fewer" in text


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"codec": "low-rank", "codec_rank": 17}, "--codec-rank 17 is more than a matrix"),
        ({"codec": "top-k", "codec_density": 1.5}, "codec-density must be at most 1, got 1.5"),
        ({"codec": "top-k", "codec_density": 0}, "codec-density must be above 0, got 0"),
        ({"codec": "qsgd", "codec_levels": 128}, "codec-levels must be at most 127, got 128"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(knobs, text):
    with pytest.raises(ConfigError) as refused:
        simulate(TrainConfig(mode="async", **KNOBS | knobs), workers=2)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("mode", ["async", "allreduce"])
def test_without_numbers_few_codecs_are_made_however_many_workers(mode, monkeypatch):
    made = []
    init = Codec.__init__
    monkeypatch.setattr(Codec, "__init__", lambda *args: made.append(0) or init(*args))

    def made_with(workers):
        made.clear()
        served = {"servers": 2} if mode == "async" else {"servers": None}
        config = TrainConfig(**KNOBS | served, mode=mode, codec="sign")
        simulate(config, workers=workers, numerics=False)
        return len(made)

    # A sum among more workers has more chunks, and each is sent as a contribution and as a mean.
    more = 0 if mode == "async" else 2 * (12 - 3)
    assert made_with(12) <= made_with(3) + more
