"""What fails when training is over does not lose what was trained."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import psrt
from psrt.errors import CheckpointError, ConfigError, DivergedError, OutputError
from psrt.job.local import run

STEPS = 3
#: What one gradient of ones a step makes of zeros.
TRAINED = np.full(2, -0.5 * STEPS, np.float32)


class Ones:
    """A problem of two parameters, whose gradient is always one."""

    def __init__(self):
        self.evaluations = 0

    def initial(self):
        return np.zeros(2, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.zeros(4)] * STEPS

    def loss_and_grad(self, theta, batch, out):
        out[:] = 1
        return 1.0

    def evaluate(self, theta):
        self.evaluations += 1
        return {"loss": 1.0}


def failing(error, *, at=0):
    """Return a method that raises, from its call ``at`` on."""
    calls = iter(range(1000))

    def method(self, *args):
        if next(calls) >= at:
            raise error
        return {"loss": 1.0}

    return method


def returning(value):
    return lambda self, *args: value


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch):
    monkeypatch.setattr("psrt.job.local.launched", lambda: False)


NOT_MINE = ZeroDivisionError("of the user's own")


@pytest.mark.parametrize(
    ("method", "does", "error"),
    [
        ("evaluate", failing(NOT_MINE), ZeroDivisionError),
        ("evaluate", failing(NOT_MINE, at=1), ZeroDivisionError),
        ("evaluate", failing(KeyboardInterrupt(), at=1), KeyboardInterrupt),
        ("evaluate", failing(ConfigError("no test set")), ConfigError),
        ("evaluate", returning({"accuracy": 2.0}), ConfigError),
        ("evaluate", returning(None), ConfigError),
        ("conclude", failing(NOT_MINE), ZeroDivisionError),
        ("state", failing(NOT_MINE), ZeroDivisionError),
        ("state", returning({"it": object()}), CheckpointError),
        ("state", returning({"it": np.zeros(2, complex)}), CheckpointError),
        ("state", returning({"a/b": 3}), CheckpointError),
        ("tensors", failing(NOT_MINE), ZeroDivisionError),
        ("tensors", returning({"w": np.zeros(2, object)}), Exception),
        ("tensors", returning({"w": np.zeros(2, complex)}), Exception),
        ("tensors", returning(None), AttributeError),
    ],
)  # fmt: skip
def test_the_result_is_written_first(tmp_path, method, does, error):
    problem = type("Failing", (Ones,), {"conclude": lambda *_: None, method: does})()
    config = psrt.TrainConfig(mode="serial", lr=0.5, epochs=1, out=str(tmp_path / "run"))
    with pytest.raises(error) as caught:
        run(config, problem)
    [found] = load_file(tmp_path / "run" / "model.safetensors").values()
    np.testing.assert_array_equal(found, TRAINED)
    assert not (tmp_path / "run" / "summary.json").exists()  # of a run that is whole
    if error is not KeyboardInterrupt:
        np.testing.assert_array_equal(caught.value.run.theta, TRAINED)


def test_before_the_last_step_an_evaluation_ends_the_run(tmp_path):
    problem = type("Failing", (Ones,), {"evaluate": failing(NOT_MINE)})()
    config = psrt.TrainConfig(mode="serial", lr=0.5, epochs=2, out=str(tmp_path / "run"))
    with pytest.raises(ZeroDivisionError):
        run(config, problem)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_figures_that_are_nan_are_figures(tmp_path):
    problem = type("Nan", (Ones,), {"evaluate": returning({"loss": np.nan, "accuracy": np.nan})})()
    config = psrt.TrainConfig(mode="serial", lr=0.5, epochs=1, out=str(tmp_path / "run"))
    np.testing.assert_array_equal(run(config, problem).theta, TRAINED)
    assert (tmp_path / "run" / "summary.json").exists()


def test_parameters_that_end_as_infinite_are_written_before_that_is_told(tmp_path):
    def loss_and_grad(self, theta, batch, out):
        out[:] = 1, 3e38
        return 1.0

    problem = type("Nan", (Ones,), {"loss_and_grad": loss_and_grad})()
    config = psrt.TrainConfig(mode="serial", lr=0.5, epochs=1, out=str(tmp_path / "run"))
    with pytest.raises(DivergedError):
        run(config, problem)
    [found] = load_file(tmp_path / "run" / "model.safetensors").values()
    np.testing.assert_array_equal(found, [TRAINED[0], -np.inf])


def test_checkpoints_that_failed_are_told_when_the_run_is_whole(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("psrt.job.saving.write_part", full)
    config = psrt.TrainConfig(
        mode="serial", lr=0.5, epochs=1, out=str(tmp_path / "run"), checkpoint_every=1
    )
    with pytest.raises(OutputError, match=r"No space left.*3 in a row have failed") as caught:
        run(config, Ones())
    np.testing.assert_array_equal(caught.value.run.theta, TRAINED)
    assert (tmp_path / "run" / "summary.json").exists()


def loop(trainer):
    with trainer:
        while trainer.epoch():
            for _ in range(STEPS):
                trainer.step({"w": np.ones(2, np.float32)}, samples=1)


@pytest.mark.parametrize("evaluate", [failing(NOT_MINE, at=1), returning({"accuracy": 2.0})])
def test_a_loop_of_the_users_own_has_its_parameters(evaluate):
    given = {"w": np.zeros(2, np.float32)}
    config = psrt.TrainConfig(mode="serial", lr=0.5, epochs=1)
    trainer = psrt.Trainer(config, given, evaluate=lambda parameters: evaluate(None, parameters))
    with pytest.raises((ZeroDivisionError, ConfigError)):
        loop(trainer)
    np.testing.assert_array_equal(trainer.parameters["w"], TRAINED)
    np.testing.assert_array_equal(trainer.result.theta, TRAINED)
