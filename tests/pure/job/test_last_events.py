"""The last events of a run without --record: written when it ends by an error, and only then."""

import dataclasses
import json
import os
import tempfile
import threading

import numpy as np
import pytest

import psrt
from psrt.__main__ import main
from psrt.errors import ConfigError, DivergedError
from psrt.history import Kind
from psrt.history.folder import FOLDER, LAST_EVENTS
from psrt.history.reading import read_header
from psrt.job import last_events
from psrt.trace import trace_run


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
        if self.calls == self._at:
            return self._fault()
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


def fails():
    raise ZeroDivisionError("mine")


def is_interrupted():
    raise KeyboardInterrupt(15)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, a new one."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def run(fault, error, **knobs):
    config = psrt.TrainConfig(mode="serial", epochs=2, **knobs)
    with pytest.raises(error):
        psrt.run(config, Problem(fault))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (fails, ZeroDivisionError),
        (is_interrupted, KeyboardInterrupt),
        (lambda: float("nan"), DivergedError),
    ],
)
def test_they_are_in_the_folder_of_the_run(tmp_path, temporary, capsys, fault, error):
    out = tmp_path / "run"
    run(fault, error, out=str(out))
    events = np.load(out / LAST_EVENTS / "events.npy")[:-1]
    assert (events["kind"] == Kind.STEP).all()
    assert events["clock"].tolist() == list(range(39))
    end = json.loads((out / "end.json").read_text())
    assert any(it in end["text"] for it in ("ZeroDivisionError: mine", "interrupted", "diverged"))
    assert end["status"] == {fails: 1, is_interrupted: 143}.get(fault, 3)
    assert (np.diff(events["time"]) >= 0).all()
    assert (events["time"] >= 0).all()
    assert (events["time"] < 60).all()  # since the run was set up
    said = f"psrt: what led to the end of the job: psrt trace {out / LAST_EVENTS}\n"
    assert capsys.readouterr().err == said
    assert list(temporary.iterdir()) == []


def test_a_step_may_go_to_another_folder(tmp_path, temporary, capsys, monkeypatch):
    def goes_away():
        os.chdir(temporary)
        return fails()

    monkeypatch.chdir(tmp_path)
    run(goes_away, ZeroDivisionError, out="run")
    assert (tmp_path / "run" / LAST_EVENTS / "events.npy").exists()
    said = f"psrt: what led to the end of the job: psrt trace run/{LAST_EVENTS}\n"
    assert capsys.readouterr().err == said
    assert list(temporary.iterdir()) == []


def test_without_a_folder_they_are_in_a_temporary_one_that_is_named(temporary, capsys):
    run(fails, ZeroDivisionError, last_events=5)
    (folder,) = temporary.iterdir()
    assert np.load(folder / "events.npy")[:-1]["clock"].tolist() == [34, 35, 36, 37, 38]
    assert capsys.readouterr().err.split()[-1] == str(folder)
    assert sorted(it.name for it in folder.iterdir()) == ["events.npy", "header.json"]
    assert read_header(folder).is_end


def test_a_trace_of_them_ends_before_the_fault(tmp_path, temporary):
    run(fails, ZeroDivisionError, out=str(tmp_path / "run"), last_events=9)
    for named in (tmp_path / "run", tmp_path / "run" / LAST_EVENTS):
        traced = trace_run(named, tmp_path / "trace.json.gz", format="json", steps="30:39")
        assert (traced.events, traced.slices) == (9, {"compute": 9})
        assert traced.notes == ["the end of a run: the last events of each rank"]


