"""Sums by linear codecs straight through schedules: recorded, checked, repeated, and broken."""

from __future__ import annotations

import functools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from psrt.codec import TABLE
from psrt.codec.low_rank import LowRank
from psrt.codec.sparse import RandomK
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.pick import way_of
from psrt.config import TrainConfig
from psrt.history import Kind, read_history
from psrt.history.check import check
from psrt.history.check.run import check_run
from psrt.job.virtual import simulate
from psrt.transport.straight_sum import StraightSum
from psrt.ways import Way
from support.cases import pairs
from support.histories import altered

#: The last batch of an epoch is smaller, so the divisor changes; several buckets of gradient.
KNOBS = {
    "dataset": "synthetic:46x12x4", "hidden": (16,), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "mode": "allreduce", "bucket_bytes": 64, "check_every": 1,
}  # fmt: skip
CODECS = {
    "float16": {},
    "random-k": {"codec_scaled": False, "codec_density": 0.1},
    "low-rank": {"codec_rank": 1},
}
SCHEDULES = [name for name in ALGORITHMS if way_of(name, [Way.STRAIGHT])]
EVERY_CODEC = pytest.mark.parametrize("codec", CODECS)


def config_of(codec=None, **more):
    knobs = {} if codec is None else {"codec": codec} | CODECS[codec]
    return TrainConfig(**KNOBS | knobs | more)


