"""A problem that breaks a rule is one line that says which and what was expected."""

from __future__ import annotations

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.errors import ConfigError, DivergedError

N = 3


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
    return type("Broken", (Sound,), {k: staticmethod(f) for k, f in methods.items()})()


def train(problem, lr=0.1):
    config = TrainConfig(mode="serial", epochs=2, lr=lr)
    return psrt.run(config, problem)


@pytest.mark.parametrize(
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


def in_place(theta, batch, out):
    theta[1:] -= 0.1
    out[:] = theta
    return 0.5


def left_out(theta, batch, out):
    out[: N - 1] = theta[: N - 1]
    return 0.5


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"evaluate": None}, r"the problem, a Broken, has no evaluate\(\)"),
        (
            {"initial": lambda: np.full(3, np.nan, np.float32)},
            r"^the initial parameters are nan or infinite$",
        ),
        ({"initial": lambda: np.ones(3)}, r"initial\(\) must return a flat float32 .* float64"),
        ({"initial": lambda: np.ones((3, 1), np.float32)}, r"initial\(\) must .* \(3, 1\)"),
        (
            {"loss_and_grad": lambda *_: (0.5, 2)},
            r"loss_and_grad\(\) returned a tuple, ",
        ),
        ({"loss_and_grad": lambda *_: None}, r"loss_and_grad\(\) returned None, expected the mean"),
        ({"loss_and_grad": lambda *_: 0.5}, r"loss_and_grad\(\) left 3 of 3 elements of out"),
        ({"loss_and_grad": left_out}, r"left 1 of 3 elements of out unwritten, the first is 2"),
        (
            {"loss_and_grad": in_place},
            r"wrote to theta at step 1 on .*, expected that it",
        ),
        ({"evaluate": lambda theta: 0.5}, r"evaluate\(\) returned a float, 0.5, expected a dict"),
        ({"evaluate": lambda theta: None}, r"evaluate\(\) returned None, expected a dict"),
        ({"evaluate": lambda theta: {"loss": "low"}}, r"evaluate\(\) gives a str, 'low' for loss"),
        ({"evaluate": lambda theta: {"loss": np.ones(2)}}, r"evaluate\(\) gives a.* for loss"),
        ({"evaluate": lambda theta: {"accuracy": None}}, r"evaluate\(\) gives None for accuracy"),
        ({"evaluate": lambda theta: {"accuracy": 94.7}}, r"an accuracy of 94.7, expected one in"),
        ({"batches": lambda *_: None}, r"batches\(\) returned None, expected an iterable"),
        (
            {"batches": lambda *_: [{"x": 1, "y": 2}]},
            r"batches\(\) gave a dict, .* samples\(",
        ),
        (
            {"batches": lambda *_: [3]},
            r"batches\(\) gave an int, 3, whose samples",
        ),
        ({"batches": lambda *_: [()]}, r"batches\(\) gave a tuple, \(\), whose"),
        ({"batches": lambda *_: ["abc"]}, r"batches\(\) gave a str"),
        ({"samples": lambda batch: None}, r"samples\(\) returned None, expected a whole number"),
        ({"batches": lambda *_: []}, r"nothing was trained: batches\(\) gave no worker any batch"),
    ],
)
def test_a_broken_rule_is_one_line(methods, message):
    with pytest.raises(ConfigError, match=message) as caught:
        train(broken(**methods) if None not in methods.values() else without(methods))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [Sound(), {"epochs": 1}, TrainConfig])
def test_what_is_given_for_the_config(given):
    with pytest.raises(ConfigError, match=r"the config is a .*, expected a TrainConfig"):
        psrt.run(given, TrainConfig())
    with pytest.raises(ConfigError, match="expected a TrainConfig"):
        psrt.simulate(given, Sound(), workers=2)


def without(methods):
    return type("Broken", (Sound,), methods)()


