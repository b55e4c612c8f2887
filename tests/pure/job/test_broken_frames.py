"""The frames of a history contradict each other, or what was kept back was wrong: it is found out.

``psrt check`` is held against histories that were changed, headers that say otherwise, and runs
whose codecs do something wrong and say so consistently.
"""

from __future__ import annotations

import functools
import itertools
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from psrt.codec import ErrorFeedback
from psrt.config import TrainConfig
from psrt.core.ways import Way
from psrt.history import Kind, read_history
from psrt.history.check import check
from psrt.history.check.run import check_run
from psrt.job.virtual import simulate
from psrt.runtime.reply_codec import ReplyDecoder
from psrt.transport.coded_sum import CodedSum, SumCodec
from psrt.transport.straight_sum import StraightSum
from support.cases import each
from support.histories import altered, codec_knobs

#: The last batch of an epoch is smaller, so the divisor changes; several buckets of gradient.
SUMS = {
    "dataset": "synthetic:46x12x4", "hidden": (16,), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "mode": "allreduce:bucket-bytes=64", "check_every": 1,
}  # fmt: skip
#: Three layers.
LOCAL = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 8), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "mode": "local-sgd:local-steps=4",
}  # fmt: skip
PUSHES = {
    "dataset": "synthetic:70x12x4", "hidden": (16,), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "mode": "async", "servers": 2,
}  # fmt: skip
FRAGMENTS = LOCAL | {
    "mode": "local-sgd:local-steps=4,fragments=3,sync-delay=4,mixing=0.3,outer=nesterov,"
            "post-local-epoch=1",
}  # fmt: skip
JOBS = {
    "pushes": PUSHES | {"codec": "sign"},
    "replies": PUSHES | {"codec": "sign", "codec_reply": "sign"},
    "two phases": SUMS | {"codec": "sign"},
    "gathered": SUMS | {"codec": "sign", "allreduce": "naive"},
    "means": SUMS | codec_knobs("top-k") | {"codec_reply": "nonzero"},
    "float16": SUMS | {"codec": "float16", "allreduce": "ring"},
    "random-k": SUMS | codec_knobs("random-k") | {"allreduce": "ring"},
    "fragments": FRAGMENTS | {"codec": "sign"},
    "in turn": LOCAL | {"codec": "sign", "mode": "local-sgd:local-steps=4,fragments=2"},
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return what gives the history of a job, made once, to be broken in copies."""

    @functools.cache
    def history_of(name):
        out = str(tmp_path_factory.mktemp("good") / "run")
        simulate(TrainConfig(**JOBS[name], record=True, out=out), workers=3)
        history = read_history(out)
        assert check(history).ok
        return history

    return history_of


def violation_of(folder, name, **more):
    """Run a job in which something is broken, and return what is found in its history."""
    out = str(folder / "run")
    simulate(
        TrainConfig(**JOBS[name] | {"record": True, "out": out, "overwrite": True} | more),
        workers=3,
    )
    return check_run(out).violation


# --- events --------------------------------------------------------------------------------------


@each("name", ["replies", "means"])
def test_events_that_contradict_each_other(good, name):
    """Frames of other jobs are forged in the law of forgeries, none of whose jobs codes replies."""
    history = good(name)
    of_shards = (Kind.DECODE, Kind.REPLY_ENCODE)
    of_workers = (Kind.ENCODE, Kind.REPLY_DECODE, Kind.SUM_ENCODE, Kind.SUM_DECODE)
    fields = ["version", "samples", "worker", "clock", "gone", "twice"]
    fields += ["shard", "tau", "progress", "flag"] if name == "means" else []
    tried, missed = 0, []
    for side, kinds in (("shards", of_shards), ("workers", of_workers)):
        tables = list(getattr(history, side))
        for kind, field in itertools.product(kinds, fields):
            at = np.flatnonzero(tables[1]["kind"] == kind) if len(tables) > 1 else ()
            if len(at) > 5:
                changed = (tables[0], altered(tables[1], int(at[5]), field), *tables[2:])
                tried += 1
                if check(replace(history, **{side: changed})).ok:
                    missed.append((kind.name, field))
    assert not missed
    assert tried >= 12


# --- headers -------------------------------------------------------------------------------------

#: What the header of a job says that was not so, and what the line has.
SAYS = [
    ("pushes", {"config": {"codec": None}}, "in a run without a codec"),
    ("two phases", {"config": {"codec": None}}, ""),
    ("two phases", {"config": {"codec": "sign:bucket=8"}}, "sign makes"),
    ("float16", {"n": 277}, "the last chunk ends at element"),
    *(
        (ran, {"way": way.value}, "")
        for ran, its in {
            "two phases": Way.TWO_PHASES, "gathered": Way.GATHERED, "float16": Way.STRAIGHT,
        }.items()
        for way in (Way.TWO_PHASES, Way.GATHERED)
        if way != its
    ),
    ("random-k", {"config": {"codec": "random-k:density=0.2"}},
     "random-k makes"),
    ("in turn",
     {"config": {"mode": "local-sgd:local-steps=4,fragments=2,fragment-order=sequential"}}, ""),
    ("in turn", {"layers": ((0, 207), (207, 344), (344, 380))}, ""),
    ("means", {"config": {"codec_reply": "float16"}}, ""),
    ("means", {"config": {"codec_reply": "sign:bucket=8"}}, ""),
]  # fmt: skip


@each(("name", "changes", "text"), SAYS)
def test_a_header_that_says_otherwise(good, name, changes, text):
    history = good(name)
    new = {it: value for it, value in changes.items() if it != "config"}
    config = history.header.config | changes.get("config", {})
    header = replace(history.header, config=config, **new)
    assert header != history.header
    violation = check(replace(history, header=header)).violation
    assert violation.rule == "frames"
    assert text in violation.text


# --- runs that do something wrong ----------------------------------------------------------------

#: What a sender with error feedback may do wrong, of which its digests tell nothing: what is to be
#: sent, and what is kept back of it, by v, e, what is decoded, and what was kept back elsewhere.
WRONG = {
    "dropped": lambda v, e, other: v,
    "of another shard": lambda v, e, other: v + other,
    "a part of it": lambda v, e, other: v + np.float32(0.999) * e,
}
WRONGLY_KEPT = {
    "nothing": lambda p, c, e: np.zeros_like(p),
    "what was there": lambda p, c, e: e,
    "but for one": lambda p, c, e: np.where(np.arange(p.size) == np.abs(p - c).argmax(), 0, p - c),
}


@pytest.mark.parametrize("wrong", [*WRONG, *(f"kept: {it}" for it in WRONGLY_KEPT), "not at all"])
@pytest.mark.one_in(3)
def test_error_feedback_that_is_wrong(tmp_path, monkeypatch, wrong):
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
    violation = violation_of(tmp_path, "pushes", epochs=1)
    if wrong == "not at all":
        assert violation is None
        return
    assert violation.rule == "residuals"
    assert "its new residual add up to" in violation.text


def forgetful(self, mine, begin=CodedSum.begin):
    for sender in (*self._senders, *getattr(self, "_forth", {}).values()):
        sender.residual.fill(0)
    return begin(self, mine)


def forgetful_straight(self, mine, begin=StraightSum.begin):
    self._feedback.residual.fill(0)
    begin(self, mine)


def unscaled(self, factor, rescale=ErrorFeedback.rescale):
    rescale(self, 1.0)


def drawing_alike(self, clock, epoch, total, begin=SumCodec.begin_round):
    """As if the draws of two fragments under way were the same."""
    begin(self, clock // 2, epoch, total)


def adding_more(self, reply, read=ReplyDecoder.read):
    read(self, reply)
    self._spans[reply.shard][0] += 1e-3


def dividing(self, at, agree=StraightSum.agree):
    self.codec.total *= 1 + (self.codec.worker == 1)
    agree(self, at)


#: The job, what is broken in it, and the rule and the words by which that is found.
BROKEN = [
    ("replies", ReplyDecoder, "read", adding_more, "frames", "decoded to other numbers"),
    ("two phases", CodedSum, "begin", forgetful, "residuals", ""),
    ("two phases", CodedSum, "begin", forgetful, "residuals", ""),
    ("fragments", SumCodec, "begin_round", drawing_alike, "frames", ""),
    ("two phases", ErrorFeedback, "rescale", unscaled, "residuals", "its new residual add up to"),
    ("random-k", StraightSum, "begin", forgetful_straight, "residuals", ""),
    ("float16", StraightSum, "agree", dividing, "frames", "another mean of part 0"),
]


@pytest.mark.parametrize(
    ("name", "what", "method", "wrong", "rule", "text"),
    BROKEN,
    ids=[f"{row[0]}: {row[3].__name__}" for row in BROKEN],
)
@pytest.mark.one_in(3)
def test_a_run_that_does_something_wrong(
    tmp_path, monkeypatch, name, what, method, wrong, rule, text
):
    """Its own check of θ looks away, if what is wrong shows in θ."""
    monkeypatch.setattr(what, method, wrong)
    more = {"check_every": 0} if name in ("float16", "random-k") else {}
    with mock.patch("psrt.runtime.worker.fingerprint", return_value=0) if more else nullcontext():
        violation = violation_of(tmp_path, name, **more)
    assert violation.rule == rule
    assert text in violation.text
