"""Sums by a codec, in all-reduce: in virtual time, recorded, checked, repeated."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from psrt.codec import TABLE, ErrorFeedback, make_codec
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.pick import way_of
from psrt.collective.registry import ALL_REDUCES, AUTO
from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.history import Kind, read_history
from psrt.history.check import check
from psrt.history.check.run import check_run
from psrt.history.events import BACK, pair, parts
from psrt.job.virtual import simulate
from psrt.partition import Span, even_spans
from psrt.runtime.strategies.buckets import buckets_of
from psrt.simulation import SimulationCosts
from psrt.transport.coded_sum import CodedSum
from psrt.ways import Way
from support.cases import pairs
from support.histories import altered, codec_knobs

pytestmark = pytest.mark.rest_one_in(3)

#: The last batch of an epoch is smaller, so the divisor changes; several buckets of gradient.
KNOBS = {
    "dataset": "synthetic:46x12x4", "hidden": (16,), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "mode": "allreduce", "bucket_bytes": 64, "check_every": 1,
}  # fmt: skip
BY_HOPS = [
    name
    for name, row in TABLE.items()
    if way_of("ring", {*row.ways, *row.ways_if_asked}) is Way.HOPS
]
EVERY_CODEC = pytest.mark.parametrize("codec", TABLE)
FIELDS = (
    "version", "samples", "worker", "shard", "clock", "tau", "progress", "flag", "gone", "twice",
)  # fmt: skip
SPARSE = ("top-k", "threshold", "dgc", "nonzero")
#: Those of the others are as long as the numbers or the matrices make them; the checker knows.
LENGTHS_KNOWN = [name for name in TABLE if name not in (*SPARSE, "low-rank", "demo")]
BOTH_WAYS = pytest.mark.parametrize("way", ["all-pairs", "naive"])
EVERY_WAY = pytest.mark.parametrize("way", ["all-pairs", "naive", "ring"])


def config_of(codec=None, **more):
    rule = {"optimizer": "sign-sgd"} if codec == "demo" else {}
    return TrainConfig(**KNOBS | codec_knobs(codec) | rule | more)


def recorded(tmp_path, codec, workers=3, **more):
    """Return the config and the run of a recorded one."""
    config = config_of(codec, record=True, out=str(tmp_path / "run"), **more)
    return config, simulate(config, workers=workers)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return what gives the history of a run, made once, to be broken in copies."""

    @functools.cache
    def history_of(codec="sign", **more):
        config, _ = recorded(tmp_path_factory.mktemp("good"), codec, **more)
        history = read_history(config.out)
        assert check(history).ok
        return history

    return history_of


@pytest.mark.parametrize(("codec", "workers"), pairs(TABLE, [1, 2, 3, 8], one_in=4))
def test_it_trains_is_checked_and_repeats_to_the_bit(tmp_path, codec, workers):
    config, run = recorded(tmp_path, codec, workers)
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())
    again = replace(config, replay=config.out, out=None, record=False)
    again = simulate(again, workers=workers, seed=99)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    assert (run.summary.frame_bytes > 0) == (workers > 1)
    assert np.isfinite(run.theta).all()


def test_others_may_have_a_sum_before_its_last_worker_has_decoded_it(tmp_path):
    """Decoding takes its time after a gradient amid which the last part of the sum was sent."""
    more = {"allreduce": "naive", "check_every": 0, "out": str(tmp_path / "run")}
    config = config_of("int8", record=True, **more)
    costs = SimulationCosts(
        compute=lambda rank, _: 2e-3 if rank == 1 else 1e-3, latency=lambda _: 0.0
    )
    simulate(config, workers=3, costs=costs)
    events = read_history(config.out).workers
    ended, ready = (
        it[it["kind"] == kind]["time"][0]
        for it, kind in ((events[0], Kind.REDUCED), (events[1], Kind.REDUCE))
    )
    assert ended < ready
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())