@pytest.mark.parametrize("mode", ["sync", "async", "local-sgd", "allreduce"])
def test_writing_to_theta_shows_in_every_mode(mode):
    """Simulated workers share one process: only what the gradient itself writes may count."""
    config = TrainConfig(mode=mode, epochs=2, lr=0.1)
    psrt.simulate(config, Sound(), workers=3)
    with pytest.raises(ConfigError, match="wrote to theta"):
        psrt.simulate(config, broken(loss_and_grad=in_place), workers=3)


#: Modes in which workers share θ, have one of their own, or take steps of their own.
LATE_MODES = [
    "serial", "sync", "async", "ssp", "softsync", "local-sgd", "easgd", "allreduce", "gossip",
]  # fmt: skip


@pytest.mark.parametrize("mode", LATE_MODES)
@pytest.mark.parametrize("how", ["assigned", "added", "clipped", "copied"])
def test_writing_to_theta_after_the_first_step_shows_at_once(mode, how):
    """The worker and its step are named, and the line that wrote."""
    calls = 0

    def late(theta, batch, out):
        nonlocal calls
        calls += 1
        out[:] = theta
        if calls > 4:  # of at most three workers
            {
                "assigned": lambda: theta.__setitem__(1, 0.5),
                "added": lambda: theta[1:].__iadd__(np.float32(0.1)),
                "clipped": lambda: np.clip(theta, -0.1, 0.1, out=theta),
                "copied": lambda: np.copyto(theta, 0.5),
            }[how]()
        return 0.5

    workers = 1 if mode == "serial" else 3
    config = TrainConfig(mode=mode, epochs=4, lr=0.1)
    line = (
        r"loss_and_grad\(\) wrote to theta at step \d on worker \d .*, expected .*"
        r"read-only: .*test_problem_rules\.py, line \d+$"
    )
    with pytest.raises(ConfigError, match=line) as caught:
        psrt.simulate(config, broken(loss_and_grad=late), workers=workers)
    assert calls == 5
    assert "\n" not in str(caught.value)


def test_an_evaluation_that_writes_to_theta_shows():
    def evaluate(theta):
        theta /= 2
        return {"loss": 0.5}

    with pytest.raises(
        ConfigError, match=r"^evaluate\(\) wrote to theta, expected .*py, line \d+$"
    ):
        train(broken(evaluate=evaluate))


def test_other_arrays_that_are_read_only_are_named_by_their_place():
    """Numpy does not say which array it was, so the line that failed is in the text."""
    rows = np.ones(3)
    rows.flags.writeable = False

    def scaled(theta, batch, out):
        np.multiply(rows, 2, out=rows)
        return 0.5

    with pytest.raises(ConfigError, match=r"test_problem_rules\.py, line \d+$"):
        train(broken(loss_and_grad=scaled))

    def other(theta, batch, out):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match=r"^no such thing$"):
        train(broken(loss_and_grad=other))


def test_attributes_with_the_names_of_methods_that_may_be_missing(tmp_path):
    problem = Sound()
    for name in (
        "samples",
        "tensors",
        "fingerprint",
        "batch_plan",
        "gradient_spans",
        "matrices",
        "labels",
    ):
        setattr(problem, name, 1000)
    out = tmp_path / "run"
    run = psrt.run(TrainConfig(mode="serial", steps=2, out=str(out), record=True), problem)
    assert run.summary.steps == 2
    assert (out / "model.safetensors").exists()


def test_a_problem_has_its_article():
    with pytest.raises(ConfigError, match=r"the problem, an object, has no initial\(\)"):
        train(object())
    with pytest.raises(ConfigError, match=r"returned an ndarray, expected the mean loss"):
        train(broken(loss_and_grad=lambda *_: np.ones(30)))


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("mode", ["serial", "sync", "local-sgd", "allreduce"])
def test_a_problem_with_parts_is_always_given_ready(mode):
    """None where the gradient is needed as a whole."""
    given = []

    def parted(theta, batch, out, ready):
        given.append(ready)
        out.fill(0.0)
        return 0.5

    problem = broken(loss_and_grad=parted)
    problem.gradient_spans = lambda: [(0, len(problem.initial()))]
    workers = 1 if mode == "serial" else 2
    psrt.simulate(TrainConfig(mode=mode, steps=1), problem, workers=workers)
    assert given == [None] * workers
