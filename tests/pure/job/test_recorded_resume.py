"""A run that is recorded and resumes has one history."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.history.check.run import check_run
from psrt.history.reading import read_history
from psrt.job.resuming import resumed_config
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.simulation.calibration import calibrate
from support.cases import each

WORKERS = 3
#: Saved after steps 3, 6, 9 and 12 of 12. Of async, worker 0 is slow, and all are uneven.
KNOBS = {
    "dataset": "synthetic:46x12x4", "hidden": (8,), "batch_size": 4, "epochs": 3, "lr": 0.05,
    "checkpoint_every": 3, "keep": 1000, "record": True, "log_every": 2, "optimizer": "adam",
}  # fmt: skip
IN_ROUNDS = {"mode": "sync", "servers": 2}
STOPPING = {"mode": "async", "servers": 2, "inject": ("*:jitter:0.5", "0:delay:0.4")}


def trained(config):
    run_in_virtual_time(config, Scenario(WORKERS))
    return Path(config.out)


def resumed(run, number, out=None, **changes):
    """Resume from one of its checkpoints, in the same folder if no other is given."""
    where = sorted((run / "checkpoints").iterdir())[number]
    return trained(resumed_config(str(where), out=str(out or run), **changes))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    return {
        name: trained(TrainConfig(**KNOBS | knobs, out=str(folder / name)))
        for name, knobs in (("sync", IN_ROUNDS), ("async", STOPPING))
    }


@pytest.fixture
def run_of(runs, tmp_path):
    """Return what copies a run, by its mode."""
    return lambda mode: Path(shutil.copytree(runs[mode], tmp_path / mode))


def test_it_goes_on_again_and_again(run_of):
    """Further, or from an older checkpoint: then what came after that one is gone."""
    run = run_of("async")
    assert read_history(run).has_stops
    for i, number in enumerate((0, 1, 2)):
        resumed(run, number)
        assert check_run(run).ok
        assert len(read_history(run).header.resumed) == i + 1
    times = list(read_history(run).header.resumed)
    assert times == sorted(times)
    resumed(run, 1, epochs=4)
    assert check_run(run).ok
    assert json.loads((run / "summary.json").read_text())["epochs"] == 4
    resumed(run, 0)
    assert check_run(run).ok
    assert len(read_history(run).header.resumed) == 1


def test_other_servers_make_no_one_history(run_of):
    run = run_of("sync")
    with pytest.raises(ConfigError, match="with which --record has no one history"):
        resumed(run, 0, servers=1)
    assert check_run(run).ok  # the folder is as it was


def test_a_history_that_is_too_short_is_refused(run_of):
    run = run_of("sync")
    path = run / "history" / "events.npy"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(ConfigError, match=r"events\.npy: [0-9]+ events are missing"):
        resumed(run, 1)
    path.unlink()
    with pytest.raises(ConfigError, match=r"events\.npy is missing"):
        resumed(run, 1)


@each("mode", ["sync", "async"])
def test_it_is_replayed_unless_workers_stopped_in_it(runs, tmp_path, mode):
    run = resumed(runs[mode], 1, tmp_path / mode)
    knobs = KNOBS | (IN_ROUNDS if mode == "sync" else STOPPING)
    knobs |= {"checkpoint_every": None, "keep": None, "record": False}
    config = TrainConfig(**knobs, replay=str(run), out=str(tmp_path / f"{mode} again"))
    if mode == "sync":
        digests = [
            json.loads((it / "summary.json").read_text())["parameters_sha256"]
            for it in (runs[mode], run, trained(config))
        ]
        assert len({*digests}) == 1
        return
    with pytest.raises(ConfigError, match="workers stopped for checkpoints in it"):
        trained(config)
    with pytest.raises(ConfigError, match="its times have gaps"):
        calibrate(read_history(run))
