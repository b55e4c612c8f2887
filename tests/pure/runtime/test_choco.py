"""Gossip by a codec (CHOCO): against float64, what neighbours know of each other, what is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from psrt.codec import TABLE
from psrt.config import TrainConfig, resolve
from psrt.errors import CodecError, ConfigError
from psrt.job.virtual import simulate
from psrt.optim import BLOCK
from psrt.runtime.strategies.choco import Choco
from psrt.runtime.strategies.neighbours import Neighbours
from psrt.topology import topology_of

CTA, ATC = "combine-then-adapt", "adapt-then-combine"
BOTH = pytest.mark.parametrize("order", [CTA, ATC])
GOSSIP = {"mode": "gossip", "topology": "ring"}
ABLE = [name for name, row in TABLE.items() if row.sends_differences]
#: What codecs need that have no default, or one for larger models.
KNOBS = {
    "low-rank": {"codec_rank": 1, "consensus_rate": 0.2},
    "top-k": {"codec_density": 0.25},
    "random-k": {"codec_density": 0.4},
    "threshold": {"codec_threshold": 0.05},
}


class Apart:
    """Worker i is drawn to c_i, like no other one's; by its first gradient alone if ``once``."""

    def __init__(self, workers, *, n=40, once=False):
        self.centres = np.random.default_rng(workers).standard_normal((workers, n))
        self._once = once

    def initial(self):
        return np.full(self.centres.shape[1], 0.5, np.float32)

    def matrices(self):
        return [(0, 5, 8)]

    def batches(self, worker, workers, epoch):
        return [np.array([[worker, epoch, i]]) for i in range(10)]

    def loss_and_grad(self, theta, batch, out):
        [[worker, epoch, i]] = batch
        out[:] = 0.0
        if not self._once or epoch + i == 0:
            out[:] = theta - self.centres[worker]
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


def ends(run):
    """Return what each worker ends with, θ_i."""
    return np.array([it.strategy.held[0] for it in run.workers])


def largest(vector, density):
    """Return the largest elements of a vector, the others being 0."""
    found, k = np.zeros_like(vector), math.ceil(density * vector.size)
    chosen = np.argsort(-np.abs(vector))[:k]
    found[chosen] = vector[chosen]
    return found


def oracle(problem, *, order, lr, density, rate, steps):
    """Return each worker's θ, in float64, by top-k on a ring."""
    matrix = topology_of("ring", len(problem.centres)).matrices[0]
    x = np.tile(problem.initial().astype(np.float64), (len(matrix), 1))
    known = x.copy()
    for _ in range(steps):
        gradients = x - problem.centres
        if order == ATC:
            x -= lr * gradients
        known += [largest(row, density) for row in x - known]
        x += rate * (matrix @ known - known)
        if order == CTA:
            x -= lr * gradients
    return x


@BOTH
@pytest.mark.parametrize("n", [40, BLOCK + 5])
def test_each_worker_ends_where_the_equations_say(n, order):
    problem = Apart(4, n=n)
    knobs = {"codec": "top-k", "codec_density": 0.1, "consensus_rate": 0.3}
    config = TrainConfig(**GOSSIP, order=order, lr=0.1, steps=5, **knobs)
    run = simulate(config, problem, workers=4, seed=2)
    expected = oracle(problem, order=order, lr=0.1, density=0.1, rate=0.3, steps=5)
    # Of many elements a few are nearly as large as others, which float32 then takes for larger.
    off = np.abs(ends(run) - expected) > 1e-6
    assert off.mean() < (1e-4 if n > BLOCK else 1e-12)


@pytest.mark.parametrize("codec", ABLE)
def test_workers_come_to_agree_whatever_a_codec_loses(codec):
    """Without gradients after the first; all along their mean stays, by any codec."""
    problem = Apart(6, once=True)
    config = {**GOSSIP, "codec": codec, "lr": 1.0} | KNOBS.get(codec, {})
    first, last = (
        ends(simulate(TrainConfig(**config, steps=steps), problem, workers=6)) for steps in (1, 60)
    )
    for thetas in (first, last):
        assert_allclose(thetas.mean(axis=0), problem.centres.mean(axis=0), 1e-6, 2e-6)
    apart, still = (np.linalg.norm(it - it.mean(axis=0)) for it in (first, last))
    assert still < 0.1 * apart


@BOTH
def test_a_codec_that_loses_nothing_is_none(order):
    """But for rounding: in float32 x̂ + (θ − x̂) need not be θ."""
    base = {**GOSSIP, "order": order, "lr": 0.2, "steps": 20, "hidden": (9,)}
    plain, coded = (
        ends(simulate(TrainConfig(**base, codec=codec), workers=4)) for codec in (None, "nonzero")
    )
    assert_allclose(coded, plain, 1e-6, 3e-7)


@pytest.mark.parametrize("codec", ["qsgd", "low-rank", "top-k", "bfloat16"])
def test_what_is_known_of_a_worker_has_the_same_bits_everywhere(codec):
    """Also of frames that are random, in any order of arrivals."""
    config = TrainConfig(**GOSSIP, codec=codec, steps=13, **KNOBS.get(codec, {}))
    runs = [simulate(config, Apart(5), workers=5, seed=seed) for seed in range(2)]
    assert len({run.summary.parameters_sha256 for run in runs}) == 1
    strategies = [it.strategy for it in runs[0].workers]
    for strategy in strategies:
        assert len(strategy._known) == 3
        for worker, known in strategy._known.items():
            assert np.array_equal(known, strategies[worker]._known[worker])