@pytest.mark.parametrize(
    ("workers", "codec"),
    pairs([4, 5], BY_HOPS, one_in=3),
)
@pytest.mark.one_in(3)
def test_a_ring_codes_every_hop(tmp_path, workers, codec):
    config, run = recorded(tmp_path, codec, workers=workers, allreduce="ring")
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())
    again = replace(config, replay=config.out, out=None, record=False)
    again = simulate(again, workers=workers, seed=99)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    # In all as many bytes as in two phases.
    pairs_of = simulate(config_of(codec, allreduce="all-pairs"), workers=workers).summary
    assert run.summary.framed_bytes == pairs_of.framed_bytes
    if codec not in SPARSE:
        assert run.summary.frame_bytes == pairs_of.frame_bytes
    bare = simulate(config_of(codec, allreduce="ring"), workers=workers, numerics=False).summary
    assert bare.framed_bytes == run.summary.framed_bytes
    assert (bare.frame_bytes == run.summary.frame_bytes) or codec in SPARSE


@pytest.mark.parametrize(("codec", "workers"), pairs(TABLE, [3, 5], one_in=3))
def test_all_gather_what_all_sum(tmp_path, codec, workers):
    config, run = recorded(tmp_path, codec, workers, allreduce="naive")
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())
    again = replace(config, replay=config.out, out=None, record=False)
    again = simulate(again, workers=workers, seed=99)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    assert (
        run.summary.framed_bytes
        == run.summary.updates * workers * (workers - 1) * 4 * run.theta.size
    )


@pytest.mark.parametrize(("codec", "way"), pairs(LENGTHS_KNOWN, ["all-pairs", "naive"], one_in=2))
def test_bytes_are_those_of_the_formula(tmp_path, codec, way):
    more = {"overlap": False, "bucket_bytes": None, "allreduce": way}
    config, run = recorded(tmp_path, codec, **more)
    sizes = [chunk.size for chunk in even_spans(run.theta.size, 3 if way == "all-pairs" else 1)]
    knobs = {name: getattr(config, f"codec_{name}") for name in TABLE[codec].knobs}
    knobs = {name: value for name, value in knobs.items() if value is not None}
    lengths = [make_codec(codec, size, **knobs).nbytes for size in sizes]
    # Every frame goes to its owner, and every mean to all others; or three frames to two others.
    copies = 2 * 2 if way == "all-pairs" else 3 * 2
    assert run.summary.frame_bytes == run.summary.updates * copies * sum(lengths)
    assert run.summary.framed_bytes == run.summary.updates * 4 * copies * sum(sizes)


@EVERY_CODEC
def test_without_numbers_the_same_bytes_are_sent_or_the_most(tmp_path, codec):
    whole = simulate(config_of(codec), workers=3)
    config = config_of(codec, record=True, out=str(tmp_path / "run"))
    bare = simulate(config, workers=3, numerics=False)
    assert bare.summary.framed_bytes == whole.summary.framed_bytes
    if codec in SPARSE:
        assert bare.summary.frame_bytes >= whole.summary.frame_bytes
    else:
        assert bare.summary.frame_bytes == whole.summary.frame_bytes
        assert bare.seconds == whole.seconds
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())


# --- equivalences -------------------------------------------------------------------------------


@EVERY_WAY
@pytest.mark.parametrize(("optimizer", "workers"), pairs(["sgd", "adam"], [2, 3, 5, 8], one_in=2))
def test_all_elements_of_top_k_are_the_dense_sum_to_the_bit(workers, optimizer, way):
    more = {"optimizer": optimizer, "allreduce": way}
    dense = simulate(config_of(**more), workers=workers)
    framed = simulate(config_of("top-k", codec_density=1.0, **more), workers=workers)
    assert framed.theta.tobytes() == dense.theta.tobytes()


@pytest.mark.parametrize("codec", ["top-k", "bfloat16"])
def test_the_order_of_events_does_not_show(codec):
    """Overlap or not, other delays: frames depend on what is summed alone."""
    runs = [simulate(config_of(codec), workers=3, seed=seed) for seed in (1, 2)]
    assert runs[0].theta.tobytes() == runs[1].theta.tobytes()


def test_each_bucket_is_cut_by_itself():
    run = simulate(config_of("sign"), workers=3)
    codec = run.workers[0].strategy._codec
    layers = [Span(208, 276), Span(0, 208)]
    assert [it.span for it in codec.sums] == layers == [it.span for it in buckets_of(layers, 64)]


# --- what a user sees ---------------------------------------------------------------------------


def lines_of(workers=3, **knobs):
    said = []
    simulate(config_of(**knobs), workers=workers, say=said.append)
    return "\n".join(said)


