"""Which checkpoint a run resumes from, what it keeps of the run before, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk
from psrt.config import TrainConfig
from psrt.config.modes import AllReduce
from psrt.core.errors import ConfigError
from psrt.history import read_history
from psrt.history.check.run import check_run
from psrt.job import giving_back
from psrt.job.problems import supervised_problem
from psrt.job.recorded import recorded_config
from psrt.job.resuming import Resumption, found, resumed_config
from psrt.job.virtual import simulate
from psrt.report.files import METRICS, SUMMARY
from psrt.simulation.calibration import calibrate
from support.cases import each

#: 12 steps in 2 epochs; the last batch of an epoch is smaller. Several buckets and matrices.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 8), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "checkpoint_every": 5, "keep": 1000, "mode": "sync",
}  # fmt: skip
WORKERS = 3


def config_of(out, **more):
    knobs = KNOBS | {"out": str(out)} | more
    return TrainConfig(**{name: it for name, it in knobs.items() if it is not None})


def trained(config, workers=WORKERS, seed=0):
    """Train; return the figures."""
    simulate(config, workers=workers, seed=seed)
    return json.loads((Path(config.out) / SUMMARY).read_text())


def cut_of(out, step):
    return str(Path(out) / "checkpoints" / f"{step:08d}")


def resumed(out, step, to, **changes):
    """Return what resumes from a step in another folder."""
    return resumed_config(cut_of(out, step), out=str(to), **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that has its checkpoints of steps 5 and 10; nobody changes it."""
    out = tmp_path_factory.mktemp("resume") / "run"
    trained(config_of(out))
    return out


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of it, whose configuration names the other folder."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_metrics_are_of_one_run(tmp_path):
    """The checkpoint lies between two lines: what was counted before it is in the next one."""
    every, told = config_of(tmp_path / "run", log_every=4, batch_size=6), []
    resumes = replace(every, resume=cut_of(every.out, 5))
    # The third time with as many samples a step.
    for config, workers in ((every, 2), (resumes, 2), (replace(resumes, batch_size=4), 3)):
        trained(config, workers)
        text = (tmp_path / "run" / METRICS).read_text()
        told.append([json.loads(line) for line in text.splitlines()])
    times = {"waiting_share", *(it for it in told[0][0] if "second" in it)}
    before, again, _ = ([{n: line[n] for n in {*line} - times} for line in its] for its in told)
    assert before == again
    for one, other in zip(before, told[2], strict=True):
        assert (other["step"], other["samples"]) == (one["step"], one["samples"])
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
    ends = [0.0, *(it["measured_seconds"] for it in told[1])]
    made = np.dot([it["samples_per_second"] for it in told[1]], np.diff(ends))
    assert made == pytest.approx(told[1][-1]["samples"])


def test_auto_begins_where_there_is_no_checkpoint_and_goes_on_where_there_is(tmp_path, whole):
    """It begins anew what died before its first checkpoint."""
    config = config_of(tmp_path / "run", resume="auto", epochs=1)
    out = Path(config.out)
    trained(config)
    again = trained(resumed_config("auto", out=config.out, epochs=2))
    due = json.loads((whole / SUMMARY).read_text())
    assert (again["steps"], again["parameters_sha256"]) == (12, due["parameters_sha256"])
    (out / SUMMARY).unlink()
    shutil.rmtree(out / "checkpoints")
    assert trained(config)["steps"] == 6
    # What is whole is never replaced, nor what cannot be read.
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(ConfigError, match="holds a run already"):
        trained(config)
    (out / SUMMARY).unlink()
    (out / "checkpoints" / "00000007").mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds a run already"):
        trained(config)


def test_the_model_of_the_last_step_is_that_of_the_run(tmp_path):
    """Where workers have models of their own it is their mean."""
    config = config_of(tmp_path / "run", mode="gossip", checkpoint_every=6, epochs=1)
    run = simulate(config, workers=WORKERS)
    assert found(config.out).theta().tobytes() == run.theta.tobytes()


def test_the_newest_are_kept_and_a_torn_one_is_passed_over(tmp_path):
    config = config_of(tmp_path / "run", keep=2, servers=2, checkpoint_every=4)
    trained(config)
    folder = tmp_path / "run" / "checkpoints"
    assert sorted(it.name for it in folder.iterdir()) == ["00000008", "00000012"]
    part = folder / "00000012" / "shard-1-of-2.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    assert found(config.out).manifest.step == 8
    said = []
    simulate(resumed_config(config.out), workers=WORKERS, say=said.append)
    assert said[0].startswith(f"skipped: {part}: has ")
    assert said[1] == f"resuming from step 8, {folder}/00000008"


