"""Pushes and replies by a codec, in every mode with servers, and what goes with a codec at all."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from psrt.codec import CODECS, Matrix
from psrt.codec.frame import HEADER_BYTES
from psrt.config import TrainConfig
from psrt.core.errors import ConfigError
from psrt.core.messages import Push
from psrt.core.partition import Span
from psrt.history import Kind, read_history
from psrt.history.check import check
from psrt.history.check.run import check_run
from psrt.job.virtual import simulate
from psrt.runtime.job_codec import JobCodec
from psrt.runtime.push_codec import PushEncoder
from psrt.simulation import SimulationCosts
from psrt.transport.frames import FRAME_BYTES
from support.cases import each, pairs
from support.histories import codec_knobs

#: A little model whose weights low rank makes shorter; the last batch of an epoch is smaller.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16,), "batch_size": 4, "epochs": 1, "lr": 0.05,
    "servers": 2,
}  # fmt: skip
#: The modes with servers, with what makes them more than async.
SERVED = {
    "sync": {"mode": "sync"},
    "backup": {"mode": "sync:backup=1"},
    "async": {"mode": "async"},
    "ssp": {"mode": "ssp:staleness=1"},
    "softsync": {"mode": "softsync:k=2"},
    "local-sgd": {"mode": "local-sgd:local-steps=3"},
    "easgd": {"mode": "easgd:local-steps=3"},
}
REPLIES = [row.name for row in CODECS.values() if row.sends_differences]
#: Codecs whose frames are as long as the numbers make them, but never longer than is known.
SPARSE = ("top-k", "threshold", "dgc", "nonzero")
#: Codecs take no time, so the order of events is that without.
NO_TIME = SimulationCosts(codec_speed=math.inf)


def config_of(mode, codec=None, **more):
    rule = {"optimizer": "sign-sgd"} if codec == "demo" else {}
    return TrainConfig(**KNOBS | SERVED[mode] | codec_knobs(codec) | rule | more)


def replayed(config):
    """Repeat a recorded run, with other delays."""
    again = replace(config, replay=config.out, out=None, record=False)
    return simulate(again, workers=3, seed=99)


@pytest.mark.parametrize(("mode", "codec"), pairs(SERVED, REPLIES, one_in=9))
@pytest.mark.one_in(5)
def test_replies_are_counted_checked_and_repeated(tmp_path, mode, codec):
    more = {"shards_per_server": 2, "record": True, "codec_reply": codec}
    config = config_of(mode, "sign", out=str(tmp_path / "run"), **more)
    run = simulate(config, workers=3)
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())
    history = read_history(config.out)

    def of(tables, *kinds):
        return np.concatenate([it[np.isin(it["kind"], kinds)] for it in tables])

    replies = of(history.shards, Kind.REPLY_ENCODE)["samples"].sum()
    frames = replies + of(history.workers, Kind.ENCODE)["samples"].sum()
    messages = of(history.shards, Kind.REPLY, Kind.RECEIVE, Kind.LEFT).size
    assert replies > 0
    assert run.summary.frame_bytes == frames
    assert run.summary.bytes_sent == FRAME_BYTES * messages + frames
    assert replayed(config).summary.parameters_sha256 == run.summary.parameters_sha256


@each(("codecs", "knobs"), [
    (("sign", "float8-e4m3"), (1024, 128)),
    (("sign:bucket=64", "float8-e4m3:bucket=32"), (64, 32)),
])  # fmt: skip
def test_pushes_and_replies_have_knobs_of_their_own(tmp_path, codecs, knobs):
    """The header says what each codec had, and the checker believes nothing else."""
    codec, reply = codecs
    more = {"codec_reply": reply, "record": True, "servers": 1}
    config = config_of("async", codec, out=str(tmp_path / f"{knobs[0]}"), **more)
    n = simulate(config, workers=3).theta.size
    history = read_history(config.out)
    said = f"sign:bucket={knobs[0]}", f"float8-e4m3:bucket={knobs[1]}"
    assert (history.header.config["codec"], history.header.config["codec_reply"]) == said
    [shard] = history.shards
    for kind, expected in (
        (Kind.DECODE, 4 * -(-n // knobs[0]) + -(-n // 8)),
        (Kind.REPLY_ENCODE, -(-n // knobs[1]) + n),
    ):
        assert set(shard["samples"][shard["kind"] == kind]) == {HEADER_BYTES + expected}
    if codec == "sign":
        config = history.header.config | {"codec_reply": "float8-e4m3:bucket=32"}
        other = replace(history, header=replace(history.header, config=config))
        assert check(other).violation.text.endswith("float8-e4m3 makes 305 to 305")


@each("mode", ["backup", "async", "local-sgd"])
def test_all_elements_of_top_k_are_what_is_sent_without_a_codec(mode):
    """Lossless is none, to the bit; but differences are rounded, and so are their sums."""
    plain = simulate(config_of(mode, shards_per_server=2), workers=3)
    exact = {"rtol": 0, "atol": 0 if mode not in ("local-sgd", "easgd") else 1e-6}
    for reply, most in ((None, exact), ("nonzero", {"rtol": 0, "atol": 1e-4})):
        more = {"shards_per_server": 2, "codec_reply": reply}
        framed = simulate(config_of(mode, "top-k:density=1.0", **more), workers=3, costs=NO_TIME)
        assert framed.summary.staleness.histogram == plain.summary.staleness.histogram
        np.testing.assert_allclose(framed.theta, plain.theta, **most)


@each("mode", ["sync", "softsync:k=1"])
def test_demo_that_sends_everything_is_signed_descent(mode):
    """For one worker. Some chunks have fewer elements than are sent of a chunk, others as many."""
    whole = {"optimizer": "demo", "codec": "demo:chunk=8,kept=64"}
    thetas = [
        simulate(replace(config_of("sync", lr=0.01, **more), mode=mode), workers=1).theta
        for more in (whole, {"optimizer": "sign-sgd"})
    ]
    np.testing.assert_array_equal(*thetas)


@each(
    ("codec", "reply"),
    [("top-k", None), ("nonzero", None), *(("sign", it) for it in REPLIES[::2])],
)
def test_without_numbers_the_same_bytes_are_sent_or_the_most(codec, reply):
    config = config_of("sync", codec, codec_reply=reply, epochs=None, steps=2)
    whole, bare = (
        simulate(config, workers=3, numerics=numerics).summary for numerics in (True, False)
    )
    assert bare.framed_bytes == whole.framed_bytes
    if {codec, reply} & {*SPARSE}:
        assert bare.frame_bytes >= whole.frame_bytes
    else:
        assert (bare.frame_bytes, bare.bytes_sent) == (whole.frame_bytes, whole.bytes_sent)


@each("codec", CODECS)
def test_no_frame_is_shorter_or_longer_than_its_codec_says(codec):
    """By which the check judges lengths."""
    row, rng = CODECS[codec], np.random.default_rng(3)
    for n in (0, 1, 7, 8, 129, 1000, 20_000):
        rows = min(40, n // 50)
        matrices = [Matrix(n // 4, rows, 30)] if rows else []
        encoder = PushEncoder(
            [JobCodec(row, matrices=matrices).sender(Span(0, n))], seed=1, worker=0
        )
        bounds = row.codec(n, matrices=matrices)
        for clock in range(3):
            push = Push(0, clock, 0, 1, float(clock))
            frame = encoder.encode(push, rng.standard_normal(n).astype(np.float32))
            bounds.begin_epoch(clock)
            assert bounds.shortest <= frame.size <= bounds.longest
            assert bounds.shortest == bounds.longest or codec in SPARSE


def test_a_simulation_of_a_run_on_one_host_sends_as_it_did():
    """As by the config of a recorded run in which the codec was not in effect."""
    said = []
    config = config_of("async", "sign", codec_everywhere=False)
    run = simulate(config, workers=3, say=said.append)
    assert run.summary.frame_bytes == 0
    assert any("--codec sign has no effect on one host" in line for line in said)
    np.testing.assert_array_equal(run.theta, simulate(config_of("async"), workers=3).theta)


# --- what goes together --------------------------------------------------------------------------

#: Ways to train, with what codecs are for in them; which codec goes with which mode is a law.
SCHEMES = {
    "sync": ({"mode": "sync"}, "pushes, replies"),
    "backup": ({"mode": "sync:backup=1"}, "pushes, replies"),
    "async": ({"mode": "async"}, "pushes, replies"),
    "allreduce": ({"mode": "allreduce"}, "sums, replies"),
    "over servers": ({"mode": "local-sgd", "servers": 1}, "pushes, replies"),
    "easgd": ({"mode": "easgd"}, "pushes, replies"),
    "late": ({"mode": "local-sgd:sync-delay=1"}, "sums, replies"),
    "gossip": ({"mode": "gossip"}, "neighbours"),
    "push-sum": ({"mode": "gossip:variant=push-sum"}, ""),
}
#: What cannot be, by itself: codecs that are not for differences, and those without error feedback.
NO_REPLY = {"ternary", "ternary-base3", "dgc", "demo"}
NO_FEEDBACK = {"int8", "qsgd", "nonzero", *NO_REPLY}


def possible(scheme, codec, reply, feedback):
    """Return whether it should run, as the documentation says."""
    goes = SCHEMES[scheme][1].split(", ")
    if "neighbours" in goes:
        return codec not in NO_REPLY and reply is feedback is None
    if goes == [""] or (scheme == "easgd" and codec in ("dgc", "demo")):
        return False
    return reply not in NO_REPLY and (feedback is None or codec not in NO_FEEDBACK)


@each("scheme", SCHEMES)
def test_replies_and_error_feedback_are_taken_or_refused_in_a_line(scheme):
    for codec, reply, feedback in itertools.product(CODECS, (None, *CODECS), (None, True, False)):
        if codec not in ("sign", reply) and (reply not in (None, "sign") or (reply and feedback)):
            continue
        knobs = {"optimizer": "sign-sgd"} if codec == "demo" else {}
        knobs |= {"codec": codec, "codec_reply": reply}
        if (scheme, codec) == ("gossip", "low-rank"):
            knobs["mode"] = "gossip:consensus-rate=0.1"
        line = ""
        try:
            TrainConfig(**SCHEMES[scheme][0] | knobs, error_feedback=feedback)
        except ConfigError as error:
            line = str(error)
            # It is about a flag that was given.
            given = ("--codec", "--error-feedback", "--no-error-feedback", "--codec-reply")
            assert line.startswith(given), line
            assert "\n" not in line
        told = codec, reply, feedback, line
        assert (not line) == possible(scheme, codec, reply, feedback), told


#: What a user may get wrong, and what the line must have of it: what came, and what is possible.
BAD = [
    (
        {"mode": "sync", "codec": "int8:density=0.5"},
        "int8 has no knob .density., which is one of top-k",
    ),
    ({"mode": "local-sgd:eager=true", "codec": "sign", "servers": 1}, "has no effect with"),
    ({"codec": "top-k:density=1.5"}, "codec top-k: density must be at most 1, got 1.5"),
    (
        {"codec": "low-rank:rank=13"},
        "--codec low-rank:rank=13: rank 13 is higher than .* at most 12",
    ),
    ({"codec": "demo:chunk=4,kept=17"}, "codec demo: kept 17 is more than"),
    ({"codec": "sign:bucket=12"}, "codec sign: bucket must be a multiple of 8, got 12"),
    ({"mode": "local-sgd:fragments=4"}, "^4 fragments are more than the number of layers, 2"),
    ({"mode": "local-sgd:sync-delay=9"}, "sync-delay 9 is longer than the period"),
    (
        {"mode": "allreduce", "codec": "top-k", "codec_reply": "nonzero", "allreduce": "naive"},
        "^--allreduce naive does not sum what --codec top-k --codec-reply nonzero makes; it has "
        "auto, all-pairs$",
    ),
]


@each(("flags", "line"), BAD)
def test_what_cannot_be_is_one_line(flags, line):
    with pytest.raises(ConfigError, match=line) as refused:
        simulate(TrainConfig(**KNOBS | {"servers": None, "mode": "async"} | flags), workers=2)
    assert "\n" not in str(refused.value)
