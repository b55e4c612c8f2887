"""What the user's hooks see of a run, how they end it early, and what becomes of their errors."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import psrt
from psrt import ConfigError, TrainConfig
from psrt.history.check.run import check_run
from psrt.history.folder import HEADER
from psrt.history.header import sealed
from support.cases import each
from support.least_squares import D, UnevenSquares

BASE = {"dataset": "synthetic:200x12x4", "hidden": (8,), "batch_size": 4, "epochs": 6, "lr": 0.02}
#: Worker 1 is slow, so that others are elsewhere when worker 0 asks.
SLOW = {"inject": ("1:slow:3",), "record": True}
CUT = {"parallel": "data:2,pipeline:2"}
#: By mode, its knobs and workers: in lockstep, at clocks of their own, by parts, by learners.
MODES = {
    "allreduce": ({}, 3),
    "sync": ({"servers": 2}, 3),
    "sync:backup=1": ({}, 3),
    "async": ({}, 3),
    "ssp:staleness=1": ({}, 3),
    "local-sgd:local-steps=3": ({}, 3),
    "local-sgd:local-steps=3,outer=nesterov,eager=true": ({}, 3),
    "local-sgd:local-steps=3,quorum=2": ({"servers": 1}, 3),
    "local-sgd:local-steps=3,quorum=2,learner-ranks=2": ({"servers": 1}, 4),
    "easgd:local-steps=2": ({}, 3),
    "gossip": ({}, 3),
    "gossip:variant=pairs,topology=star": ({}, 3),
    "gossip:variant=pairs,topology=star ": ({"dataset": "synthetic:50x12x4", "seed": 2}, 4),
    "allreduce ": ({**CUT, "pipeline_schedule": "gpipe", "micro_batches": 2}, 4),
    "async ": ({**CUT, "pipeline_schedule": "pipedream", "servers": 2}, 4),
}


def lines_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch):
    monkeypatch.setattr("psrt.job.local.launched", lambda: False)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_was_stopped_is_checked_and_repeated_in_every_mode(mode, tmp_path):
    knobs, workers = MODES[mode]
    out, epochs, records = tmp_path / "run", [], []

    def on_epoch(epoch):
        epochs.append(epoch)
        if epoch.number == 1:
            epoch.stop()

    config = TrainConfig(**BASE | SLOW | knobs, mode=mode.strip(), out=str(out))
    run = psrt.simulate(config, workers=workers, on_epoch=on_epoch, on_record=records.append)
    assert run.summary.stopped == "on_epoch"
    assert run.summary.epochs < 6
    assert epochs[0].step < run.summary.steps == max(it.clock for it in run.workers)
    assert records == lines_of(out)
    assert check_run(out).ok, check_run(out)
    again = psrt.recorded_config(out, out=str(tmp_path / "again"), record=True)
    # It ends where the run did, whatever its hook asks for, and whoever is late.
    now = psrt.simulate(again, workers=workers, seed=7, on_epoch=lambda epoch: epoch.stop())
    np.testing.assert_array_equal(now.theta, run.theta)
    assert now.summary.stopped == "on_epoch"
    assert [it.clock for it in now.workers] == [it.clock for it in run.workers]
    assert check_run(tmp_path / "again").ok


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_a_run_with_backups_that_was_stopped_and_saved_continues(stop, tmp_path):
    """A worker that comes late to a round is not asked to park in it, ahead of the others."""
    knobs = {"mode": "sync:backup=1", "checkpoint_every": 1000, "record": True}
    config = TrainConfig(**BASE | knobs, out=str(tmp_path))
    hooks = {"on_epoch": lambda epoch: epoch.number == stop and epoch.stop()}
    psrt.simulate(config, workers=4, seed=stop, **hooks)
    assert check_run(tmp_path).ok, check_run(tmp_path)
    resumed = dataclasses.replace(config, resume="auto")
    assert psrt.simulate(resumed, workers=4).summary.steps == 78
    assert check_run(tmp_path).ok, check_run(tmp_path)


def test_the_checker_holds_each_worker_to_the_clock_at_which_it_was_stopped(tmp_path):
    config = TrainConfig(**BASE, **SLOW, mode="async", out=str(tmp_path))
    psrt.simulate(config, workers=3, on_epoch=lambda epoch: epoch.stop())
    path = tmp_path / "history" / HEADER
    header = json.loads(path.read_text())
    assert len(set(header["stopped"])) > 1
    for stopped, said in (
        ([], "leaves after"),
        ([it + 1 for it in header["stopped"]], "leaves after"),
    ):
        path.write_text(sealed(header | {"stopped": stopped}))
        outcome = check_run(tmp_path)
        assert not outcome.ok
        assert said in "\n".join(outcome.lines())
    path.write_text(sealed(header | {"stopped": [3]}))
    with pytest.raises(ConfigError, match=r"has 3 workers, and 1 that stopped"):
        check_run(tmp_path)


@each("knobs", [{"mode": "allreduce"}, {"mode": "async"}, CUT | {"pipeline_schedule": "gpipe"}])
def test_an_epoch_has_what_was_evaluated_and_its_figures(knobs, tmp_path):
    epochs = []
    config = TrainConfig(**BASE | {"epochs": 2} | knobs)
    run = psrt.simulate(config, workers=4, on_epoch=epochs.append)
    assert [it.number for it in epochs] == [1, 2]
    problem = psrt.job.problems.supervised_problem(run_config(config), workers=4)
    at = {it.step: it for it in run.records}
    for epoch in epochs:
        theta = np.empty(run.theta.shape, np.float32)
        for name, view in problem.tensors(theta).items():
            view[...] = epoch.tensors[name]
        assert epoch.figures == pytest.approx(problem.evaluate(theta))
        assert at[epoch.step].test_loss == epoch.figures["loss"]
    assert 0 < epochs[0].seconds < epochs[1].seconds
    epochs[0].save(tmp_path / "best.safetensors")
    epochs[1].save(tmp_path / "best.safetensors")
    kept = load_file(tmp_path / "best.safetensors")
    assert kept.keys() == epochs[1].tensors.keys()
    for name, it in epochs[1].tensors.items():
        np.testing.assert_array_equal(kept[name], it)
    assert [it.name for it in tmp_path.iterdir()] == ["best.safetensors"]


def run_config(config):
    return psrt.resolve(config, ranks=4 + (config.mode is not None and "async" in str(config.mode)))


def test_a_file_that_cannot_be_written_leaves_the_older_one(tmp_path):
    epochs = []
    psrt.run(TrainConfig(**BASE | {"epochs": 1}), on_epoch=epochs.append)
    with pytest.raises(OSError, match="No such file"):
        epochs[0].save(tmp_path / "none" / "best.safetensors")
    assert not list(tmp_path.iterdir())


def test_early_stopping_keeps_the_best_and_writes_a_whole_run(tmp_path):
    out, best = tmp_path / "run", [np.inf, 0]

    def on_epoch(epoch):
        if epoch.figures["loss"] < best[0]:
            best[:] = epoch.figures["loss"], epoch.number
        elif epoch.number > best[1] + 1:
            epoch.stop()

    said = []
    more = {"epochs": 500, "lr": 0.9, "out": str(out)}
    run = psrt.run(TrainConfig(**BASE | more), on_epoch=on_epoch, say=said.append)
    assert run.summary.stopped == "on_epoch"
    assert best[1] + 1 < run.summary.epochs < 500
    assert f"stopped by on_epoch, after {run.summary.steps} steps" in said
    assert json.loads((out / "summary.json").read_text())["stopped"] == "on_epoch"


def test_a_stop_in_the_last_epoch_stops_nothing(tmp_path):
    run = psrt.run(TrainConfig(**BASE | {"epochs": 1}), on_epoch=lambda epoch: epoch.stop())
    assert (run.summary.stopped, run.summary.epochs) == ("", 1)


@each("mode", ["sync", "async"])
def test_with_checkpoints_a_stop_saves_the_run_which_can_be_continued(mode, tmp_path):
    tmp_path = tmp_path / mode
    more = {"out": str(tmp_path), "record": True, "checkpoint_every": 10_000}
    config = TrainConfig(**BASE, **more, mode=mode)
    run = psrt.simulate(config, workers=2, on_epoch=lambda it: it.number == 2 and it.stop())
    assert run.summary.stopped == "on_epoch"
    assert run.summary.epochs < 6
    assert check_run(tmp_path).ok, check_run(tmp_path)
    seen = []
    resumed = psrt.job.resuming.resumed_config(str(tmp_path))
    now = psrt.simulate(resumed, workers=2, on_record=seen.append)
    assert (now.summary.stopped, now.summary.epochs) == ("", 6)
    # Only what is new, though the file has all of it.
    assert len(seen) < len(now.records)
    assert seen == lines_of(tmp_path)[-len(seen) :]
    assert check_run(tmp_path).ok, check_run(tmp_path)


@pytest.mark.parametrize("name", ["on_record", "on_epoch"])
def test_a_hook_that_raises_is_not_called_again_and_nothing_is_lost(name, tmp_path, capfd):
    calls, others = [], []

    def broken(it):
        calls.append(it)
        raise LookupError("no such\nboard")

    hooks = {"on_record": others.append, "on_epoch": others.append} | {name: broken}
    config = TrainConfig(**BASE, mode="sync", out=str(tmp_path), record=True)
    with pytest.raises(LookupError, match="no such") as raised:
        psrt.simulate(config, workers=2, **hooks)
    said = f"psrt: rank 0: {name} raised LookupError: no such; it is not called any more\n"
    assert capfd.readouterr().err == said
    assert len(calls) == 1
    assert len(others) == 6
    assert raised.value.run.summary.epochs == 6
    assert json.loads((tmp_path / "summary.json").read_text())["epochs"] == 6
    assert check_run(tmp_path).ok


@each("end", [KeyboardInterrupt, SystemExit])
def test_a_hook_that_is_interrupted_ends_the_run(end, tmp_path):
    def ends(it):
        raise end

    with pytest.raises(end):
        psrt.run(TrainConfig(**BASE, out=str(tmp_path / end.__name__)), on_epoch=ends)
    assert not (tmp_path / end.__name__ / "summary.json").exists()


@each("name", ["on_record", "on_epoch"])
@each("call", [psrt.run, psrt.Trainer])
def test_what_cannot_be_called_is_refused_at_once(name, call):
    with pytest.raises(ConfigError, match=rf"{name} is str 'f', expected a function"):
        call(TrainConfig(**BASE), np.zeros(2, np.float32), **{name: "f"})


def test_a_loop_of_the_users_own_is_stopped_like_any_other():
    config, theta, epochs = TrainConfig(epochs=9, lr=0.05), np.zeros(D, np.float32), []
    problem, out, records = UnevenSquares(), np.zeros(D, np.float32), []

    def on_epoch(epoch):
        epochs.append(epoch)
        if epoch.number == 2:
            epoch.stop()

    hooks = {"on_epoch": on_epoch, "on_record": records.append}
    steps = 0
    with psrt.Trainer(config, theta, evaluate=problem.evaluate, **hooks) as trainer:
        while trainer.epoch():
            for _ in range(5):
                problem.loss_and_grad(trainer.theta, np.arange(8), out)
                if not trainer.step(out, samples=8):
                    break
                steps += 1
    assert (trainer.result.summary.stopped, trainer.epochs) == ("on_epoch", 2)
    assert steps == trainer.steps == trainer.result.summary.steps == epochs[-1].step
    assert 10 < trainer.steps < 15
    theta = epochs[0].tensors["theta"]
    assert epochs[0].figures == {"loss": pytest.approx(problem.evaluate(theta)["loss"])}
    assert [it["step"] for it in records] == [5, 10, trainer.steps]