def recorded(tmp_path, codec, workers=3, **more):
    """Return the config and the run of a recorded one."""
    config = config_of(codec, record=True, out=str(tmp_path / "run"), **more)
    return config, simulate(config, workers=workers)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return what gives the history of a run by a codec, made once, to be broken in copies."""

    @functools.cache
    def history_of(codec):
        config, _ = recorded(tmp_path_factory.mktemp("good"), codec, allreduce="ring")
        history = read_history(config.out)
        assert check(history).ok
        return history

    return history_of


def test_each_linear_codec_is_here():
    assert set(CODECS) == {row.name for row in TABLE.values() if Way.STRAIGHT in row.ways}


@pytest.mark.parametrize(("codec", "algorithm"), pairs(CODECS, [*SCHEDULES, "auto"], one_in=3))
@pytest.mark.parametrize("workers", [2, 5])
def test_it_trains_is_checked_and_repeats_to_the_bit(tmp_path, codec, algorithm, workers):
    config, run = recorded(tmp_path, codec, workers, allreduce=algorithm)
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())
    again = replace(config, replay=config.out, out=None, record=False)
    again = simulate(again, workers=workers, seed=99)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    assert 0 < run.summary.frame_bytes < run.summary.framed_bytes
    assert run.summary.bytes_sent == run.summary.bytes_received > run.summary.frame_bytes
    assert np.isfinite(run.theta).all()


@EVERY_CODEC
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_without_numbers_the_same_bytes_take_as_long(tmp_path, codec, algorithm):
    whole = simulate(config_of(codec, allreduce=algorithm), workers=3)
    config = config_of(codec, allreduce=algorithm, record=True, out=str(tmp_path / "run"))
    bare = simulate(config, workers=3, numerics=False)
    assert bare.summary.frame_bytes == whole.summary.frame_bytes
    assert bare.summary.framed_bytes == whole.summary.framed_bytes
    assert bare.summary.bytes_sent == whole.summary.bytes_sent
    assert bare.seconds == whole.seconds
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())


@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_a_codec_that_loses_nothing_trains_as_none(algorithm):
    """All elements of random-k, and matrices that low rank would not make shorter."""
    dense = simulate(config_of(allreduce=algorithm), workers=3)
    for more in (
        {"codec": "random-k", "codec_density": 1.0},
        {"codec": "low-rank", "codec_rank": 7},
    ):
        run = simulate(TrainConfig(**KNOBS, allreduce=algorithm, **more), workers=3)
        assert run.theta.tobytes() == dense.theta.tobytes()


def test_scaled_random_k_of_1_percent_learns():
    """In two phases the mean is drawn from once more, 100 times what is left of it: it diverges."""
    knobs = {
        "dataset": "digits", "hidden": (32,), "batch_size": 32, "epochs": 12, "lr": 0.03,
        "codec": "random-k", "bucket_bytes": None,
    }  # fmt: skip
    loss = {}
    for algorithm in ("ring", "all-pairs"):
        run = simulate(TrainConfig(mode="allreduce", allreduce=algorithm, **knobs), workers=3)
        loss[algorithm] = run.summary.test_loss
    assert loss["ring"] < 1.3
    assert loss["all-pairs"] > 10


def test_the_first_lines_say_what_is_sent_and_why():
    said = []
    simulate(config_of("random-k"), workers=3, say=said.append)
    text = "\n".join(said)
    assert "predicted for 84 B on 3 ranks of 3 hosts" in text
    assert "codec: random-k, with error feedback: a worker sends " in text
    assert " B an update instead of" in text


# --- broken, it must be seen --------------------------------------------------------------------


def violated(tmp_path, codec):
    """Return what the checker finds in a run whose own check of θ looks away."""
    with mock.patch("psrt.runtime.worker.fingerprint", return_value=0):
        config, _ = recorded(tmp_path, codec, allreduce="ring", check_every=0)
    return check_run(config.out).violation


@EVERY_CODEC
@pytest.mark.parametrize("which", [Kind.SUM_ENCODE, Kind.SUM_KEEP, Kind.SUM_DECODE])
@pytest.mark.parametrize(
    "field",
    ["version", "samples", "worker", "shard", "clock", "tau", "progress", "flag", "gone", "twice"],
)
def test_a_history_that_contradicts_itself(good, codec, which, field):
    history = good(codec)
    workers = list(history.workers)
    if which == Kind.SUM_KEEP and (field == "samples" or codec == "float16"):
        pytest.skip("it has none")
    if which == Kind.SUM_ENCODE and field == "version":
        pytest.skip("what one worker adds no other one knows")
    at = int(np.flatnonzero(workers[1]["kind"] == which)[7])
    workers[1] = altered(workers[1], at, field)
    assert not check(replace(history, workers=tuple(workers))).ok


def test_what_is_kept_back_and_forgotten(tmp_path, monkeypatch):
    begin = StraightSum.begin

    def forgetful(self, mine):
        self._feedback.residual.fill(0)
        begin(self, mine)

    monkeypatch.setattr(StraightSum, "begin", forgetful)
    assert violated(tmp_path, "random-k").rule == "residuals"


@pytest.mark.parametrize("codec", ["random-k", "low-rank"])
def test_what_is_lost_and_not_kept_back(tmp_path, monkeypatch, codec):
    finish = StraightSum.finish

    def careless(self):
        self._own[0] *= np.float32(0.99)
        self._feedback.residual *= np.float32(0.99)
        finish(self)

    monkeypatch.setattr(StraightSum, "finish", careless)
    violation = violated(tmp_path, codec)
    assert violation.rule == "residuals"
    assert "what adds up to" in violation.text


def test_workers_that_draw_for_themselves(tmp_path, monkeypatch):
    begin = RandomK.begin
    turns = iter(range(1000))

    def otherwise(self, rng):
        if next(turns) == 40:
            rng.random()
        begin(self, rng)

    monkeypatch.setattr(RandomK, "begin", otherwise)
    violation = violated(tmp_path, "random-k")
    assert violation.rule == "frames"
    assert "has other means in round" in violation.text


def test_a_worker_that_divides_by_another_total(tmp_path, monkeypatch):
    agree = StraightSum.agree

    def twice(self, at):
        self._codec.total *= 1 + (self._codec.worker == 1)
        agree(self, at)

    monkeypatch.setattr(StraightSum, "agree", twice)
    violation = violated(tmp_path, "float16")
    assert violation.rule == "frames"
    assert "knows another mean of part 0" in violation.text


def test_a_worker_whose_p_is_another(tmp_path, monkeypatch):
    agree = LowRank.agree
    turns = iter(range(10_000))

    def tilted(self, part, mean):
        agree(self, part, mean)
        if next(turns) == 40:
            self._p[0] += 1

    monkeypatch.setattr(LowRank, "agree", tilted)
    assert violated(tmp_path, "low-rank").rule == "frames"


def test_a_span_that_nobody_sums(tmp_path):
    config, _ = recorded(tmp_path, "float16", allreduce="ring")
    history = read_history(config.out)
    header = replace(history.header, n=history.header.n + 1)
    violation = check(replace(history, header=header)).violation
    assert violation.rule == "frames"
    assert "the last chunk ends at element" in violation.text


@pytest.mark.parametrize(
    ("codec", "knob", "value"), [("random-k", "density", 0.2), ("low-rank", "rank", 2)]
)
def test_a_part_of_another_length(tmp_path, codec, knob, value):
    config, _ = recorded(tmp_path, codec, allreduce="ring")
    history = read_history(config.out)
    header = replace(
        history.header,
        config=history.header.config | {f"codec_{knob}": value},
        codec_knobs=history.header.codec_knobs | {knob: value},
    )
    violation = check(replace(history, header=header)).violation
    assert violation.rule == "frames"
    assert f"{codec} makes" in violation.text


def test_parts_of_a_run_in_frames(tmp_path):
    config, _ = recorded(tmp_path, "float16", allreduce="ring")
    history = read_history(config.out)
    for way in (Way.TWO_PHASES.value, Way.GATHERED.value):
        header = replace(history.header, way=way)
        assert check(replace(history, header=header)).violation.rule == "frames"


def test_bytes_that_nobody_needs(tmp_path):
    """As if a worker had sent a part once more."""
    config, _ = recorded(tmp_path, "float16", allreduce="ring")
    history = read_history(config.out)
    workers = list(history.workers)
    workers[2] = events = workers[2].copy()
    at = int(np.flatnonzero(events["kind"] == Kind.SUM_DECODE)[5])
    events["samples"][at] += 2
    violation = check(replace(history, workers=tuple(workers))).violation
    assert violation.rule == "frames"
    assert "bytes to add part 0" in violation.text


@pytest.mark.parametrize("name", ["frame_bytes", "framed_bytes"])
def test_a_summary_that_counts_otherwise(tmp_path, name):
    config, _ = recorded(tmp_path, "low-rank", allreduce="tree")
    path = tmp_path / "run" / "summary.json"
    path.write_text(path.read_text().replace(f'"{name}": ', f'"{name}": 1'))
    assert name in check_run(config.out).violation.text
