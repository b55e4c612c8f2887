"""Every way to train with every codec and all that goes with one: it runs, or is refused in a line.

Nothing in between: no error amid a run, no traceback, no flag that is passed over.
"""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

from psrt.codec import TABLE
from psrt.collective.registry import AUTO
from psrt.config import MODES, TrainConfig
from psrt.errors import ConfigError
from psrt.job.virtual import simulate
from support.cases import each

#: A little model of three layers, of which low rank makes one shorter.
TINY = {
    "dataset": "synthetic:40x12x4", "hidden": (16, 4), "batch_size": 4, "steps": 2, "lr": 0.02,
}  # fmt: skip
WORKERS = 2
#: Ways to train, with what makes them more than their mode, and what codecs are for in them.
SCHEMES = {
    "serial": ({"mode": "serial"}, ""),
    "sync": ({"mode": "sync"}, "pushes, replies, shared"),
    "backup": ({"mode": "sync", "backup": 1}, "pushes, replies"),
    "async": ({"mode": "async"}, "pushes, replies"),
    "ssp": ({"mode": "ssp"}, "pushes, replies"),
    "softsync": ({"mode": "softsync"}, "pushes, replies"),
    "allreduce": ({"mode": "allreduce"}, "sums, replies"),
    "local-sgd": ({"mode": "local-sgd", "local_steps": 2}, "sums, replies"),
    "over servers": (
        {"mode": "local-sgd", "local_steps": 2, "servers": 1},
        "pushes, replies, shared",
    ),
    "easgd": ({"mode": "easgd", "local_steps": 2}, "pushes, replies, shared"),
    "easgd, asynchronous": (
        {"mode": "easgd", "local_steps": 2, "asynchronous": True},
        "pushes, replies",
    ),
    "fragments": ({"mode": "local-sgd", "local_steps": 3, "fragments": 3}, "sums, replies"),
    "late": ({"mode": "local-sgd", "local_steps": 2, "sync_delay": 1}, "sums, replies"),
    "eager": ({"mode": "local-sgd", "local_steps": 2, "eager": True}, "sums, replies"),
    "gossip": ({"mode": "gossip"}, "neighbours"),
    "step first": ({"mode": "gossip", "order": "adapt-then-combine"}, "neighbours"),
    "tracking": ({"mode": "gossip", "gradient_tracking": True}, ""),
    "push-sum": ({"mode": "gossip", "push_sum": True}, ""),
    "pairs": ({"mode": "gossip", "asynchronous": True}, ""),
}
CODECS = {name: {} for name in TABLE} | {
    "demo": {"codec_chunk": 8, "codec_kept": 4, "optimizer": "sign-sgd"},
}
#: What cannot be, by itself: codecs that are not for differences, and those without error feedback.
NO_REPLY = {"ternary", "ternary-base3", "dgc", "demo"}
#: A momentum of its own would multiply the force between a worker and the centre.
NO_FORCE = {"dgc", "demo"}
NO_FEEDBACK = {"int8", "qsgd", "nonzero", *NO_REPLY}
FEEDBACK = (None, True, False)


def refusal(call):
    """Return the line of a refusal, "" if there is none."""
    try:
        call()
    except ConfigError as error:
        line = str(error)
        assert line, "a refusal must say why"
        assert "\n" not in line
        return line
    return ""


def config_of(scheme, codec, **more):
    if codec == "low-rank" and has(scheme, "neighbours"):
        more["consensus_rate"] = 0.1
    return TrainConfig(**TINY | SCHEMES[scheme][0] | CODECS[codec] | {"codec": codec} | more)


def has(scheme, what):
    return what in SCHEMES[scheme][1].split(", ")


def possible(scheme, codec, reply=None, shared=None, feedback=None):
    """Return whether it should run, as the documentation says."""
    if has(scheme, "neighbours"):
        return codec not in NO_REPLY and reply is shared is feedback is None
    if not any(has(scheme, it) for it in ("pushes", "sums")):
        return False
    if scheme.startswith("easgd") and codec in NO_FORCE:
        return False
    if feedback is not None and codec in NO_FEEDBACK:
        return False
    if reply is not None and (not has(scheme, "replies") or reply in NO_REPLY):
        return False
    return not shared or (reply is not None and has(scheme, "shared"))


