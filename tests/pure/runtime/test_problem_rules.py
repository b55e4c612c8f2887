"""A problem that breaks a rule is one line that says which, and what was expected."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.core.errors import ConfigError, DivergedError, ProtocolError
from psrt.job.virtual import simulate
from psrt.model import MLP
from psrt.model.dense import Dense
from support.cases import each

N = 3
#: The end of a line about a write: where it was.
HERE = r".*test_problem_rules\.py, line \d+$"


class Sound:
    """θ goes to zero."""

    def initial(self):
        return np.ones(N, np.float32)

    def batches(self, worker, workers, epoch):
        return [(np.zeros((4, 2)), np.zeros(4))] * 2

    def loss_and_grad(self, theta, batch, out):
        out[:] = theta
        return float(theta @ theta)

    def evaluate(self, theta):
        return {"loss": float(theta @ theta)}


def broken(**methods):
    return type("Broken", (Sound,), {k: f and staticmethod(f) for k, f in methods.items()})()


def train(problem, lr=0.1):
    return psrt.run(TrainConfig(mode="serial", epochs=2, lr=lr), problem)


@each(
    "methods",
    [
        {},
        {"loss_and_grad": lambda theta, batch, out: (np.copyto(out, theta), np.float32(1))[1]},
        {"loss_and_grad": lambda theta, batch, out: (np.copyto(out, theta), np.array(1.0))[1]},
        {"evaluate": lambda theta: {"loss": np.array(0.5), "accuracy": np.float32(1), "f1": 1}},
        {"evaluate": lambda theta: {}},
        {"samples": lambda batch: np.int64(7), "batches": lambda *_: iter([{"x": 1}])},
    ],
)
def test_what_keeps_the_rules_trains(methods):
    train(broken(**methods))


def test_a_step_of_one_sample_is_an_update_and_one_of_none_is_not():
    counted = broken(batches=lambda *_: [0, 1, 0, 3], samples=int)
    for mode, workers in (("serial", 1), ("allreduce", 2)):
        done = simulate(TrainConfig(mode=mode, epochs=2), counted, workers=workers)
        assert (done.summary.steps, done.summary.updates) == (8, 4)


def in_place(theta, batch, out):
    theta[1:] -= 0.1
    out[:] = theta
    return 0.5


def left_out(theta, batch, out):
    out[: N - 1] = theta[: N - 1]
    return 0.5


def halves(theta):
    theta /= 2
    return {"loss": 0.5}


@each(
    ("methods", "message"),
    [
        ({"evaluate": None}, r"the problem, a Broken, has no evaluate\(\)"),
        ({"initial": lambda: np.full(3, np.nan, "f4")}, r"^the initial parameters are nan or inf"),
        ({"initial": lambda: np.ones(3)}, r"initial\(\) must return a flat float32 .* float64"),
        ({"initial": lambda: np.ones((3, 1), np.float32)}, r"initial\(\) must .* \(3, 1\)"),
        ({"loss_and_grad": lambda *_: np.ones(30)}, "returned an ndarray, expected the mean loss"),
        ({"loss_and_grad": lambda *_: None}, r"loss_and_grad\(\) returned None, expected the mean"),
        ({"loss_and_grad": left_out}, r"left 1 of 3 elements of out unwritten, the first is 2"),
        ({"loss_and_grad": in_place}, r"wrote to theta at step 1 on .*, expected that it"),
        ({"evaluate": halves}, rf"^evaluate\(\) wrote to theta, expected {HERE}"),
        ({"evaluate": lambda theta: None}, r"evaluate\(\) returned None, expected a dict"),
        ({"evaluate": lambda theta: {"loss": "low"}}, r"evaluate\(\) gives a str, 'low' for loss"),
        ({"evaluate": lambda theta: {"accuracy": 94.7}}, r"an accuracy of 94.7, expected one in"),
        ({"batches": lambda *_: None}, r"batches\(\) returned None, expected an iterable"),
        ({"batches": lambda *_: [{"x": 1, "y": 2}]}, r"batches\(\) gave a dict, .* samples\("),
        ({"batches": lambda *_: [3]}, r"batches\(\) gave an int, 3, whose samples"),
        ({"samples": lambda batch: None}, r"samples\(\) returned None, expected a whole number"),
        ({"batches": lambda *_: []}, r"nothing was trained: batches\(\) gave no worker any batch"),
    ],
)
def test_a_broken_rule_is_one_line(methods, message):
    with pytest.raises(ConfigError, match=message) as caught:
        train(broken(**methods))
    assert "\n" not in str(caught.value)


def test_what_is_no_problem_and_no_config():
    with pytest.raises(ConfigError, match=r"the problem, an object, has no initial\(\)"):
        train(object())
    with pytest.raises(ConfigError, match=r"the config is a .*, expected a TrainConfig"):
        psrt.run(Sound(), TrainConfig())


#: Modes in which workers share θ, have one of their own, or take steps of their own.
LATE_MODES = ["serial", "sync", "async", "softsync", "local-sgd", "easgd", "allreduce", "gossip"]
WRITES = {
    "assigned": lambda theta: theta.__setitem__(1, 0.5),
    "added": lambda theta: theta[1:].__iadd__(np.float32(0.1)),
    "clipped": lambda theta: np.clip(theta, -0.1, 0.1, out=theta),
    "copied": lambda theta: np.copyto(theta, 0.5),
}


@each(("mode", "how"), zip(LATE_MODES, [*WRITES] * 2, strict=True))
def test_writing_to_theta_after_the_first_step_shows_at_once(mode, how):
    """The worker and its step are named, and the line that wrote."""
    calls = 0

    def late(theta, batch, out):
        nonlocal calls
        calls += 1
        out[:] = theta
        if calls > 4:  # of at most three workers
            WRITES[how](theta)
        return 0.5

    workers = 1 if mode == "serial" else 3
    line = rf"loss_and_grad\(\) wrote to theta at step \d on worker \d .*, expected .*only: {HERE}"
    with pytest.raises(ConfigError, match=line) as caught:
        simulate(TrainConfig(mode=mode, epochs=4), broken(loss_and_grad=late), workers=workers)
    assert calls == 5
    assert "\n" not in str(caught.value)


@each(
    ("value", "line"),
    [
        (np.nan, "the gradient is nan at step 1 on worker 0"),
        (-np.inf, "the gradient is -inf at step 1 on worker 0"),
        (3e38, "the parameters at the end are nan or infinite"),
    ],
)
def test_a_gradient_that_is_no_number_ends_the_run_though_the_loss_is_one(value, line):
    def poisoned(theta, batch, out):
        out.fill(value)
        return 0.5

    problem = broken(loss_and_grad=poisoned, evaluate=lambda theta: {"loss": 0.5})
    with pytest.raises(DivergedError, match=line):
        train(problem, lr=2.0)


# --- models that are cut ------------------------------------------------------------------------


class Chain:
    """A chain whose batches are given, one after the other, whoever asks."""

    def __init__(self, *batches):
        self.model = model = MLP([3, 4, 2], batch_size=8)
        self.given = iter(batches)
        self.layers, self.loss, self.tensors = model.layers, model.loss, model.tensors

    def initial(self):
        return self.model.initial(np.random.default_rng(0))

    def batches(self, worker, workers, epoch):
        return [next(self.given)]

    def loss_and_grad(self, theta, batch, out):
        raise AssertionError("a part of a gradient is computed with the other stages")

    def evaluate(self, theta):
        return {"loss": 0.0}


def pair(rows, width=3, dtype=np.float32, targets=None):
    return np.ones((rows, width), dtype), np.zeros(rows if targets is None else targets, np.int64)


def simulate_cut(problem, workers, **more):
    knobs = {"parallel": "pipeline:2", "batch_size": 8, "epochs": 8, "micro_batches": 2}
    simulate(TrainConfig(**knobs | more), problem, workers=workers)


@each(
    ("batches", "stages", "message"),
    [
        ([(*pair(8), 1)], 1, "not a pair of arrays"),
        ([pair(8, width=4)], 1, "expected float32 rows of 3 and as many targets"),
        ([pair(8, dtype=np.float64)], 1, r"float64 \(8, 3\) with 8 targets"),
        ([pair(8, targets=7)], 1, "with 7 targets"),
        ([pair(8), pair(6)], 2, r"has \d rows in the stage before and \d in stage 1"),
    ],
)
def test_batches_that_cannot_be(batches, stages, message):
    with pytest.raises((ConfigError, ProtocolError), match=message) as caught:
        simulate_cut(Chain(*batches), stages, parallel=f"pipeline:{stages}")
    assert "\n" not in str(caught.value)


def halve(params):
    params *= 0.5


#: Workers, and ways to compute a gradient layer by layer.
LAYERED = [
    (1, {"parallel": "pipeline:1"}),
    (2, {}),
    (2, {"pipeline_schedule": "pipedream", "micro_batches": None}),
    (4, {"mode": "allreduce:shard=gradients", "defer_weights": True}),
    (2, {"parallel": None, "mode": "allreduce:shard=gradients", "micro_batches": None}),
    (2, {"parallel": None, "mode": "allreduce:shard=parameters", "micro_batches": None}),
]
WROTE = rf"^a layer wrote to theta at step \d on worker \d.*: {HERE}"
NAN = r"the gradient of layers\.1\.bias is nan at step [2-6] on worker \d \("
#: What the last layer does in addition, in which pass, from which call on, and what is said of it.
BAD = [
    ("backward_weight", lambda dy, x, y, saved, out: out.__setitem__(-1, np.nan), 5, NAN),
    ("forward", lambda x, params, out, saved: halve(params), 3, WROTE),
    ("backward_input", lambda dy, x, y, saved, params, dx: halve(params), 1, WROTE),
]


@each(("workers", "more"), LAYERED)
@each(("name", "does", "first", "line"), BAD)
def test_layers_that_break_a_rule_in_any_pass(workers, more, name, does, first, line):
    method, calls = getattr(Dense, name), itertools.count(1)

    def bad(layer, *given):
        method(layer, *given)
        if layer.outputs == 2 and next(calls) >= first:
            does(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dense, name, bad)
        with pytest.raises(DivergedError if line is NAN else ConfigError, match=line):
            simulate_cut(Chain(*[pair(8)] * 80), workers, **more)


def test_a_layer_that_leaves_its_gradient_out(monkeypatch):
    monkeypatch.setattr(Dense, "backward_weight", lambda *_: None)
    line = r"^backward_weight\(\) of the layers left 26 of 26 elements of out unwritten"
    with pytest.raises(ConfigError, match=line):
        simulate_cut(Chain(pair(8)), 1, parallel="pipeline:1", mode="allreduce:overlap=false")