def test_a_run_goes_on_in_the_folder_where_it_is_now(copy, whole, monkeypatch):
    """Not in the one that its configuration names, which may be another's by now."""
    monkeypatch.chdir(copy / "checkpoints")
    for where in (str(copy), "..", "00000010", cut_of(copy, 5)):
        assert Path(resumed_config(where).out).resolve() == copy
    before = (whole / SUMMARY).read_bytes()
    assert trained(resumed_config("..", epochs=3))["steps"] == 18
    assert (whole / SUMMARY).read_bytes() == before


def test_a_checkpoint_that_was_copied_goes_on_in_a_folder_of_its_own(whole, tmp_path):
    one = tmp_path / "best model"
    shutil.copytree(cut_of(whole, 5), one)
    assert [it for it, _ in Checkpoints.at(Disk(), one).listed()] == [one]
    with pytest.raises(ConfigError, match="best model is in no run's folder: it needs --out"):
        resumed_config(str(one))
    again = trained(resumed_config(str(one), out=str(tmp_path / "again")))
    due = json.loads((whole / SUMMARY).read_text())
    assert again["parameters_sha256"] == due["parameters_sha256"]


@each(
    ("changes", "line"),
    [
        (
            {"format": 1, "created": "2026-11-02T10:11:12Z"},
            "of format 1, which an older psrt wrote at '2026-11-02T10:11:12Z'; this psrt reads "
            "format 2: resume with that one",
        ),
        (
            {"format": 3, "created": "", "psrt": "2.0"},
            "of format 3, which psrt '2.0' wrote; this psrt reads format 2: resume with that one",
        ),
        ({"step": 5}, "its files are those of step 5"),
        ({"parts": []}, "it has no parts"),
    ],
)
def test_why_no_checkpoint_can_be_gone_on_from_is_said(copy, changes, line):
    shutil.rmtree(cut_of(copy, 5), ignore_errors=True)
    manifest = Path(cut_of(copy, 10)) / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(json.dumps(json.loads(text) | changes))
    with pytest.raises(ConfigError, match=f"--resume .*/00000010: {line}"):
        resumed_config(str(copy))
    manifest.write_text(text)


@each("mode", ["sync", "gossip"])
def test_a_run_that_has_come_further_is_not_made_shorter(tmp_path, mode):
    """Its steps would be said to be fewer than its parameters have had."""
    out = tmp_path / mode
    config = config_of(out / "run", mode=mode, checkpoint_every=6)
    trained(config)
    for end in ({"steps": 11}, {"epochs": 1}, {"epochs": 0.5}):
        with pytest.raises(ConfigError, match=r"worker 0.* had taken 12 steps when it was made"):
            trained(resumed_config(config.out, **end))
    for end in ({"steps": 6}, {"epochs": 1}, {"steps": 12}):
        again = trained(resumed(config.out, 6, out / f"{end}", **end))
        assert again["steps"] == end.get("steps", 6)


@each(
    ("changes", "workers", "line"),
    [
        ({"lr": 0.1}, 3, "lr 0.1 instead of 0.05"),
        ({"mode": "allreduce"}, 3, "mode allreduce instead of sync"),
        ({"record": True}, 3, "--record needs a history from the start"),
        ({"record": True}, 2, "2 workers instead of 3, which --record does not allow"),
    ],
)
def test_another_run_is_refused(whole, tmp_path, changes, workers, line):
    with pytest.raises(ConfigError, match=line):
        trained(resumed(whole, 10, tmp_path / "again", **changes), workers)
    assert not (tmp_path / "again").exists()
    other = supervised_problem(config_of(tmp_path, seed=1), workers=3)
    with pytest.raises(ConfigError, match="would not continue that run: other data"):
        simulate(resumed(whole, 10, tmp_path / "again"), other, workers=3)


class Uneven:
    """Worker i has 10 + 5i steps of one sample each."""

    def initial(self):
        return np.linspace(-1, 1, 300, dtype=np.float32)

    def batches(self, worker, workers, epoch):
        return [np.float32(worker + step / 10) for step in range(10 + 5 * worker)]

    def samples(self, batch):
        return 1

    def loss_and_grad(self, theta, batch, out):
        np.subtract(theta, batch, out=out)
        return float(np.mean(out**2))

    def evaluate(self, theta):
        return {}