@each("scheme", SCHEMES)
def test_all_that_goes_with_a_codec_is_taken_or_refused(scheme):
    for codec, reply, shared, feedback in itertools.product(
        TABLE, (None, *TABLE), (None, True), FEEDBACK
    ):
        if codec != "sign" and (reply not in (None, "sign") or (reply and feedback)):
            continue  # all pairs are run below
        more = {"codec_reply": reply, "codec_reply_shared": shared, "error_feedback": feedback}
        line = refusal(partial(config_of, scheme, codec, **more))
        told = codec, reply, shared, feedback, line
        assert (not line) == possible(scheme, codec, reply, shared, feedback), told
        # It is about a flag that was given.
        given = ("--codec", "--error-feedback", "--no-error-feedback", "codec-reply must be one of")
        assert not line or line.startswith(given), told


def runs(scheme, codec, **more):
    """Run a job; return the line of a refusal, "" if there is none."""

    def call():
        config = config_of(scheme, codec, **more)
        run = simulate(config, workers=1 if MODES[config.mode].single else WORKERS)
        assert np.isfinite(run.theta).all()
        assert run.summary.frame_bytes
        assert more.get("allreduce", AUTO) in (AUTO, run.summary.allreduce)

    return refusal(call)


@pytest.mark.parametrize("scheme", [it for it in SCHEMES if SCHEMES[it][1]])
@pytest.mark.one_in(97)
def test_every_codec_runs_with_and_without_error_feedback(scheme):
    for codec, feedback in itertools.product(TABLE, FEEDBACK):
        line = runs(scheme, codec, error_feedback=feedback)
        assert (not line) == possible(scheme, codec, feedback=feedback), (codec, feedback, line)


@each(
    "flags",
    [
        {"mode": "sync", "codec_density": 0.5},
        {"mode": "sync", "codec": "sign", "allreduce": "ring"},
        {"mode": "sync", "codec": "sign", "fragments": 2},
        {"mode": "local-sgd", "servers": 1, "eager": True},
    ],
)
def test_a_flag_that_would_be_passed_over_is_refused(flags):
    assert "has no effect with" in refusal(lambda: TrainConfig(**flags))


#: What a user may get wrong, and what the line must have of it: what came, and what is possible.
BAD = [
    ({"codec": "top-k", "codec_density": 1.5}, "codec-density must be at most 1, got 1.5"),
    ({"codec": "low-rank", "codec_rank": 13}, "--codec-rank 13 is more than .* at most 12"),
    ({"codec": "demo", "codec_chunk": 4, "codec_kept": 17}, "--codec-kept 17 is more than"),
    ({"codec": "sign", "codec_bucket": 12}, "--codec-bucket 12 must be a multiple of 8"),
    ({"codec": "sign", "codec_levels": 3}, "no effect with --codec sign; it belongs to .* qsgd"),
    (
        {"mode": "sync", "backup": 1, "codec": "sign", "codec_reply": "sign"}
        | {"codec_reply_shared": True},
        "all read every version, as in sync, got --backup 1",
    ),
    (
        {"mode": "local-sgd", "fragments": 4},
        "--fragments 4 is more than the model has layers, 3: a fragment is one layer or more",
    ),
    (
        {"mode": "allreduce", "codec": "top-k", "codec_reply": "nonzero", "allreduce": "naive"},
        "^--allreduce naive does not sum what --codec top-k --codec-reply nonzero makes; it has "
        "auto, ring, all-pairs$",
    ),
]


@each(("flags", "line"), BAD)
def test_what_cannot_be_is_one_line(flags, line):
    with pytest.raises(ConfigError, match=line) as refused:
        simulate(TrainConfig(**TINY | {"mode": "async"} | flags), workers=WORKERS)
    assert "\n" not in str(refused.value)
