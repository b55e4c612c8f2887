"""A run that ends by an error leaves its last events, and what was trained if that was over."""

from __future__ import annotations

import json
import tempfile
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

import psrt
from psrt.__main__ import main
from psrt.core.errors import CheckpointError, ConfigError, DivergedError, OutputError
from psrt.history import Kind
from psrt.history.folder import FOLDER, LAST_EVENTS
from psrt.history.reading import read_header
from psrt.job import last_events
from psrt.job.local import run as run_here
from support.cases import each


class Problem:
    """Trains on nothing until a step, in which something happens."""

    def __init__(self, fault, at=40):
        self._fault, self._at, self.calls = fault, at, 0

    def initial(self):
        return np.zeros(4, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.ones(2)] * 50

    def loss_and_grad(self, theta, batch, out):
        out[:] = 0.001
        self.calls += 1
        return self._fault() if self.calls == self._at else 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


def fails():
    raise ZeroDivisionError("mine")


def is_interrupted():
    raise KeyboardInterrupt(15)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, a new one."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(last_events, "_WRITE_S", 600.0)  # a busy machine may take its time
    return folder


def run(fault, error=ZeroDivisionError, at=40, **knobs):
    config = psrt.TrainConfig(mode="serial", epochs=2, **knobs)
    with pytest.raises(error):
        psrt.run(config, Problem(fault, at))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (fails, ZeroDivisionError),
        (is_interrupted, KeyboardInterrupt),
        (lambda: float("nan"), DivergedError),
    ],
)
def test_they_are_in_the_folder_of_the_run(tmp_path, temporary, capsys, fault, error):
    out, began = tmp_path / "run", time.time()
    run(fault, error, out=str(out))
    events = np.load(out / LAST_EVENTS / "events.npy")[:-1]
    assert (events["kind"] == Kind.STEP).all()
    assert events["clock"].tolist() == list(range(39))
    end = json.loads((out / "end.json").read_text())
    assert any(it in end["text"] for it in ("ZeroDivisionError: mine", "interrupted", "diverged"))
    assert end["status"] == {fails: 1, is_interrupted: 143}.get(fault, 3)
    assert (np.diff(events["time"]) >= 0).all()
    assert (events["time"] >= 0).all()
    assert (events["time"] < time.time() - began + 1).all()  # since the run was set up
    said = f"psrt: last events saved; inspect them with: psrt trace {out / LAST_EVENTS}\n"
    assert capsys.readouterr().err == said
    assert list(temporary.iterdir()) == []


def test_without_a_folder_they_are_in_a_temporary_one_that_is_named(temporary, capsys):
    run(fails, last_events=5)
    (folder,) = temporary.iterdir()
    assert np.load(folder / "events.npy")[:-1]["clock"].tolist() == [34, 35, 36, 37, 38]
    assert capsys.readouterr().err.split()[-1] == str(folder)
    assert sorted(it.name for it in folder.iterdir()) == ["events.npy", "header.json"]
    assert read_header(folder).is_end


@pytest.mark.parametrize("words", ["check {}", "simulate --replay {}"])
def test_what_needs_all_of_a_history_says_so_in_one_line(tmp_path, capsys, words):
    run(fails, out=str(tmp_path / "run"))
    capsys.readouterr()
    assert main(words.format(tmp_path / "run").split()) == 2
    assert "only the end of a history" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to_is_passed_over(tmp_path, temporary, capsys):
    out = tmp_path / "run"

    def blocks():
        (out / LAST_EVENTS).write_text("a file")
        return fails()

    run(blocks, out=str(out))
    (folder,) = temporary.iterdir()
    assert str(folder) in capsys.readouterr().err
    assert len(np.load(folder / "events.npy")) == 40


@each("fails_at", ["_write_into", "keep"])
def test_a_full_disk_does_not_hide_the_error(temporary, capsys, fails_at):
    """And half a file is deleted."""

    def full(self, *_):
        raise OSError(28, "No space left on device")

    owner = last_events.LastEvents if fails_at == "_write_into" else last_events.EventLog
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, fails_at, full)
        run(fails)
    line = "psrt: the last events of rank 0 are lost: No space left on device\n"
    assert capsys.readouterr().err == line
    assert [it.name for folder in temporary.iterdir() for it in folder.iterdir()] == []