def test_a_frame_is_made_once_for_all_neighbours_and_counted_for_each(monkeypatch):
    made = []
    encoded = Choco._encoded

    def watched(self):
        made.append(encoded(self))
        return made[-1]

    monkeypatch.setattr(Choco, "_encoded", watched)
    config = TrainConfig(mode="gossip", topology="full", codec="int8", steps=7)
    run = simulate(config, Apart(4), workers=4)
    assert len(made) == 7 * 4
    frame = made[0].size
    for worker in run.workers:
        stats = worker.stats
        assert stats.frame_bytes == 7 * 3 * frame
        assert stats.framed_bytes == 7 * 3 * 4 * 40
        assert stats.bytes_sent == 7 * 3 * (frame + 64) + 3 * 64  # three leaves
    timing = simulate(config, workers=4, numerics=False, parameters=40)
    assert timing.summary.frame_bytes == run.summary.frame_bytes
    assert timing.summary.bytes_sent == run.summary.bytes_sent


@BOTH
def test_others_go_on_when_one_leaves_or_dies(order):
    class Uneven(Apart):
        def batches(self, worker, workers, epoch):
            return super().batches(worker, workers, epoch)[: worker + 1]

    config = {**GOSSIP, "order": order, "codec": "sign"}
    run = simulate(TrainConfig(**config, epochs=3), Uneven(5), workers=5)
    assert [it.clock for it in run.workers] == [3, 6, 9, 12, 15]
    run = simulate(TrainConfig(**config, steps=30), Apart(5), workers=5, crashes=((2, 0.004),))
    assert [it.clock == 30 for it in run.workers] == [True, True, False, True, True]


def test_one_worker_trains_alone():
    alone = simulate(TrainConfig(mode="serial", steps=5), Apart(1), workers=1).theta
    run = simulate(TrainConfig(mode="gossip", codec="sign", steps=5), Apart(1), workers=1)
    assert np.array_equal(run.theta, alone)
    assert not run.summary.frame_bytes


def test_a_frame_that_is_none_is_traced_to_who_sent_it(monkeypatch):
    send = Neighbours.send_framed

    def cut(self, at, frame):
        return send(self, at, frame[: -(self.part.rank == 1) or None])

    monkeypatch.setattr(Neighbours, "send_framed", cut)
    with pytest.raises(CodecError, match=r"^worker 1 sent for round 0: "):
        simulate(TrainConfig(**GOSSIP, codec="int8", steps=3), Apart(4), workers=4)


@pytest.mark.parametrize(
    ("knobs", "rate"),
    [
        ({"codec": "bfloat16"}, 1.0),
        ({"codec": "sign"}, 1.0),
        ({"codec": "int8", "codec_bucket": 4096}, 1.0),
        ({"codec": "top-k"}, 0.01),
        ({"codec": "random-k", "codec_density": 0.2}, 0.2),
        ({"codec": "qsgd", "codec_levels": 8, "codec_bucket": 16}, 0.8),
        ({"codec": "qsgd", "consensus_rate": 0.7}, 0.7),
    ],
)
def test_the_consensus_rate_is_what_a_codec_tells(knobs, rate):
    config = resolve(TrainConfig(mode="gossip", **knobs), ranks=3)
    assert config.consensus_rate == pytest.approx(rate)
    assert config.error_feedback is config.codec_scaled is None
    assert resolve(config, ranks=3) == config


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"topology": "one-peer-exponential"}, "another graph in each of 3 rounds, and --codec"),
        ({"topology": "exponential"}, "exponential does not weigh 2 > 0 as 0 > 2, and --codec"),
        ({"push_sum": True}, "--codec int8 has no effect with --push-sum; it belongs to --no-push"),
        ({"gradient_tracking": True}, "no effect with --gradient-tracking; it belongs to --no-gr"),
        ({"asynchronous": True}, "--codec int8 has no effect with --asynchronous and --mode goss"),
        ({"codec": "ternary"}, "--codec ternary cannot send how parameters differ .* can: float16"),
        ({"codec": "low-rank"}, "--codec low-rank needs --consensus-rate G with --mode gossip: "),
        ({"codec": "sign", "error_feedback": True}, "--error-feedback has no effect with --mode g"),
        ({"codec": "random-k", "codec_scaled": True}, "--codec-scaled has no effect with --mode "),
        ({"codec": None, "consensus_rate": 0.5}, "--consensus-rate 0.5 has no effect without --c"),
        ({"mode": "sync", "consensus_rate": 0.5}, "--consensus-rate 0.5 has no effect with --mod"),
        ({"consensus_rate": 0.0}, "consensus-rate must be above 0, got 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(knobs, message):
    with pytest.raises(ConfigError, match=message) as refused:
        simulate(TrainConfig(**({"mode": "gossip", "codec": "int8"} | knobs)), workers=5)
    assert "\n" not in str(refused.value)
