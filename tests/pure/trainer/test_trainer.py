"""A loop of the user's own in one process: what it may do, and what it is told at once."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from psrt import ConfigError, DivergedError, TrainConfig, Trainer
from psrt.trainer.parameters import parameters_of
from support.cases import each

CONFIG = TrainConfig(mode="serial", epochs=2, lr=0.5)


TWO = {"w": np.zeros(2, np.float32)}


def one_step(gradients, parameters):
    with Trainer(CONFIG, parameters) as trainer:
        trainer.epoch()
        trainer.step(gradients, samples=1)


def test_a_step_is_a_step_of_the_optimizer():
    config = TrainConfig(mode="serial", epochs=3, lr=0.1, optimizer="momentum:momentum=0.5")
    theta, speed = np.ones(4), np.zeros(4)
    with Trainer(config, np.ones(4, np.float32)) as trainer:
        assert (trainer.worker, trainer.workers, trainer.serves) == (0, 1, False)
        while trainer.epoch():
            for _ in range(5):
                gradient = trainer.theta * np.arange(4, dtype=np.float32)
                assert trainer.step(gradient, samples=2, loss=float(gradient.sum()))
                speed = 0.5 * speed + theta * np.arange(4)
                theta = theta - 0.1 * speed
                np.testing.assert_allclose(trainer.theta, theta, rtol=1e-5)
    assert (trainer.steps, trainer.epochs) == (15, 3)
    assert trainer.result.summary.samples == 30
    np.testing.assert_array_equal(trainer.result.theta, trainer.theta)
    assert not trainer.epoch()


def test_a_loop_that_breaks_off_may_still_have_metrics():
    config = TrainConfig(mode="serial", steps=3)
    with Trainer(config, np.ones(2, np.float32)) as trainer:
        while trainer.epoch():
            while trainer.step(np.ones(2, np.float32), samples=1):
                pass
            trainer.metrics(loss=1.0)
        with pytest.raises(ConfigError, match="training is over"):
            trainer.metrics(loss=1.0)
    assert trainer.result.summary.steps == 3


def test_a_schedule_moves_on_within_an_epoch_whose_steps_are_known():
    config = TrainConfig(mode="serial", epochs=2, lr=1.0, schedule="cosine")
    rates = {}
    for steps in (4, 0):
        before = np.float32(0)
        with Trainer(config, np.zeros(1, np.float32)) as trainer:
            while trainer.epoch(steps=steps):
                for _ in range(4):
                    trainer.step(-np.ones(1, np.float32), samples=1)
                    rates.setdefault(steps, []).append(float(trainer.theta[0] - before))
                    before = trainer.theta[0]
    assert len(set(np.round(rates[4], 5))) == 8
    assert len(set(np.round(rates[0], 5))) == 2


def test_a_part_of_an_epoch_needs_the_number_of_its_steps():
    config, one = TrainConfig(mode="serial", epochs=1.5, lr=1.0), np.ones(1, np.float32)
    with Trainer(config, one) as trainer:
        while trainer.epoch(steps=4):
            for _ in range(4):
                if not trainer.step(one, samples=1):
                    break
    assert trainer.steps == 6
    for other, line in (
        (config, r"--epochs 1\.5 ends within an epoch, and epoch\(\) got"),
        (CONFIG, r"^nothing was trained: no worker called step\(\)"),
    ):
        with pytest.raises(ConfigError, match=line), Trainer(other, one) as trainer:
            trainer.epoch()


class Pair(NamedTuple):
    weight: np.ndarray
    bias: np.ndarray


def test_a_tree_keeps_its_form():
    tree = {
        "b": Pair(np.full((2, 3), 7, np.float32), np.zeros(3, np.float32)),
        "a": [np.float32(5)],
    }
    with Trainer(CONFIG, tree) as trainer:
        while trainer.epoch():
            here = trainer.parameters
            assert type(here["b"]) is Pair
            assert here["b"].weight.shape == (2, 3)
            with pytest.raises(ValueError, match="read-only"):
                here["b"].weight[:] = 0
            trainer.step({"b": Pair(here["b"].weight, here["b"].bias + 1), "a": [1.0]}, samples=1)
    np.testing.assert_array_equal(trainer.parameters["b"].weight, np.full((2, 3), 7 / 4))
    np.testing.assert_array_equal(trainer.parameters["b"].bias, np.full(3, -0.75))
    assert trainer.parameters["a"][0] == 4
    np.testing.assert_array_equal(trainer.theta, [4, *[7 / 4] * 6, *[-0.75] * 3])


@each(("parameters", "gradients", "line"), [
    (np.zeros(3), None, "the parameters are float64, expected float32 arrays"),
    ({"w": [1.0]}, None, "the parameters['w'][0] are float, expected float32 arrays"),
    ([], None, "the parameters have no numbers, expected a tree"),
    (np.array([np.nan], np.float32), None, "the initial parameters are nan"),
    ({1: np.zeros(1, np.float32), "a": np.zeros(1, np.float32)}, None,
     "the parameters are no tree: keys beside each other are int and str"),
    (TWO, {"w": np.zeros(3, np.float32)},
     "the gradients['w'] are of shape (3,), expected (2,)"),
    (TWO, {"v": np.zeros(2, np.float32)},
    "the gradients have another tree structure than the parameters"),
    (TWO, None, "the gradients have another tree structure than the parameters"),
    (TWO, {"w": np.zeros(2, complex)}, "the gradients['w'] are complex128, expected float32"),
])  # fmt: skip
def test_what_are_no_parameters_or_gradients_is_one_line(parameters, gradients, line):
    with pytest.raises(ConfigError) as caught:
        one_step(gradients, parameters)
    assert str(caught.value).startswith(line)


def test_the_kernel_of_a_convolution_is_a_matrix_with_a_column_for_each_output():
    kernel = np.zeros((3, 3, 2, 5), np.float32)
    found = parameters_of({"b": np.zeros(5, np.float32), "w": kernel}).matrices()
    assert [(it.start, it.rows, it.columns) for it in found] == [(5, 18, 5)]


@each(
    ("given", "line"),
    [
        *(({"samples": it}, "samples of a step: got") for it in (-1, 0.5, None, "3", 1 << 70)),
        ({"samples": 1, "loss": "low"}, "loss: got str, expected a number"),
    ],
)
def test_samples_and_losses_are_numbers(given, line):
    one = np.ones(1, np.float32)
    with Trainer(CONFIG, one) as trainer:
        trainer.epoch(np.int64(3))
        trainer.step(one, samples=np.int32(2), loss=np.float32(1))
        with pytest.raises(ConfigError, match=line):
            trainer.step(one, **given)


def test_calls_out_of_order_are_one_line():
    one = np.zeros(1, np.float32)
    trainer = Trainer(CONFIG, one)
    for early in (trainer.epoch, lambda: trainer.step(one, samples=1), lambda: trainer.theta):
        with pytest.raises(ConfigError, match="a Trainer is entered first"):
            early()
    with pytest.raises(ConfigError, match="is part of an epoch"), trainer:
        trainer.step(one, samples=1)
    with pytest.raises(ConfigError, match="a Trainer trains once"), trainer:
        pass


# What no run can honour is told at once.


#: One rank, whose parameters are all workers' in the one, and its own in the other.
SHARED = TrainConfig(mode="allreduce", epochs=2, lr=0.5)
OWN = TrainConfig(mode="serial", epochs=2, lr=0.5)


def looped(body, config=SHARED, given=None, steps=3):
    """Run a loop; return the trainer, and how often the body was run."""
    given = {"w": np.ones(2, np.float32), "b": np.ones(1, np.float32)} if given is None else given
    count = 0
    with Trainer(config, given) as trainer:
        while trainer.epoch():
            for _ in range(steps):
                count += 1
                body(trainer, given)
    return trainer, count


def told(error, line, body, most=2, **more):
    """Check that a loop ends with an error, in its first steps."""
    count = 0

    def counted(*arguments):
        nonlocal count
        count += 1
        body(*arguments)

    with pytest.raises(error, match=line):
        looped(counted, **more)
    assert count <= most


def ones(tree):
    return {name: np.ones_like(it) for name, it in tree.items()}


def around(change, *, after):
    """Return a body of a loop that changes something before its step, or after it."""

    def body(trainer, given):
        if after:
            trainer.step(ones(given), samples=1)
        change(trainer, given)
        if not after:
            trainer.step(ones(given), samples=1)

    return body


def in_place(trainer, given):
    it = trainer.parameters["b"]
    it.flags.writeable = True
    it += 1


def replaced(trainer, given):
    trainer.parameters["w"] = trainer.parameters["w"] * 2


def of_its_own(trainer, given):
    for it in given.values():
        it -= 0.25


@each(("writes", "name"), [(in_place, "b"), (replaced, "w")])
@each("steps", [1, 3])
@each("after", [False, True])
def test_parameters_that_are_all_workers_are_not_written_to(writes, name, steps, after):
    line = rf"wrote to the parameters, to \['{name}'\] first, which all"
    told(ConfigError, line, around(writes, after=after), steps=steps)


def test_what_a_loop_writes_to_parameters_of_its_own_counts():
    def clipped(trainer, given):
        gradients = {"w": np.array([1, -1], np.float32), "b": np.zeros(1, np.float32)}
        trainer.step(gradients, samples=1)
        trainer.parameters["w"] = np.clip(trainer.parameters["w"], 0.75, 1.25)

    trainer, count = looped(clipped, config=OWN)
    assert count == 6
    np.testing.assert_array_equal(trainer.parameters["w"], [0.75, 1.25])
    np.testing.assert_array_equal(trainer.result.theta, trainer.theta)
    assert all(np.isnan(it.loss) for it in trainer.result.records)  # it gave none


@each("after", [True, False])
@each("config", [SHARED, OWN])
def test_the_arrays_that_were_given_are_not_what_is_trained(after, config):
    line = r"wrote to the parameters\['b'\] that it gave"
    told(ConfigError, line, around(of_its_own, after=after), config=config)

    def copied(trainer, given):  # where the loop keeps what there is now
        trainer.step(ones(given), samples=1)
        for name, it in given.items():
            np.copyto(it, trainer.parameters[name])

    looped(copied, config=config)


def test_a_loss_is_of_parameters_that_the_loop_has_asked_for():
    def constant(trainer, given):
        trainer.step(ones(given), samples=1, loss=1.0)

    told(ConfigError, "passes a loss but never read the parameters", constant)


def test_a_first_gradient_is_not_zero():
    def wrong(trainer, given):
        trainer.step({name: it * 0 for name, it in given.items()}, samples=1)

    told(ConfigError, "the first gradient is exactly zero", wrong, most=1)

    def kept(trainer, given):  # a margin
        trainer.parameters["w"]
        trainer.step({name: it * 0 for name, it in given.items()}, samples=1, loss=0.0)

    looped(kept)


@each("value", [np.nan, -np.inf])
@each("config", [SHARED, OWN, dataclasses.replace(OWN, clip_norm=1.0)])
def test_a_gradient_that_is_no_number_is_told_where_it_is_made(value, config):
    def broken(trainer, given):
        gradients = ones(given)
        if trainer.steps:
            gradients["w"][1] = value
        trainer.step(gradients, samples=1)

    line = rf"the gradient of \['w'\] is {value} at step 2 on worker 0"
    told(DivergedError, line, broken, config=config)