def test_the_first_lines_and_the_table_say_what_is_sent():
    text = lines_of(codec="sign")
    assert "all-reduce: all-pairs, because others lose or send more" in text
    assert "codec: sign, with error feedback: a worker sends 240 B an update instead of" in text
    assert "times fewer" in text
    assert "which depends on the numbers" in lines_of(codec="top-k")
    text = lines_of(2, codec="sign")
    assert "all-reduce: naive, because naive: 25 µs predicted for 50 B on 2 ranks" in text
    assert "--codec sign has no effect with one worker" in lines_of(1, codec="sign")


@EVERY_CODEC
@pytest.mark.one_in(3)
def test_every_schedule_sums_by_a_codec_or_refuses_it_in_one_line(codec):
    """The table of codecs and schedules: run, or one line, and nothing in between."""
    row = TABLE[codec]
    able = [name for name in ALGORITHMS if way_of(name, {*row.ways, *row.ways_if_asked})]
    for algorithm in ALL_REDUCES:
        config = config_of(codec, allreduce=algorithm, epochs=None, steps=2)
        if algorithm in (AUTO, *able):
            assert np.isfinite(simulate(config, workers=3).theta).all()
            continue
        with pytest.raises(ConfigError) as refused:
            simulate(config, workers=3)
        assert str(refused.value) == (
            f"--allreduce {algorithm} does not sum what --codec {codec} makes; it has "
            f"{', '.join([AUTO, *able])}"
        )


# --- broken, it must be seen --------------------------------------------------------------------


def broken(tmp_path, codec="sign", **more):
    config, _ = recorded(tmp_path, codec, **more)
    return check_run(config.out).violation


@pytest.mark.parametrize("which", [Kind.SUM_ENCODE, Kind.SUM_KEEP, Kind.SUM_DECODE])
@pytest.mark.parametrize(("way", "field"), pairs(["all-pairs", "naive", "ring"], FIELDS, one_in=2))
def test_a_history_whose_frames_contradict_each_other(good, which, field, way):
    history = good(allreduce=way)
    workers = list(history.workers)
    if field == "samples" and which == Kind.SUM_KEEP:
        pytest.skip("it has none")
    at = int(np.flatnonzero(workers[1]["kind"] == which)[7])
    workers[1] = altered(workers[1], at, field)
    assert not check(replace(history, workers=tuple(workers))).ok


@EVERY_WAY
def test_what_is_kept_back_and_forgotten(tmp_path, monkeypatch, way):
    begin = CodedSum.begin

    def forgetful(self, mine):
        for sender in self._senders:
            sender.residual.fill(0)
        return begin(self, mine)

    monkeypatch.setattr(CodedSum, "begin", forgetful)
    assert broken(tmp_path, allreduce=way).rule == "residuals"


@pytest.mark.parametrize("factor", [lambda it: 1.0, lambda it: 1 / it, lambda it: -it])
def test_what_is_kept_back_and_not_scaled_with_the_divisor(tmp_path, monkeypatch, factor):
    rescale = ErrorFeedback.rescale
    monkeypatch.setattr(ErrorFeedback, "rescale", lambda self, it: rescale(self, factor(it)))
    violation = broken(tmp_path)
    assert violation.rule == "residuals"
    assert "sent and keeps back at clock" in violation.text


@BOTH_WAYS
@pytest.mark.parametrize("codec", ["sign", "int8"])
def test_a_worker_that_decodes_otherwise(good, codec, way):
    history = good(codec, allreduce=way)
    workers = list(history.workers)
    workers[1] = events = workers[1].copy()
    for_all = (events["flag"] == BACK) | (way == "naive")
    at = int(np.flatnonzero((events["kind"] == Kind.SUM_DECODE) & for_all)[3])
    events["version"][at] ^= 1  # the digest of the numbers
    violation = check(replace(history, workers=tuple(workers))).violation
    assert violation.rule == "frames"
    assert "to other numbers than the others" in violation.text


def test_a_chunk_that_nobody_sums(good):
    """As if the second half of the vector were left out of every round."""
    history = good()
    header = replace(history.header, n=history.header.n + 1)
    violation = check(replace(history, header=header)).violation
    assert violation.rule == "frames"
    assert "the last chunk ends at element" in violation.text


