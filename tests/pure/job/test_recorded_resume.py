"""A run that is recorded and goes on from a checkpoint has one history, as if never interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.history import EventLog, Kind
from psrt.history.check.run import check_run
from psrt.history.events import PARKED
from psrt.history.header import sealed
from psrt.history.reading import read_cells, read_history
from psrt.job.resuming import resumed_config
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.simulation.calibration import calibrate

#: Saved after steps 7, 14, 21; 24 steps in 4 epochs.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 8), "batch_size": 4, "epochs": 4, "lr": 0.05,
    "checkpoint_every": 7, "keep": 1000, "record": True, "log_every": 2, "optimizer": "adam",
}  # fmt: skip
WORKERS = 3
#: Where all workers are at the same step when a checkpoint is made.
ROUNDS = {
    "all-reduce": {"mode": "allreduce", "allreduce": "ring"},
    "shared out": {"mode": "allreduce", "allreduce": "ring", "shard": "parameters"},
    "sync": {"mode": "sync", "servers": 2},
    "shards": {"mode": "sync", "servers": 2, "shards_per_server": 2},
    "local": {"mode": "local-sgd", "local_steps": 3, "allreduce": "ring"},
    "local, servers": {"mode": "local-sgd", "local_steps": 3, "servers": 2, "outer_lr": 0.7},
    "streaming": {"mode": "local-sgd", "local_steps": 3, "fragments": 3},
    "elastic": {"mode": "easgd", "local_steps": 3, "servers": 2},
    "gossip": {"mode": "gossip", "gradient_tracking": True},
    "push-sum": {"mode": "gossip", "push_sum": True, "topology": "exponential"},
    "gossip in frames": {"mode": "gossip", "codec": "top-k", "codec_everywhere": True},
    "codecs": {
        "mode": "sync", "servers": 2, "codec": "top-k", "codec_reply": "low-rank",
        "codec_everywhere": True,
    },
    "sums in frames": {
        "mode": "allreduce", "allreduce": "all-pairs", "codec": "dgc", "codec_everywhere": True,
    },
    "stages": {"mode": "allreduce", "parallel": "pipeline:3", "micro_batches": 2},
    "serial": {"mode": "serial"},
}  # fmt: skip
#: Where they stop for it, each at a step of its own.
STOPS = {
    "async": {"mode": "async"},
    "async, shards": {"mode": "async", "servers": 2, "shards_per_server": 2},
    "ssp 0": {"mode": "ssp", "staleness": 0, "servers": 2},
    "ssp 2": {"mode": "ssp", "staleness": 2, "servers": 2},
    "softsync": {"mode": "softsync", "softsync": 1, "servers": 2},
    "codec": {"mode": "async", "servers": 2, "codec": "top-k", "codec_everywhere": True},
    "codec of replies": {
        "mode": "ssp", "staleness": 1, "servers": 2, "codec": "top-k", "codec_reply": "float16",
        "codec_everywhere": True,
    },
    "backups": {"mode": "sync", "backup": 1, "servers": 2},
    "elastic, asynchronous": {
        "mode": "easgd", "asynchronous": True, "local_steps": 2, "servers": 2,
    },
}  # fmt: skip
#: Worker 0 is slow, all are uneven.
SLOW = {"inject": ("*:jitter:0.5", "0:delay:0.4")}
MODES = ROUNDS | STOPS


def trained(config):
    workers = 1 if config.mode == "serial" else WORKERS
    run_in_virtual_time(config, Scenario(workers))
    return Path(config.out)


def config_of(out, mode, **more):
    knobs = KNOBS | {"out": str(out)} | MODES[mode] | (SLOW if mode in STOPS else {}) | more
    return TrainConfig(**knobs)


def resumed(run, step, out=None, **changes):
    """Go on from a step, in the same folder if no other is given."""
    where = str(run / "checkpoints" / f"{step:08d}")
    return trained(resumed_config(where, out=str(out or run), **changes))


def steps_of(run):
    found = sorted(int(it.name) for it in (run / "checkpoints").iterdir())
    assert len(found) >= 3
    return found


def told(run):
    """Return all events but their times, of each worker and shard.

    They are sorted: what comes at the same time comes in any order.
    """
    header, histories = read_cells(run)
    tables = []
    for history in histories:
        for table in (*history.workers, *history.shards):
            events = table.copy()
            events["time"] = 0
            events["seconds"][~np.isin(events["kind"], [Kind.DRAW, Kind.RESIDUAL])] = 0
            tables.append(sorted(event.tobytes() for event in events))
    return header, tables


def summary(run):
    return json.loads((run / "summary.json").read_text())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mode", ROUNDS)
def test_the_history_is_that_of_a_run_that_was_never_interrupted(tmp_path, mode):
    whole = trained(config_of(tmp_path / "whole", mode))
    header, events = told(whole)
    for step in steps_of(whole)[:2]:
        run = resumed(whole, step, tmp_path / f"from-{step}")
        outcome = check_run(run)
        assert outcome.violation is None, outcome.violation
        again, found = told(run)
        assert found == events
        assert again.initial_sha256 == header.initial_sha256
        assert len(again.resumed) == 1
        assert summary(run)["parameters_sha256"] == summary(whole)["parameters_sha256"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", STOPS)
def test_where_workers_stop_it_is_a_legal_one(tmp_path, mode):
    run = trained(config_of(tmp_path / "run", mode))
    assert check_run(run).violation is None
    assert read_history(run).has_stops
    step = steps_of(run)[1]
    resumed(run, step, epochs=5)
    outcome = check_run(run)
    assert outcome.violation is None, outcome.violation
    assert summary(run)["epochs"] == 5
    # And once more, from an older one than that: what came after it is gone.
    resumed(run, steps_of(run)[0])
    outcome = check_run(run)
    assert outcome.violation is None, outcome.violation
    assert len(read_history(run).header.resumed) == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.rest_one_in(4)
@pytest.mark.exhaustive
def test_it_is_so_from_every_step(tmp_path, mode):
    run = trained(config_of(tmp_path / "run", mode, checkpoint_every=1))
    for step in steps_of(run):
        again = resumed(run, step, tmp_path / "again", overwrite=True)
        outcome = check_run(again)
        assert outcome.violation is None, (step, outcome.violation)


def test_it_goes_on_twice(tmp_path):
    run = trained(config_of(tmp_path / "run", "async"))
    first, second = steps_of(run)[:2]
    resumed(run, first)
    resumed(run, second)
    resumed(run, steps_of(run)[2])
    assert check_run(run).violation is None
    times = read_history(run).header.resumed
    assert len(times) == 3
    assert list(times) == sorted(times)


def without(run, chosen):
    """Write a history once more without some of its events; return whether a check finds it."""
    path = run / "history" / "events.npy"
    events = np.load(path)
    left = np.delete(events, np.flatnonzero(chosen(events))[:1])
    path.unlink()
    with EventLog(path) as log:
        log.keep(left[left["kind"] != Kind.END], (False, 0))
    return check_run(run).violation is not None


@pytest.mark.parametrize(
    "chosen",
    [
        lambda it: (it["kind"] == Kind.RECEIVE) & (it["flag"] == PARKED),
        lambda it: (it["kind"] == Kind.READ) & (it["flag"] == PARKED),
        lambda it: (it["kind"] == Kind.REPLY) & (np.roll(it["flag"], 1) == PARKED),
        lambda it: (it["kind"] == Kind.PUSH) & (it["clock"] == 5),
        lambda it: (it["kind"] == Kind.APPLY) & (it["clock"] == 7),
    ],
)
def test_what_is_missing_in_it_is_found(tmp_path, chosen):
    run = trained(config_of(tmp_path / "run", "async"))
    resumed(run, steps_of(run)[0])
    assert without(run, chosen)


def test_a_run_that_was_not_recorded_has_no_beginning(tmp_path):
    run = trained(config_of(tmp_path / "run", "sync", record=False))
    with pytest.raises(ConfigError, match="--record needs a history from the beginning"):
        resumed(run, 7, tmp_path / "again", record=True)
    assert not (tmp_path / "again").exists()


def test_other_workers_and_servers_make_no_one_history(tmp_path):
    run = trained(config_of(tmp_path / "run", "sync"))
    with pytest.raises(ConfigError, match="with which --record has no one history"):
        resumed(run, 7, servers=1)
    assert check_run(run).violation is None  # the folder is as it was


def test_a_history_that_is_too_short_is_refused(tmp_path):
    run = trained(config_of(tmp_path / "run", "sync"))
    path = run / "history" / "events.npy"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(ConfigError, match=r"events\.npy: [0-9]+ events are missing"):
        resumed(run, 14)
    path.unlink()
    with pytest.raises(ConfigError, match=r"events\.npy is missing"):
        resumed(run, 14)


@pytest.mark.parametrize("value", [1, [-1.0], ["1"], [True]])
def test_times_of_going_on_that_are_none_are_refused(tmp_path, value):
    run = trained(config_of(tmp_path / "run", "sync"))
    path = run / "history" / "header.json"
    path.write_text(sealed(json.loads(path.read_text()) | {"resumed": value}))
    with pytest.raises(ConfigError, match=r"resumed that are not|times of going on"):
        check_run(run)


def test_stops_are_neither_replayed_nor_measured(tmp_path):
    run = trained(config_of(tmp_path / "run", "async"))
    with pytest.raises(ConfigError, match="workers stopped for checkpoints in it"):
        trained(TrainConfig(**KNOBS | MODES["async"] | SLOW | {
            "replay": str(run), "out": str(tmp_path / "again"), "checkpoint_every": None,
            "keep": None, "record": False,
        }))  # fmt: skip
    with pytest.raises(ConfigError, match="its times have gaps"):
        calibrate(read_history(run))


def test_a_run_that_went_on_is_replayed(tmp_path):
    run = trained(config_of(tmp_path / "run", "sync"))
    resumed(run, 14)
    again = trained(TrainConfig(**KNOBS | MODES["sync"] | {
        "replay": str(run), "out": str(tmp_path / "again"), "checkpoint_every": None,
        "keep": None, "record": False,
    }))  # fmt: skip
    assert summary(again)["parameters_sha256"] == summary(run)["parameters_sha256"]
