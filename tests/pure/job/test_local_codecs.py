"""Local SGD whose differences go by a codec: in virtual time, recorded, checked, repeated."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from psrt.codec import TABLE
from psrt.config import TrainConfig
from psrt.errors import ConfigError, ProtocolError
from psrt.history import Kind, read_history
from psrt.history.check import check
from psrt.history.check.run import check_run
from psrt.history.events import BACK
from psrt.job.virtual import simulate
from psrt.partition import even_spans
from psrt.runtime.strategies.controls import ControlSum
from psrt.runtime.strategies.local_sgd import ServerAverager
from psrt.runtime.strategies.outer_rules import EagerSteps, MixedDifferences
from psrt.runtime.strategies.streaming import StreamingSGD
from psrt.simulation import SimulationCosts
from psrt.simulation.sums import MessageSum
from psrt.transport.coded_sum import CodedSum, SumCodec
from support.cases import each, pairs
from support.histories import altered, codec_knobs

pytestmark = pytest.mark.rest_one_in(3)

#: The last batch of an epoch is smaller, so the divisor changes; three layers.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 8), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "mode": "local-sgd", "local_steps": 4,
}  # fmt: skip
KINDS = {
    "as a whole": {},
    "outer": {"outer_lr": 0.7},
    "post-local": {"post_local_epoch": 1},
    "fragments": {"fragments": 2},
    "in sequence": {"fragments": 2, "fragment_order": "sequential"},
    "late": {"sync_delay": 2},
    "all at once": {
        "fragments": 3, "sync_delay": 4, "mixing": 0.3, "outer_lr": 0.7, "post_local_epoch": 1,
    },
    "eager": {"eager": True},
    "eager fragments": {"eager": True, "fragments": 3, "outer_lr": 0.7},
    "means": {"fragments": 2, "codec_reply": "low-rank", "codec_rank": 1},
    "means as they are": {"sync_delay": 2, "codec_reply": "nonzero"},
    "server": {"servers": 1},
    "servers": {"servers": 2, "outer_lr": 0.7},
    "replies": {"servers": 1, "codec_reply": "sign"},
    "replies for all": {"servers": 1, "codec_reply": "top-k", "codec_reply_shared": True},
}  # fmt: skip
#: Kinds in which what is summed is the fragments side by side.
STREAMS = ("in sequence", "late", "all at once", "eager fragments")


def config_of(codec=None, kind="as a whole", **more):
    return TrainConfig(**KNOBS | KINDS[kind] | codec_knobs(codec) | more)


def recorded(tmp_path, codec, kind, workers=3, **more):
    """Return the config and the run of a recorded one."""
    config = config_of(codec, kind, record=True, out=str(tmp_path / "run"), **more)
    return config, simulate(config, workers=workers)


@pytest.mark.parametrize(("codec", "kind"), pairs(TABLE, KINDS, one_in=6))
@pytest.mark.one_in(3)
def test_it_trains_is_checked_and_repeats_to_the_bit(tmp_path, codec, kind):
    config, run = recorded(tmp_path, codec, kind)
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())
    again = simulate(replace(config, replay=config.out, out=None, record=False), workers=3, seed=99)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    assert run.summary.frame_bytes > 0
    assert np.isfinite(run.theta).all()
    for worker in run.workers if not config.servers else ():
        assert worker._port.theta.tobytes() == run.theta.tobytes()


@pytest.mark.parametrize(("codec", "kind"), pairs(TABLE, KINDS, one_in=12))
def test_without_numbers_the_same_bytes_are_sent_or_the_most(tmp_path, codec, kind):
    whole = simulate(config_of(codec, kind), workers=3)
    config = config_of(codec, kind, record=True, out=str(tmp_path / "run"))
    bare = simulate(config, workers=3, numerics=False)
    assert bare.summary.framed_bytes == whole.summary.framed_bytes
    assert bare.summary.frame_bytes >= whole.summary.frame_bytes
    if codec not in ("top-k", "threshold", "dgc", "nonzero") and "codec_reply" not in KINDS[kind]:
        assert bare.summary.frame_bytes == whole.summary.frame_bytes
    outcome = check_run(config.out)
    assert outcome.ok, "\n".join(outcome.lines())


@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_a_period_sends_the_frames_of_the_model_and_the_most_at_once_is_a_fragment(
    tmp_path, fragments
):
    config, run = recorded(
        tmp_path, "int8", "late", fragments=fragments, steps=24, epochs=None, codec_bucket=64
    )
    sizes = [[208, 136, 36][f::fragments] for f in range(fragments)]

    def frames(f):
        """As all ranks send them: two of each chunk go out, and its mean comes back to two."""
        chunks = [chunk.size for chunk in even_spans(sum(sizes[f]), 3)]
        return sum(2 * 2 * (20 + n + 4 * -(-n // 64)) for n in chunks)

    sent = defaultdict(int)
    for worker, events in enumerate(read_history(config.out).workers):
        for it in events[events["kind"] == Kind.SUM_ENCODE]:
            copies = 2 if it["flag"] == BACK else int(it["shard"] != worker)
            sent[int(it["clock"])] += copies * int(it["samples"])
    # Six periods of four steps, then what was not sent after the last step is once more.
    assert [sent[k] for k in sorted(sent)] == [
        frames(k % fragments) for k in range(7 * fragments - 1)
    ]
    assert run.summary.frame_bytes == sum(sent.values())
    period = sum(map(frames, range(fragments)))
    lines: list[str] = []
    simulate(replace(config, out=None, record=False), workers=3, say=lines.append)
    mine = run.workers[0].strategy.plan.frames
    assert abs(3 * mine.frame_bytes - period) < 30  # chunks differ by an element
    assert abs(3 * mine.peak_bytes - max(map(frames, range(fragments)))) < 30
    (line,) = (it for it in lines if it.startswith("codec:"))
    assert ("at once" in line) == (fragments > 1)
    assert "a period" in line


# --- equivalences -------------------------------------------------------------------------------


class Whole:
    """Gradients and parameters that float32 adds up exactly, in any order."""

    def initial(self):
        return np.arange(-6, 6, dtype=np.float32)

    def gradient_spans(self):
        return [(7, 12), (3, 7), (0, 3)]

    def batches(self, worker, workers, epoch):
        return [np.full(1, worker + epoch + i) for i in range(8)]

    def loss_and_grad(self, theta, batch, out, ready=None):
        out[:] = np.arange(12) % (2 + batch[0] % 5) - 1
        return 0.0

    def evaluate(self, theta):
        return {}


@each("kind", [it for it in KINDS if "codec_reply" not in KINDS[it]])
def test_a_codec_that_loses_nothing_is_none_where_differences_are_exact(kind):
    """To the bit: means of four, rates and shares that are powers of two."""
    outer = {"outer_lr": 0.5, "outer_momentum": 0.5} if "outer_lr" in KINDS[kind] else {}
    mixing = {"mixing": 0.5} if "mixing" in KINDS[kind] else {}
    more = {"lr": 0.25, "batch_size": 1, "epochs": 1, **outer, **mixing}
    plain, coded = (
        simulate(config_of(codec, kind, **more, **knobs), Whole(), workers=4)
        for codec, knobs in ((None, {}), ("nonzero", {}))
    )
    assert coded.theta.tobytes() == plain.theta.tobytes()
    assert coded.summary.frame_bytes > 0


@each("kind", ["eager", "eager fragments"])
def test_eager_steps_by_a_codec_that_loses_nothing_are_the_same_on_all_numbers(kind):
    """They are steps along differences anyway."""
    plain = simulate(config_of(None, kind, allreduce="all-pairs"), workers=3)
    coded = simulate(config_of("nonzero", kind), workers=3)
    assert coded.theta.tobytes() == plain.theta.tobytes()


@each("kind", ["as a whole", "fragments", "server"])
def test_elsewhere_it_differs_by_what_float32_rounds(kind):
    plain = simulate(config_of(None, kind, steps=8, epochs=None), workers=3)
    coded = simulate(config_of("nonzero", kind, steps=8, epochs=None), workers=3)
    assert 0 < np.abs(coded.theta - plain.theta).max() < 1e-6


@each("codec", ["sign", "qsgd", "low-rank", "dgc"])
def test_one_fragment_without_delay_is_local_sgd_to_the_bit(monkeypatch, codec):
    for more in ({}, {"outer_lr": 0.7}, {"post_local_epoch": 1}):
        usual = simulate(config_of(codec, **more), workers=3)
        with monkeypatch.context() as patch:
            patch.setattr(TrainConfig, "streams", property(lambda config: True))
            streamed = simulate(config_of(codec, **more), workers=3)
        assert isinstance(streamed.workers[0].strategy, StreamingSGD)
        assert streamed.theta.tobytes() == usual.theta.tobytes()
        assert streamed.summary.frame_bytes == usual.summary.frame_bytes


@each("kind", KINDS)
def test_one_worker_sends_nothing_and_loses_nothing(kind):
    if KINDS[kind].get("servers") or "codec_reply" in KINDS[kind]:
        return
    plain, coded = (simulate(config_of(codec, kind), workers=1) for codec in (None, "sign"))
    assert coded.theta.tobytes() == plain.theta.tobytes()
    assert coded.summary.frame_bytes == 0


# --- several fragments under way -----------------------------------------------------------------


def uneven(rank, rng):
    return 1e-3 * rng.pareto(1.2)


@each("seed", range(4))
def test_all_workers_begin_all_sums_in_the_same_order(monkeypatch, seed):
    """However late one is: over MPI calls are matched by their order."""
    began = defaultdict(list)

    def noting(method, name):
        def noted(self, *args, **kwargs):
            port = self.port if name == "control" else self._port
            which = self.number if name == "control" else self._span
            began[port.rank].append((name, which))
            return method(self, *args, **kwargs)

        return noted

    init = ControlSum.__init__

    def with_port(self, port, algorithm, number=0):
        init(self, port, algorithm, number)
        self.port, self.number = port, number

    monkeypatch.setattr(ControlSum, "__init__", with_port)
    monkeypatch.setattr(ControlSum, "begin", noting(ControlSum.begin, "control"))
    monkeypatch.setattr(MessageSum, "begin", noting(MessageSum.begin, "sum"))
    costs = SimulationCosts(compute=uneven, latency=lambda rng: rng.exponential(1e-3))
    # Four steps of delay, and a fragment sent nearly every step.
    simulate(config_of("sign", "all at once", allreduce="all-pairs"), workers=4, costs=costs,
             seed=seed)  # fmt: skip
    assert len({tuple(it) for it in began.values()}) == 1
    assert len(began) == 4


def test_who_waits_does_not_show_in_the_numbers():
    alike = [
        simulate(config_of("qsgd", kind), workers=4, seed=seed, costs=costs).theta.tobytes()
        for kind in STREAMS
        for seed, costs in (
            (0, SimulationCosts(compute=uneven, latency=lambda _: 1e-5)),
            (1, SimulationCosts(compute=lambda *_: 1e-3, latency=lambda _: 5e-3)),
        )
    ]
    assert len(set(alike)) == len(STREAMS)


def test_nobody_waits_for_weights_while_it_has_steps_to_make():
    """On links on which a sum takes about three steps, as with none."""
    slow = SimulationCosts(compute=lambda *_: 1e-3, latency=lambda _: 1e-3, per_byte=1e-6)
    seconds = {
        kind: simulate(
            config_of("bfloat16", kind, steps=48, epochs=None, local_steps=8, **more),
            workers=3, costs=slow,
        ).seconds
        for kind, more in (
            ("as a whole", {}), ("late", {"sync_delay": 6}), ("eager", {}),
            ("fragments", {"sync_delay": 8}),
        )
    }  # fmt: skip
    for kind in ("late", "eager", "fragments"):
        assert seconds[kind] < 0.9 * seconds["as a whole"], seconds


# --- what a user sees ----------------------------------------------------------------------------


def refusal(workers=3, **knobs):
    with pytest.raises(ConfigError) as refused:
        simulate(config_of(**knobs), workers=workers)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_cannot_be_is_refused_in_one_line():
    assert refusal(codec="sign", fragments=2, servers=1) == (
        "--fragments 2 has no effect with --servers 1; it belongs to --servers 0"
    )
    assert refusal(codec="sign", sync_delay=2, servers=1) == (
        "--sync-delay 2 has no effect with --servers 1; it belongs to --servers 0"
    )
    assert refusal(codec="sign", eager=True, servers=2) == (
        "--eager has no effect with --servers 2; it belongs to --servers 0"
    )
    assert "--allreduce tree does not sum what --codec sign makes" in refusal(
        codec="sign", allreduce="tree", fragments=2
    )


# --- broken, it must be seen ---------------------------------------------------------------------


def broken(tmp_path, codec="sign", kind="all at once", **more):
    config, _ = recorded(tmp_path, codec, kind, **more)
    return check_run(config.out).violation


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Return a whole one, of three fragments."""
    config, _ = recorded(tmp_path_factory.mktemp("whole"), "sign", "all at once")
    found = read_history(config.out)
    assert check(found).ok
    return found