def test_workers_that_are_done_are_saved_with_those_that_are_not(tmp_path):
    """Sums go on with them, so their part is of each step; here they are done at 10, 15 and 20."""
    config = TrainConfig(
        mode="allreduce", allreduce="ring", batch_size=1, epochs=1, optimizer="adam", lr=0.1,
        out=str(tmp_path / "run"), checkpoint_every=4, keep=9,
    )  # fmt: skip
    end = simulate(config, Uneven(), workers=3)
    for step in (8, 12, 16):
        run = simulate(resumed(config.out, step, tmp_path / f"{step}"), Uneven(), workers=3, seed=5)
        assert run.theta.tobytes() == end.theta.tobytes()
        assert run.summary.steps == end.summary.steps == 20


def test_with_servers_there_are_no_checkpoints_once_a_worker_is_done(tmp_path):
    config = TrainConfig(
        mode="sync", batch_size=1, epochs=1, lr=0.1, timeout_s=1.0,
        out=str(tmp_path / "run"), checkpoint_every=4, keep=9,
    )  # fmt: skip
    simulate(config, Uneven(), workers=3)
    names = sorted(it.name for it in (tmp_path / "run" / "checkpoints").iterdir())
    assert [it for it in names if "." not in it] == ["00000004", "00000008"]


@pytest.mark.parametrize("mode", ["sync", "allreduce"])
def test_other_workers_with_other_batches_go_on_where_the_epoch_was(tmp_path, mode):
    trained(config_of(tmp_path / "run", mode=mode, checkpoint_every=7))
    # Step 7 is 12 samples into epoch 1. Then 20 samples a step are 4 steps an epoch.
    summary = trained(resumed(tmp_path / "run", 7, tmp_path / "again"), 5)
    assert (summary["epochs"], summary["steps"]) == (2, 7 + 4)
    # The first 12 of epoch 1 are trained on again: no step of 20 ends there.
    assert summary["samples"] == 70 + 12 + 70


@each("shard", [None, "parameters"])
def test_workers_on_other_hosts_get_what_others_updated(tmp_path, shard):
    """Who updates what depends on the hosts; then the optimizer's state is put together."""
    way = {"allreduce": "ring"} if shard else {}
    out = tmp_path / f"{shard}"
    config = config_of(out / "run", mode=AllReduce(shard=shard), optimizer="adam", **way)
    end = trained(config)
    read, part = [], Resumption.part
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(giving_back, "hosts_text", lambda setup: "0,1,2")
        patched.setattr(Resumption, "part", lambda it, name: read.append(name) or part(it, name))
        again = trained(resumed(config.out, 5, out / "again"))
    assert again["parameters_sha256"] == end["parameters_sha256"]
    assert len(read) >= 3 * 3, "each worker has read what all have saved"


# --- runs that are recorded, which have one history ----------------------------------------------