@pytest.mark.parametrize(
    ("ran", "says"),
    [
        ("naive", Way.TWO_PHASES),
        ("naive", Way.HOPS),
        ("all-pairs", Way.GATHERED),
        ("all-pairs", Way.HOPS),
        ("ring", Way.TWO_PHASES),
        ("ring", Way.GATHERED),
    ],
)
def test_frames_of_the_other_way(good, ran, says):
    history = good(allreduce=ran)
    header = replace(history.header, way=says.value)
    violation = check(replace(history, header=header)).violation
    assert violation.rule == "frames"


def test_one_that_does_not_gather(good):
    """A frame that one worker never decoded, or a worker that never sent any."""
    history = good(allreduce="naive")
    for kind in (Kind.SUM_DECODE, Kind.SUM_ENCODE):
        workers = list(history.workers)
        at = int(np.flatnonzero(workers[2]["kind"] == kind)[4])
        workers[2] = np.delete(workers[2], [at, at + 1] if kind == Kind.SUM_ENCODE else at)
        violation = check(replace(history, workers=tuple(workers))).violation
        assert violation is not None, kind


def test_a_frame_of_another_length(good):
    history = good()
    config = history.header.config | {"codec_bucket": 8}
    header = replace(history.header, config=config, codec_knobs={"bucket": 8})
    violation = check(replace(history, header=header)).violation
    assert violation.rule == "frames"
    assert "sign makes" in violation.text


def test_frames_of_a_run_that_has_no_codec(good):
    history = good()
    header = replace(history.header, config=history.header.config | {"codec": None})
    assert check(replace(history, header=header)).violation.rule == "frames"


def test_a_summary_that_counts_otherwise(tmp_path):
    config, _ = recorded(tmp_path, "sign")
    path = tmp_path / "run" / "summary.json"
    text = path.read_text()
    path.write_text(text.replace('"frame_bytes": ', '"frame_bytes": 1'))
    assert "frame_bytes" in check_run(config.out).violation.text


# --- means by a codec of their own --------------------------------------------------------------

MEANS = {
    "nonzero": {}, "float16": {}, "sign": {}, "top-k": {"codec_density": 0.1}, "int8": {},
    "random-k": {"codec_density": 0.1},
}  # fmt: skip


@pytest.mark.parametrize(("codec", "reply"), pairs(["sign", "top-k", "int8"], MEANS, one_in=3))
@pytest.mark.parametrize("way", ["all-pairs", "ring"])
def test_means_may_have_a_codec_of_their_own(tmp_path, codec, reply, way):
    more = MEANS[reply] | {"codec_reply": reply} | ({"allreduce": way} if way == "ring" else {})
    config, run = recorded(tmp_path, codec, **more)
    assert run.summary.allreduce == way
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())
    again = replace(config, replay=config.out, out=None, record=False)
    again = simulate(again, workers=3, seed=99)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    assert np.isfinite(run.theta).all()


