"""What a loop does that no run can honour is told at once, and what it may do counts."""

import dataclasses

import numpy as np
import pytest

from psrt import ConfigError, DivergedError, TrainConfig, Trainer

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


def in_place(trainer, given):
    it = trainer.parameters["b"]
    it.flags.writeable = True
    it += 1
    trainer.step(ones(given), samples=1)


def replaced(trainer, given):
    trainer.parameters["w"] = trainer.parameters["w"] * 2
    trainer.step(ones(given), samples=1)


def afterwards(trainer, given):
    trainer.step(ones(given), samples=1)
    trainer.parameters["w"] = trainer.parameters["w"] * 2


@pytest.mark.parametrize("body", [in_place, replaced, afterwards])
@pytest.mark.parametrize("steps", [1, 3])
def test_parameters_that_are_all_workers_are_not_written_to(body, steps):
    name = r"\['b'\]" if body is in_place else r"\['w'\]"
    told(ConfigError, f"wrote to the parameters, to {name} first, which all", body, steps=steps)


def test_what_a_loop_writes_to_parameters_of_its_own_counts():
    def clipped(trainer, given):
        gradients = {"w": np.array([1, -1], np.float32), "b": np.zeros(1, np.float32)}
        trainer.step(gradients, samples=1)
        trainer.parameters["w"] = np.clip(trainer.parameters["w"], 0.75, 1.25)

    trainer, count = looped(clipped, config=OWN)
    assert count == 6
    np.testing.assert_array_equal(trainer.parameters["w"], [0.75, 1.25])
    np.testing.assert_array_equal(trainer.result.theta, trainer.theta)


def own_arrays(trainer, given):
    """Train what was given, beside psrt."""
    trainer.step(ones(given), samples=1)
    for it in given.values():
        it -= 0.25


def before(trainer, given):
    for it in given.values():
        it -= 0.25
    trainer.step(ones(given), samples=1)


@pytest.mark.parametrize("body", [own_arrays, before])
@pytest.mark.parametrize("config", [SHARED, OWN])
def test_the_arrays_that_were_given_are_not_what_is_trained(body, config):
    told(ConfigError, r"wrote to the parameters\['b'\] that it gave", body, config=config)


def test_they_may_be_where_the_loop_keeps_what_there_is_now():
    def copied(trainer, given):
        trainer.step(ones(given), samples=1)
        for name, it in given.items():
            np.copyto(it, trainer.parameters[name])

    trainer, _ = looped(copied)
    np.testing.assert_array_equal(trainer.parameters["w"], [-2, -2])


def test_a_loss_is_of_parameters_that_the_loop_has_asked_for():
    def constant(trainer, given):
        trainer.step(ones(given), samples=1, loss=1.0)

    told(ConfigError, "gives a loss but never asked for parameters", constant)


def test_a_first_gradient_is_not_zero():
    def wrong(trainer, given):
        trainer.step({name: it * 0 for name, it in given.items()}, samples=1)

    told(ConfigError, "the first gradient is exactly zero", wrong, most=1)

    def kept(trainer, given):  # a margin
        trainer.parameters["w"]
        trainer.step({name: it * 0 for name, it in given.items()}, samples=1, loss=0.0)

    looped(kept)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("config", [SHARED, OWN, dataclasses.replace(OWN, clip_norm=1.0)])
def test_a_gradient_that_is_no_number_is_told_where_it_is_made(value, config):
    def broken(trainer, given):
        gradients = ones(given)
        if trainer.steps:
            gradients["w"][1] = value
        trainer.step(gradients, samples=1)

    line = rf"the gradient of \['w'\] is {value} at step 2 on worker 0"
    told(DivergedError, line, broken, config=config)


def test_a_gradient_whose_square_overflows_is_a_number():
    def large(trainer, given):
        trainer.step({name: it * np.float32(1e30) for name, it in ones(given).items()}, samples=1)

    looped(large, config=dataclasses.replace(OWN, lr=1e-30))