@pytest.mark.parametrize("which", [Kind.SUM_ENCODE, Kind.SUM_KEEP, Kind.SUM_DECODE])
@each(
    "field",
    ["version", "samples", "worker", "shard", "clock", "tau", "progress", "flag", "gone", "twice"],
)
def test_a_history_whose_frames_contradict_each_other(history, which, field):
    if field == "samples" and which == Kind.SUM_KEEP:
        return  # it has none
    workers = list(history.workers)
    at = int(np.flatnonzero(workers[1]["kind"] == which)[7])
    workers[1] = altered(workers[1], at, field)
    assert not check(replace(history, workers=tuple(workers))).ok


def test_layers_that_the_header_has_otherwise(tmp_path):
    config, _ = recorded(tmp_path, "sign", "fragments")
    history = read_history(config.out)
    (_, first), (_, second), last = history.header.layers
    moved = replace(history.header, layers=((0, first - 1), (first - 1, second), last))
    assert check(replace(history, header=moved)).violation.rule == "frames"
    config = history.header.config | {"fragment_order": "sequential"}
    sequential = replace(history.header, config=config)
    assert check(replace(history, header=sequential)).violation.rule == "frames"


def test_a_round_that_was_never_encoded(tmp_path):
    config, _ = recorded(tmp_path, "int8", "late")
    history = read_history(config.out)
    framed = [Kind.SUM_ENCODE, Kind.SUM_KEEP, Kind.SUM_DECODE]
    workers = tuple(
        events[~(np.isin(events["kind"], framed) & (events["clock"] == 2))]
        for events in history.workers
    )
    violation = check(replace(history, workers=workers)).violation
    assert violation.rule == "frames"
    assert violation.text == "2 rounds were encoded, expected 3"