@pytest.mark.parametrize("words", ["check {}", "simulate --replay {}", "simulate --like {}"])
def test_what_needs_all_of_a_history_says_so_in_one_line(tmp_path, temporary, capsys, words):
    run(fails, ZeroDivisionError, out=str(tmp_path / "run"))
    capsys.readouterr()
    assert main(words.format(tmp_path / "run").split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "only the end of a history" in line


def test_a_folder_that_cannot_be_written_to_is_passed_over(tmp_path, temporary, capsys):
    out = tmp_path / "run"

    def blocks():
        (out / LAST_EVENTS).write_text("a file")
        return fails()

    run(blocks, ZeroDivisionError, out=str(out))
    (folder,) = temporary.iterdir()
    assert str(folder) in capsys.readouterr().err
    assert len(np.load(folder / "events.npy")) == 40


def test_a_full_disk_does_not_hide_the_error(temporary, capsys, monkeypatch):
    def full(self, folder, events):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(last_events.LastEvents, "_write_into", full)
    run(fails, ZeroDivisionError)
    assert capsys.readouterr().err == (
        "psrt: the last events of rank 0 are lost: No space left on device\n"
    )


def test_a_disk_that_hangs_does_not_keep_the_job_from_its_end(temporary, monkeypatch):
    ends, ended = threading.Event(), []
    monkeypatch.setattr(last_events, "_WRITE_S", 0.01)
    monkeypatch.setattr(last_events.LastEvents, "_say", lambda *_: None)
    hangs = lambda *_: ended.append(ends.wait(10))  # noqa: E731
    monkeypatch.setattr(last_events.LastEvents, "_write_into", hangs)
    try:
        run(fails, ZeroDivisionError)
        assert ended == []
    finally:
        ends.set()


def test_half_a_file_is_deleted(temporary, monkeypatch):
    def torn(self, events, owner):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(last_events.EventLog, "keep", torn)
    run(fails, ZeroDivisionError)
    assert [it.name for folder in temporary.iterdir() for it in folder.iterdir()] == []


def test_nothing_is_left_where_there_is_nothing_to_tell(tmp_path, temporary, capsys):
    run(fails, ZeroDivisionError, out=str(tmp_path / "none"), last_events=0)
    good = psrt.TrainConfig(mode="serial", epochs=1, out=str(tmp_path / "good"))
    psrt.run(good, Problem(fails, 99))
    with pytest.raises(ZeroDivisionError):  # before the first event
        psrt.run(psrt.TrainConfig(mode="serial", epochs=1), Problem(fails, 1))
    run(fails, ZeroDivisionError, out=str(tmp_path / "all"), record=True)
    assert capsys.readouterr().err == ""
    assert list(temporary.iterdir()) == list(tmp_path.glob(f"*/{LAST_EVENTS}")) == []
    assert (tmp_path / "all" / FOLDER).exists()
    assert (tmp_path / "all" / "end.json").exists()
    assert not (tmp_path / "good" / "end.json").exists()


def test_a_process_that_a_step_forks_has_none_of_its_own(temporary, capsys, monkeypatch):
    def is_another_process():
        monkeypatch.setattr(last_events.os, "getpid", lambda: -1)
        return fails()

    run(is_another_process, ZeroDivisionError)
    assert capsys.readouterr().err == ""
    assert list(temporary.iterdir()) == []


def test_the_next_run_in_the_folder_clears_them(tmp_path, temporary):
    out = tmp_path / "run"
    run(fails, ZeroDivisionError, out=str(out))
    config = psrt.TrainConfig(mode="serial", epochs=1, out=str(out), overwrite=True)
    psrt.run(config, Problem(fails, 99))
    assert not (out / LAST_EVENTS).exists()


def test_the_numbers_are_the_same_with_them_and_without(tmp_path):
    config = psrt.TrainConfig(mode="serial", epochs=2, hidden=(8,))
    with_them = psrt.run(config)
    without = psrt.run(dataclasses.replace(config, last_events=0))
    assert with_them.theta.tobytes() == without.theta.tobytes()


def test_they_make_no_sense_beside_a_history():
    with pytest.raises(ConfigError, match="--last-events 5 has no effect with --record"):
        psrt.TrainConfig(mode="serial", out="run", record=True, last_events=5)


def test_another_run_of_the_same_name_on_another_host_is_left_alone(tmp_path, temporary):
    out = tmp_path / "run"

    def is_another():
        (out / "config.toml").write_text("mode = 'sync'\n")
        return fails()

    run(is_another, ZeroDivisionError, out=str(out))
    assert not (out / LAST_EVENTS).exists()
    assert len(list(temporary.iterdir())) == 1
