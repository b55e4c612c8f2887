"""A loop of the user's own in one process, and what parameters may be."""

from typing import NamedTuple

import numpy as np
import pytest

import psrt
from psrt import ConfigError, TrainConfig, Trainer
from psrt.trainer.parameters import parameters_of

CONFIG = TrainConfig(mode="serial", epochs=2, lr=0.5)


def one_step(gradients, parameters, samples=1):
    with Trainer(CONFIG, parameters) as trainer:
        trainer.epoch()
        trainer.step(gradients, samples=samples)


def test_a_step_is_a_step_of_the_optimizer():
    config = TrainConfig(mode="serial", epochs=3, lr=0.1, optimizer="momentum", momentum=0.5)
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


@pytest.mark.parametrize("shape", [(2,), ()])
def test_no_gradient_of_a_leaf_is_not_told_as_zero(shape):
    given = {"w": np.ones(2, np.float32), "b": np.ones(shape, np.float32)}
    with pytest.raises(ConfigError, match=r"the gradients(\['b'\] are .*, expected| are no tree)"):
        one_step({"w": given["w"], "b": None}, given)


def test_without_a_loss_none_is_in_the_metrics():
    with Trainer(CONFIG, np.zeros(1, np.float32)) as trainer:
        while trainer.epoch():
            trainer.step(np.ones(1, np.float32), samples=1)
    assert not np.shares_memory(trainer.theta, trainer.result.theta)
    assert np.isnan(trainer.result.summary.train_loss)
    assert all(np.isnan(it.loss) for it in trainer.result.records)


def test_a_part_of_an_epoch_needs_the_number_of_its_steps():
    config = TrainConfig(mode="serial", epochs=1.5, lr=1.0)
    with Trainer(config, np.zeros(1, np.float32)) as trainer:
        while trainer.epoch(steps=4):
            for _ in range(4):
                if not trainer.step(np.ones(1, np.float32), samples=1):
                    break
    assert trainer.steps == 6
    with (
        pytest.raises(ConfigError, match=r"--epochs 1\.5 ends within an epoch, and epoch\(\) was"),
        Trainer(config, np.zeros(1, np.float32)) as trainer,
    ):
        trainer.epoch()


def test_who_never_takes_a_step_is_told_in_the_words_of_a_loop():
    with (
        pytest.raises(ConfigError, match=r"^nothing was trained: no worker called step\(\)"),
        Trainer(CONFIG, np.zeros(1, np.float32)) as trainer,
    ):
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


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        (np.zeros(3), "the parameters are float64, expected float32 arrays"),
        ({"w": [1.0]}, "the parameters['w'][0] are float, expected float32 arrays"),
        ([], "the parameters have no numbers, expected a tree"),
        (np.zeros(0, np.float32), "the parameters have no numbers"),
        (np.array([np.nan], np.float32), "the initial parameters are nan"),
    ],
)
def test_what_are_no_parameters_is_one_line(parameters, line):
    with pytest.raises(ConfigError) as caught, Trainer(CONFIG, parameters):
        pass
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("gradients", "line"),
    [
        ({"w": np.zeros(3, np.float32)}, "the gradients['w'] are of shape (3,), expected (2,)"),
        ({"v": np.zeros(2, np.float32)}, "the gradients are no tree like that of the parameters"),
        (None, "the gradients are no tree like that of the parameters"),
        ({"w": np.zeros(2, complex)}, "the gradients['w'] are complex128, expected float32"),
    ],
)
def test_what_are_no_gradients_is_one_line(gradients, line):
    with pytest.raises(ConfigError) as caught:
        one_step(gradients, {"w": np.zeros(2, np.float32)})
    assert str(caught.value).startswith(line)


def test_calls_out_of_order_are_one_line():
    one = np.zeros(1, np.float32)
    trainer = Trainer(CONFIG, one)
    with pytest.raises(ConfigError, match="a Trainer is entered first: with psrt"):
        trainer.epoch()
    with pytest.raises(ConfigError, match="a Trainer is entered first: with psrt"):
        trainer.step(one, samples=1)
    with pytest.raises(ConfigError, match="is part of an epoch"), trainer:
        trainer.step(one, samples=1)
    with pytest.raises(ConfigError, match="a Trainer trains once"), trainer:
        pass
    with pytest.raises(ConfigError, match="samples of a step: got -1"):
        one_step(one, one, samples=-1)
    with (
        pytest.raises(ConfigError, match="steps of an epoch: got -2"),
        Trainer(CONFIG, one) as trainer,
    ):
        trainer.epoch(steps=-2)