def test_what_a_fragment_kept_back_and_forgot(tmp_path, monkeypatch):
    begin = CodedSum.begin

    def forgetful(self, mine):
        for sender in self._forth.values():
            sender.residual.fill(0)
        return begin(self, mine)

    monkeypatch.setattr(CodedSum, "begin", forgetful)
    assert broken(tmp_path).rule == "residuals"


def test_fragments_that_share_what_is_kept_back(tmp_path, monkeypatch):
    """As if all were encoded by one and the same sender."""
    senders = {}
    init = SumCodec.__init__

    def shared(self, encoder, **more):
        def make(span, way):
            return senders.setdefault((more["worker"], span.size, way), encoder(span, way))

        init(self, make, **more)

    monkeypatch.setattr(SumCodec, "__init__", shared)
    assert broken(tmp_path).rule == "residuals"


def test_a_round_by_another_number(tmp_path, monkeypatch):
    """As if the draws of two fragments under way were the same."""
    begin = SumCodec.begin_round
    monkeypatch.setattr(
        SumCodec, "begin_round",
        lambda self, clock, epoch, total: begin(self, clock // 2, epoch, total),
    )  # fmt: skip
    assert broken(tmp_path).rule == "frames"


def test_a_fragment_that_says_it_was_taken_earlier(history):
    workers = list(history.workers)
    workers[1] = events = workers[1].copy()
    late = np.flatnonzero((events["kind"] == Kind.REDUCED) & (events["tau"] > 0))
    assert len(late)
    events["tau"][late[0]] -= 1
    assert check(replace(history, workers=tuple(workers))).violation.rule == "fragments"


def test_a_worker_that_decodes_a_fragment_otherwise(tmp_path):
    config, _ = recorded(tmp_path, "int8", "eager fragments")
    history = read_history(config.out)
    workers = list(history.workers)
    workers[1] = events = workers[1].copy()
    at = int(np.flatnonzero((events["kind"] == Kind.SUM_DECODE) & (events["flag"] == BACK))[3])
    events["version"][at] ^= 1  # the digest of the numbers
    violation = check(replace(history, workers=tuple(workers))).violation
    assert violation.rule == "frames"
    assert "to other numbers than the others" in violation.text


def test_workers_that_end_with_other_parameters(monkeypatch):
    """What the checker cannot see, the run itself does: θ must be equal to the bit."""
    take = MixedDifferences.take

    def lopsided(self, blocks, scale, *, newer):
        take(self, blocks, scale, newer=newer)
        if self._theta is lopsided.theta:
            self._base[0] += 1

    def noted(self, port, updater, mixing, init=MixedDifferences.__init__):
        init(self, port, updater, mixing)
        if port.rank == 1:
            lopsided.theta = self._theta

    lopsided.theta = None
    monkeypatch.setattr(MixedDifferences, "__init__", noted)
    monkeypatch.setattr(MixedDifferences, "take", lopsided)
    with pytest.raises(ProtocolError, match="final parameters differ"):
        simulate(config_of("sign", "late"), workers=3)


@pytest.mark.parametrize("rule", [MixedDifferences, EagerSteps])
def test_a_weight_that_is_left_out(monkeypatch, rule):
    """Seen by the numbers: workers' batches are not of the same size."""
    kind = "eager" if rule is EagerSteps else "late"
    good = simulate(config_of("bfloat16", kind), workers=3).theta
    bring = rule.bring
    monkeypatch.setattr(
        rule, "bring", lambda self, blocks, weight: bring(self, blocks, float(weight > 0))
    )
    assert np.abs(simulate(config_of("bfloat16", kind), workers=3).theta - good).max() > 1e-5


def test_a_worker_that_does_not_go_back_before_a_reply_is_added(monkeypatch):
    """Then its own steps would count twice: the frames of replies are differences."""
    good = simulate(config_of("bfloat16", "server", codec_reply="bfloat16"), workers=2)
    plain = simulate(config_of("bfloat16", "server"), workers=2)
    assert np.abs(good.theta - plain.theta).max() < 2e-3

    async def staying(self, step):
        np.subtract(self._base, self._theta, out=self._buffer)
        result = await self._push_pull.step(step)
        np.copyto(self._base, self._theta)
        return result

    monkeypatch.setattr(ServerAverager, "average", staying)
    bad = simulate(config_of("bfloat16", "server", codec_reply="bfloat16"), workers=2)
    assert np.abs(bad.theta - plain.theta).max() > 1e-2