def test_nothing_is_left_where_there_is_nothing_to_tell(tmp_path, temporary, capsys):
    run(fails, out=str(tmp_path / "none"), last_events=0)
    run(fails, at=1)  # before the first event
    good = psrt.TrainConfig(mode="serial", epochs=1, out=str(tmp_path / "good"))
    psrt.run(good, Problem(fails, 99))
    run(fails, out=str(tmp_path / "all"), record=True)
    with pytest.MonkeyPatch.context() as patched:  # a process that a step forks has none
        run(lambda: patched.setattr(last_events.os, "getpid", lambda: -1) or fails())
    assert capsys.readouterr().err == ""
    assert list(temporary.iterdir()) == list(tmp_path.glob(f"*/{LAST_EVENTS}")) == []
    assert (tmp_path / "all" / FOLDER).exists()
    assert (tmp_path / "all" / "end.json").exists()
    assert not (tmp_path / "good" / "end.json").exists()


def test_another_run_of_the_same_name_on_another_host_is_left_alone(tmp_path, temporary):
    """But the next one in the folder clears them."""
    out = tmp_path / "run"
    run(fails, out=str(out))
    config = psrt.TrainConfig(mode="serial", epochs=1, out=str(out), overwrite=True)
    psrt.run(config, Problem(fails, 99))
    assert not (out / LAST_EVENTS).exists()
    other = tmp_path / "other"
    run(lambda: (other / "config.toml").write_text("mode = 'sync'\n") and fails(), out=str(other))
    assert not (other / LAST_EVENTS).exists()
    assert len(list(temporary.iterdir())) == 1


# --- what fails when training is over -------------------------------------------------------------

STEPS = 3
#: What one gradient of ones a step makes of zeros.
TRAINED = np.full(2, -0.5 * STEPS, np.float32)


class Ones:
    """A problem of two parameters, whose gradient is always one."""

    def initial(self):
        return np.zeros(2, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.zeros(4)] * STEPS

    def loss_and_grad(self, theta, batch, out):
        out[:] = 1
        return 1.0

    def evaluate(self, theta):
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


@pytest.fixture
def out(tmp_path, monkeypatch):
    """The run's folder."""
    monkeypatch.setattr("psrt.job.local.launched", lambda: False)
    return tmp_path / "run"


def trained(out, every=None, **methods):
    """Train with some methods in place of the problem's."""
    problem = type("Other", (Ones,), {"conclude": lambda *_: None, **methods})()
    config = psrt.TrainConfig(mode="serial", lr=0.5, epochs=1, out=str(out), checkpoint_every=every)
    return run_here(config, problem)


NOT_MINE = ZeroDivisionError("of the user's own")


@pytest.mark.parametrize(
    ("method", "does", "error"),
    [
        ("evaluate", failing(NOT_MINE), ZeroDivisionError),
        ("evaluate", failing(NOT_MINE, at=1), ZeroDivisionError),
        ("evaluate", failing(KeyboardInterrupt(), at=1), KeyboardInterrupt),
        ("evaluate", returning(None), ConfigError),
        ("conclude", failing(NOT_MINE), ZeroDivisionError),
        ("state", returning({"it": object()}), CheckpointError),
        ("tensors", failing(NOT_MINE), ZeroDivisionError),
        ("tensors", returning({"w": np.zeros(2, object)}), Exception),
    ],
)  # fmt: skip
def test_the_result_is_written_first(out, method, does, error):
    with pytest.raises(error) as caught:
        trained(out, **{method: does})
    [found] = load_file(out / "model.safetensors").values()
    np.testing.assert_array_equal(found, TRAINED)
    assert not (out / "summary.json").exists()  # of a run that is whole
    if error is not KeyboardInterrupt:
        np.testing.assert_array_equal(caught.value.run.theta, TRAINED)


def test_figures_that_are_nan_are_figures(out):
    run = trained(out, evaluate=returning({"loss": np.nan, "accuracy": np.nan}))
    np.testing.assert_array_equal(run.theta, TRAINED)
    assert (out / "summary.json").exists()


def test_parameters_that_end_as_infinite_are_written_before_that_is_told(out):
    def loss_and_grad(self, theta, batch, out):
        out[:] = 1, 3e38
        return 1.0

    with pytest.raises(DivergedError):
        trained(out, loss_and_grad=loss_and_grad)
    [found] = load_file(out / "model.safetensors").values()
    np.testing.assert_array_equal(found, [TRAINED[0], -np.inf])


def test_checkpoints_that_failed_are_told_when_the_run_is_whole(out, monkeypatch):
    monkeypatch.setattr("psrt.job.saving.write_part", failing(OSError(28, "No space left")))
    with pytest.raises(OutputError, match=r"No space left.*3 in a row have failed") as caught:
        trained(out, every=1)
    np.testing.assert_array_equal(caught.value.run.theta, TRAINED)
    assert (out / "summary.json").exists()