def test_a_mean_is_no_longer_than_all_contributions_or_the_numbers():
    """Bytes by formula: without numerics the union of all, and dense from where that is shorter."""
    n, workers = 4096, 4
    for density in (0.001, 0.01, 0.05, 0.2, 0.24, 0.25, 0.5, 1.0):
        config = config_of("top-k", codec_reply="nonzero")
        config = replace(config, codec_density=density, overlap=False, bucket_bytes=None)
        bare = simulate(config, workers=workers, numerics=False, parameters=n)
        k = -(-int(density * 1e6) * (n // workers) // 10**6)
        one = min(4 * n // workers, 4 * k + min(4 * k, n // workers // 8))
        mean = min(4 * n // workers, workers * one)
        a_round = workers * (workers - 1) * (2 * 20 + one + mean)
        assert bare.summary.frame_bytes == bare.summary.updates * a_round, density


@pytest.mark.parametrize("which", [Kind.SUM_ENCODE, Kind.SUM_KEEP, Kind.SUM_DECODE])
@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("field", ["version", "samples", "flag", "gone", "twice"])
def test_means_that_contradict_each_other(good, which, back, field):
    history = good("top-k", codec_reply="nonzero")
    workers = list(history.workers)
    if which == Kind.SUM_KEEP and (back or field == "samples"):
        pytest.skip("there is none")
    at = np.flatnonzero((workers[1]["kind"] == which) & (workers[1]["flag"] == back))[5]
    workers[1] = altered(workers[1], int(at), field)
    assert not check(replace(history, workers=tuple(workers))).ok


def test_a_mean_of_another_codec(good):
    history = good("top-k", codec_reply="nonzero")
    for other in ("float16", None, "sign"):
        knobs = {"bucket": 8} if other == "sign" else {}
        changed = history.header.config | {"codec_reply": other}
        header = replace(history.header, config=changed, reply_knobs=knobs)
        assert not check(replace(history, header=header)).ok


def test_where_all_sum_there_are_no_means():
    for algorithm in ("naive", "tree"):
        with pytest.raises(ConfigError) as refused:
            simulate(config_of("top-k", codec_reply="nonzero", allreduce=algorithm), workers=3)
        assert str(refused.value) == (
            f"--allreduce {algorithm} does not sum what --codec top-k --codec-reply nonzero makes; "
            "it has auto, ring, all-pairs"
        )
    two = simulate(config_of("top-k", codec_reply="nonzero"), workers=2)
    assert two.summary.allreduce == "all-pairs"


class Uneven:
    """Three workers of whom one has an empty batch amid the others, and one leaves early."""

    def __init__(self, n):
        self.n = n

    def initial(self):
        return np.zeros(self.n, np.float32)

    def batches(self, worker, workers, epoch):
        sizes = {0: [4, 4, 4, 4], 1: [4, 0, 4, 1], 2: [4, 4]}[worker]
        return [np.full(size, 10 * worker + i) for i, size in enumerate(sizes)]

    def loss_and_grad(self, theta, batch, out):
        out[:] = np.random.default_rng(int(batch[0])).standard_normal(self.n)
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


@pytest.mark.parametrize("n", [2, 40])
@pytest.mark.parametrize("reply", [None, "nonzero"])
@pytest.mark.parametrize("way", ["all-pairs", "naive", "ring"])
def test_workers_without_samples_and_fewer_elements_than_workers(tmp_path, way, reply, n):
    if (way, reply) == ("naive", "nonzero"):
        pytest.skip("there are no means")
    knobs = {"codec": "top-k", "codec_density": 0.2, "codec_reply": reply, "allreduce": way}
    more = {"mode": "allreduce", "epochs": 1, "check_every": 1, "batch_size": 4, "lr": 0.1}
    config = TrainConfig(**knobs, **more, record=True, out=str(tmp_path / "run"))
    run = simulate(config, Uneven(n), workers=3)
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())
    again = replace(config, replay=config.out, out=None, record=False)
    assert simulate(again, Uneven(n), workers=3).theta.tobytes() == run.theta.tobytes()


@pytest.mark.parametrize("codec", ["top-k", "dgc", "random-k"])
def test_what_is_kept_back_is_taken_up_where_the_divisor_changes_too(tmp_path, codec):
    """It is scaled then, after it was looked at."""
    knobs = {"codec": codec, "codec_density": 0.2, "error_feedback": codec != "dgc" or None}
    knobs |= {"codec_scaled": False, "allreduce": "tree"} if codec == "random-k" else {}
    more = {"mode": "allreduce", "epochs": 2, "check_every": 1, "batch_size": 4, "lr": 0.1}
    config = TrainConfig(**knobs, **more, record=True, out=str(tmp_path / "run"))
    simulate(config, Uneven(40), workers=3)
    history = read_history(config.out)
    assert check(history).ok
    workers = history.workers
    kept = np.flatnonzero(workers[0]["kind"] == Kind.SUM_KEEP)
    for at in kept.tolist():
        changed = workers[0].copy()
        before, after = parts(changed["version"][at])
        changed["version"][at] = pair(before ^ 1, after)
        assert not check(replace(history, workers=(changed, *workers[1:]))).ok, at
    assert len(kept) >= 8


@pytest.mark.parametrize(("codec", "algorithm"), [("top-k", "all-pairs"), ("random-k", "ring")])
def test_a_chunk_that_begins_between_two_elements(good, codec, algorithm):
    history = good(codec, allreduce=algorithm)
    workers = list(history.workers)
    at = np.flatnonzero(workers[1]["kind"] == Kind.SUM_ENCODE)[5]
    workers[1] = workers[1].copy()
    workers[1]["progress"][at] += 0.5
    outcome = check(replace(history, workers=tuple(workers)))
    assert "expected some of those from 0 to" in str(outcome.violation)