#: Saved after steps 3, 6, 9 and 12. Of async, worker 0 is slow, and all are uneven.
RECORDED = {"record": True, "checkpoint_every": 3, "servers": 2, "optimizer": "adam"}
STOPPING = {"mode": "async", "inject": ("*:jitter:0.5", "0:delay:0.4")}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of a recorded run by its mode; nobody changes it."""
    folder = tmp_path_factory.mktemp("recorded")
    for mode, more in (("sync", {}), ("async", STOPPING)):
        trained(config_of(folder / mode, **RECORDED | more))
    return {it.name: it for it in folder.iterdir()}


def went_on(run, step, **changes):
    """Resume in the same folder; check the history that it has then, and return it."""
    trained(resumed_config(cut_of(run, step), **changes))
    assert check_run(run).ok
    return read_history(run)


def test_it_goes_on_again_and_again(recorded, tmp_path):
    """Further, or from an older checkpoint: then what came after that one is gone."""
    run = Path(shutil.copytree(recorded["async"], tmp_path / "run"))
    assert read_history(run).has_stops
    steps = sorted(int(it.name) for it in (run / "checkpoints").iterdir())
    for i, step in enumerate(steps[:2]):
        times = went_on(run, step).header.resumed
        assert len(times) == i + 1
    assert list(times) == sorted(times)
    went_on(run, steps[1], epochs=3)
    assert json.loads((run / SUMMARY).read_text())["epochs"] == 3
    assert len(went_on(run, steps[0]).header.resumed) == 1


def test_what_makes_no_one_history_is_refused(recorded, tmp_path):
    run = Path(shutil.copytree(recorded["sync"], tmp_path / "run"))
    with pytest.raises(ConfigError, match="whose histories --record cannot join"):
        went_on(run, 3, servers=1)
    assert check_run(run).ok  # the folder is as it was
    path = run / "history" / "events.npy"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(ConfigError, match=r"events\.npy: [0-9]+ events are missing"):
        went_on(run, 6)
    path.unlink()
    with pytest.raises(ConfigError, match=r"events\.npy is missing"):
        went_on(run, 6)


@each("mode", ["sync", "async"])
def test_it_is_replayed_unless_workers_stopped_in_it(recorded, tmp_path, mode):
    run = Path(shutil.copytree(recorded[mode], tmp_path / mode))
    before = json.loads((run / SUMMARY).read_text())["parameters_sha256"]
    history = went_on(run, sorted(int(it.name) for it in (run / "checkpoints").iterdir())[1])
    config = recorded_config(run, out=str(tmp_path / f"{mode} again"))
    if mode == "sync":
        assert trained(config)["parameters_sha256"] == before
        return
    with pytest.raises(ConfigError, match="workers stopped for checkpoints in it"):
        trained(config)
    with pytest.raises(ConfigError, match="its times have gaps"):
        calibrate(history)


# --- models that are split ------------------------------------------------------------------------

#: 18 steps in three epochs with two copies; the last batch of each is smaller.
SPLIT = KNOBS | {
    "hidden": (16, 12, 8), "batch_size": 6, "epochs": 3, "optimizer": "adam", "mode": "allreduce",
    "micro_batches": 2, "checkpoint_every": 1, "parallel": "data:2,pipeline:2",
}  # fmt: skip
PIPEDREAM = {"pipeline_schedule": "pipedream", "micro_batches": None}
#: What no job of the laws has: two ways at once, more stages, servers that save where batches have
#: come back, at steps that are no multiples, and averages whose rounds do not end with epochs.
ROWS = {
    "pipedream, servers": PIPEDREAM | {"mode": "sync", "servers": 2, "checkpoint_every": 4},
    "both": {"parallel": "data:2,pipeline:2,tensor:2"},
    "pipedream, so many steps": PIPEDREAM | {"steps": 15, "epochs": None},
    "pipedream, local": PIPEDREAM | {"mode": "local-sgd:local-steps=2"},
}  # fmt: skip
#: What of a run's summary is about its time, or about why something was chosen.
APART = ("second", "wait", "why", "throughput", "per_s", "environment")


def split(out, **more):
    return config_of(out, **SPLIT | more)


def figures_of(config, seed=0):
    summary = trained(config, config.axes.data * config.axes.cells, seed)
    return {name: it for name, it in summary.items() if not any(word in name for word in APART)}


@pytest.mark.one_in(8)
@pytest.mark.rest_one_in(3)
@pytest.mark.parametrize("row", ROWS)
def test_it_ends_with_the_same_bits_and_figures_from_every_cut(tmp_path, row):
    config = split(tmp_path / "run", **ROWS[row])
    figures = figures_of(config)
    steps = sorted(int(it.name) for it in (tmp_path / "run" / "checkpoints").iterdir())
    assert len(steps) >= 2
    for step in [it for it in steps if it < figures["steps"]]:
        again = resumed(config.out, step, tmp_path / f"{step}", checkpoint_every=None, keep=None)
        assert figures_of(again, seed=99) == figures, step


def test_the_flags_that_it_was_begun_with_go_on(tmp_path):
    """The number of copies may be left to the ranks."""
    config = split(tmp_path / "run", checkpoint_every=6, epochs=1, mode="sync", servers=4)
    figures_of(config)
    for text in ("pipeline:2", "pipeline:2,tensor:1", "data:2,pipeline:2"):
        assert resumed_config("auto", out=config.out, parallel=text).axes == (2, 2, 1)
    for text in ("tensor:2", "data:3,pipeline:2"):
        with pytest.raises(ConfigError, match=r"parallel data:.* instead of data:2,pipeline:2"):
            resumed_config("auto", out=config.out, parallel=text)
    with pytest.raises(ConfigError, match="the parts of --parallel data:2,pipeline:2"):
        figures_of(resumed(config.out, 6, tmp_path / "again", servers=2))