def test_an_error_in_the_loop_is_the_users_own():
    trainer = Trainer(CONFIG, np.zeros(1, np.float32))
    with pytest.raises(KeyError) as caught, trainer:
        raise KeyError("mine") if trainer.epoch() else AssertionError
    assert caught.value.args == ("mine",)
    assert not trainer.epoch()


def test_numpy_warns_in_the_loop_as_it_does_elsewhere():
    with Trainer(CONFIG, np.zeros(1, np.float32)) as trainer:
        trainer.epoch()
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            np.ones(1) / np.zeros(1)
        trainer.step(np.ones(1, np.float32), samples=1)


def test_knobs_that_its_loop_makes_meaningless_are_refused():
    config = TrainConfig(mode="serial", epochs=1, partition="dirichlet:0.3")
    with (
        pytest.raises(ConfigError, match="has no labels"),
        Trainer(config, np.zeros(1, np.float32)),
    ):
        pass
    assert psrt.Trainer is Trainer


@pytest.mark.parametrize("samples", [0.5, 2.5, None, "3", 1 << 70])
def test_samples_are_a_whole_number(samples):
    with pytest.raises(ConfigError, match="samples of a step: got"):
        one_step(np.ones(1, np.float32), np.zeros(1, np.float32), samples=samples)


def test_numpys_numbers_are_numbers_of_steps():
    with Trainer(CONFIG, np.zeros(1, np.float32)) as trainer:
        assert trainer.epoch(np.int64(3))
        trainer.step(np.ones(1, np.float32), samples=np.int32(2), loss=np.float32(1))
        with pytest.raises(ConfigError, match=r"steps of an epoch: got 2\.5"):
            trainer.epoch(2.5)
        with pytest.raises(ConfigError, match="loss: got str, expected a number"):
            trainer.step(np.ones(1, np.float32), samples=1, loss="low")
    assert trainer.result.summary.samples == 2


def test_what_is_looked_at_too_early_or_too_late_is_one_line():
    trainer = Trainer(CONFIG, np.zeros(1, np.float32))
    for name in ("serves", "steps", "theta"):
        with pytest.raises(ConfigError, match="a Trainer is entered first"):
            getattr(trainer, name)
    with pytest.raises(ConfigError, match="a Trainer is entered first"):
        trainer.metrics(loss=1.0)
    with trainer:
        trainer.epoch()
        trainer.step(np.ones(1, np.float32), samples=1)
    with pytest.raises(ConfigError, match="training is over: say metrics"):
        trainer.metrics(loss=1.0)


def test_an_iterator_that_ends_in_the_loop_is_the_users_own_error():
    with pytest.raises(StopIteration), Trainer(CONFIG, np.zeros(1, np.float32)) as trainer:
        next(iter(() if trainer.epoch() else (1,)))


def test_the_form_is_that_which_was_given_whatever_becomes_of_the_list():
    given = [np.zeros(2, np.float32)]
    with Trainer(CONFIG, given) as trainer:
        given.append(np.zeros(3, np.float32))
        while trainer.epoch():
            trainer.step([np.ones(2, np.float32)], samples=1)
    assert len(trainer.parameters) == 1


def test_gradients_may_be_in_a_tuple_where_the_parameters_are_in_a_list():
    with Trainer(CONFIG, [np.zeros(2, np.float32)]) as trainer:
        trainer.epoch()
        trainer.step((np.ones(2, np.float64),), samples=1)
    np.testing.assert_array_equal(trainer.parameters[0], [-0.5, -0.5])


def test_a_kernel_is_a_matrix_with_a_column_for_each_output():
    kernel = np.zeros((3, 3, 2, 5), np.float32)
    found = parameters_of({"b": np.zeros(5, np.float32), "w": kernel}).matrices()
    assert [(it.start, it.rows, it.columns) for it in found] == [(5, 18, 5)]


def test_names_without_an_order_are_one_line():
    with pytest.raises(ConfigError, match="no tree: keys beside each other are int and str"):
        Trainer(CONFIG, {1: np.zeros(1, np.float32), "a": np.zeros(1, np.float32)})
