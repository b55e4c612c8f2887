"""A run that goes on from a checkpoint ends as the one that was never interrupted, to the bit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk
from psrt.codec import CODECS
from psrt.config import TrainConfig
from psrt.config.modes import MODES as MODE_TABLE
from psrt.errors import ConfigError
from psrt.job import giving_back
from psrt.job.problems import supervised_problem
from psrt.job.resuming import Resumption, found, resumed_config
from psrt.job.virtual import simulate
from psrt.report.files import METRICS, SUMMARY, OutputFolder
from support.cases import each

pytestmark = pytest.mark.rest_one_in(3)

#: 24 steps; the last batch of an epoch is smaller. Several buckets and matrices.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 8), "batch_size": 4, "epochs": 4, "lr": 0.05,
    "checkpoint_every": 7, "keep": 1000, "bucket_bytes": 64,
}  # fmt: skip
WORKERS = 3
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "sign-sgd")
MODES = {
    "all-reduce": {"mode": "allreduce", "allreduce": "ring"},
    "node": {"mode": "allreduce"},
    "clipped": {"mode": "allreduce", "clip_norm": 0.5, "bucket_bytes": None},
    "shared out": {"mode": "allreduce", "allreduce": "ring", "shard": "optimizer"},
    "gradients shared out": {"mode": "allreduce", "allreduce": "ring", "shard": "gradients"},
    "parameters shared out": {"mode": "allreduce", "allreduce": "ring", "shard": "parameters"},
    "some classes each": {"mode": "allreduce", "partition": "by-label:2", "schedule": "cosine"},
    "chosen by costs": {"mode": "allreduce", "codec": "dgc", "codec_density": 0.1},
    "sync": {"mode": "sync", "bucket_bytes": None},
    "servers": {"mode": "sync", "servers": 2, "clip_norm": 0.5, "bucket_bytes": None},
    "shards": {"mode": "sync", "servers": 2, "shards_per_server": 2, "bucket_bytes": None},
    "local": {"mode": "local-sgd", "local_steps": 3, "allreduce": "ring", "bucket_bytes": None},
    "local, servers": {
        "mode": "local-sgd", "local_steps": 3, "servers": 2, "outer_lr": 0.7, "bucket_bytes": None,
    },
    "streaming": {
        "mode": "local-sgd", "local_steps": 3, "fragments": 3, "bucket_bytes": None,
    },
    "elastic": {"mode": "easgd", "local_steps": 3, "servers": 2, "bucket_bytes": None},
    "gossip": {"mode": "gossip", "gradient_tracking": True, "bucket_bytes": None},
    "push-sum": {
        "mode": "gossip", "push_sum": True, "topology": "exponential", "bucket_bytes": None,
    },
    "gossip in frames": {
        "mode": "gossip", "codec": "top-k", "codec_everywhere": True, "bucket_bytes": None,
    },
    "codecs": {
        "mode": "sync", "servers": 2, "codec": "top-k", "codec_reply": "low-rank",
        "codec_everywhere": True, "bucket_bytes": None,
    },
    "sums in frames": {
        "mode": "allreduce", "allreduce": "all-pairs", "codec": "dgc", "codec_everywhere": True,
    },
}  # fmt: skip
#: Optimizers tried in all modes, with one vector of state and with two and a count; and modes tried
#: with all of them, one for each place where optimizers are.
STATES = ("nesterov", "adam")
PLACES = ("all-reduce", "shared out", "shards", "local, servers", "gossip")
#: Figures of a run that do not depend on where it was interrupted.
SAME = (
    "parameters_sha256", "steps", "updates", "samples", "epochs", "bytes_sent", "bytes_received",
    "test_loss", "test_accuracy", "staleness", "skew", "graph_averages",
)  # fmt: skip


def config_of(tmp_path, mode, **more):
    knobs = KNOBS | {"out": str(tmp_path / "run")} | MODES[mode] | more
    return TrainConfig(**{name: it for name, it in knobs.items() if it is not None})


def trained(config, workers=WORKERS, seed=0):
    simulate(config, workers=workers, seed=seed)
    return json.loads((Path(config.out) / SUMMARY).read_text())


def metrics(config):
    lines = (Path(config.out) / METRICS).read_text().splitlines()
    return [json.loads(line) for line in lines]


def saved_steps(config):
    """Return the steps that there are checkpoints of: at least three."""
    steps = sorted(int(it.name) for it in (Path(config.out) / "checkpoints").iterdir())
    assert len(steps) >= 3
    return steps


def resumed(config, step, tmp_path, workers=WORKERS, **changes):
    """Go on from a step into another folder; return the summary."""
    out = tmp_path / f"from-{step}"
    where = str(Path(config.out) / "checkpoints" / f"{step:08d}")
    again = resumed_config(where, out=str(out), checkpoint_every=None, keep=None, **changes)
    return trained(again, workers, seed=99)


def differences(one, other, names=SAME):
    return {name: (one[name], other[name]) for name in names if one[name] != other[name]}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", MODES)
def test_it_ends_with_the_same_bits_and_figures(tmp_path, mode):
    config = config_of(tmp_path, mode, optimizer="adam")
    whole = trained(config)
    for step in saved_steps(config)[::2]:
        assert not differences(resumed(config, step, tmp_path), whole), step


@pytest.mark.parametrize(
    ("mode", "optimizer"),
    [
        (mode, optimizer)
        for mode in MODES
        for optimizer in OPTIMIZERS
        if optimizer in STATES or mode in PLACES
    ],
)
@pytest.mark.exhaustive
def test_it_does_so_from_every_step_with_every_optimizer(tmp_path, mode, optimizer):
    config = config_of(tmp_path, mode, optimizer=optimizer, checkpoint_every=1)
    whole = trained(config)
    for step in saved_steps(config)[:20]:
        assert not differences(resumed(config, step, tmp_path), whole), step


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_goes_on(tmp_path, optimizer):
    config = config_of(tmp_path, "servers", optimizer=optimizer)
    whole = trained(config)
    assert not differences(resumed(config, 7, tmp_path), whole)


@each(("before", "after"), list(permutations((1, 2, 3), 2)))
@pytest.mark.one_in(3)
def test_other_servers_go_on_to_the_same_bits(tmp_path, before, after):
    knobs = {"optimizer": "adam", "clip_norm": 0.5}
    config = config_of(tmp_path / f"{before}{after}", "sync", servers=before, **knobs)
    whole = trained(config)
    again = resumed(config, 14, tmp_path / f"{before}{after}", servers=after)
    same = ("parameters_sha256", "steps", "samples", "epochs", "test_loss", "test_accuracy")
    assert not differences(again, whole, same)


@each("codec", ["float16", "bfloat16"])
def test_other_servers_go_on_to_the_same_bits_by_codecs_of_elements(tmp_path, codec):
    knobs = {"codec": codec, "codec_reply": codec, "codec_everywhere": True}
    config = config_of(tmp_path / codec, "sync", servers=2, **knobs)
    whole = trained(config)
    for servers in (1, 3):
        again = resumed(config, 14, tmp_path / codec / str(servers), servers=servers)
        assert again["parameters_sha256"] == whole["parameters_sha256"]


@each(
    ("codec", "servers", "workers"),
    [(codec, *others) for codec in CODECS for others in [(3, 3), (2, 2), (1, 4)]],
)
@pytest.mark.exhaustive
def test_with_every_codec_others_go_on(tmp_path, codec, servers, workers):
    out = tmp_path / f"{codec} {servers} {workers}"
    knobs = {"codec": codec, "codec_everywhere": True, "servers": 2}
    config = config_of(out, "sync", **knobs)
    trained(config)
    again = resumed(config, 7, out, workers=workers, servers=servers)
    assert again["epochs"] == 4


def test_metrics_are_of_one_run(tmp_path):
    config = config_of(tmp_path, "sync", log_every=5)
    trained(config)
    whole = metrics(config)
    simulate(replace(config, resume=str(Path(config.out) / "checkpoints" / "00000014")), workers=3)
    again = metrics(config)
    names = [name for name in whole[0] if "second" not in name and name != "waiting_share"]
    assert [[it[name] for name in names] for it in again] == [
        [it[name] for name in names] for it in whole
    ]
    seconds = [it["seconds"] for it in again]
    assert seconds == sorted(seconds)
    ends = [it["measured_seconds"] for it in again]
    made = np.dot([it["samples_per_second"] for it in again], np.diff([0.0, *ends]))
    assert made == pytest.approx(again[-1]["samples"])


def test_auto_begins_anew_what_died_before_its_first_checkpoint(tmp_path):
    config = config_of(tmp_path, "sync", resume="auto", epochs=1)
    out = Path(config.out)
    trained(config)
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


def test_auto_begins_where_there_is_no_checkpoint_and_goes_on_where_there_is(tmp_path):
    config = config_of(tmp_path, "sync", resume="auto", epochs=2)
    first = trained(config)
    assert first["steps"] == 12
    again = trained(resumed_config("auto", out=config.out, epochs=4))
    assert again["steps"] == 24
    assert (
        again["parameters_sha256"]
        == trained(config_of(tmp_path / "b", "sync"))["parameters_sha256"]
    )


@pytest.mark.parametrize("mode", ["all-reduce", "servers", "gossip", "push-sum"])
def test_the_model_of_the_last_step_is_that_of_the_run(tmp_path, mode):
    """Where workers have models of their own it is their mean."""
    config = config_of(tmp_path, mode, checkpoint_every=24)
    run = simulate(config, workers=WORKERS)
    assert found(config.out).theta().tobytes() == run.theta.tobytes()


def test_only_the_newest_are_kept(tmp_path):
    config = config_of(tmp_path, "sync", checkpoint_every=5, keep=2)
    trained(config)
    folder = Path(config.out) / "checkpoints"
    assert sorted(it.name for it in folder.iterdir()) == ["00000015", "00000020"]


def test_a_torn_checkpoint_is_passed_over(tmp_path):
    config = config_of(tmp_path, "servers", checkpoint_every=5)
    trained(config)
    newest = Path(config.out) / "checkpoints" / "00000020"
    part = newest / "shard-1-of-2.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    assert found(config.out).manifest.step == 15
    said = []
    simulate(resumed_config(config.out), workers=WORKERS, say=said.append)
    assert said[0].startswith(f"passed over: {part}: has ")
    assert said[1] == f"going on from step 15, {newest.parent}/00000015"


def test_a_run_goes_on_in_the_folder_where_it_is_now(tmp_path, monkeypatch):
    """Not in the one that its configuration names, which may be another's by now."""
    config = config_of(tmp_path, "sync", checkpoint_every=5, epochs=2)
    trained(config)
    moved = Path(config.out).rename(tmp_path / "moved")
    monkeypatch.chdir(moved / "checkpoints")
    for where in (str(moved), "..", "00000010", str(moved / "checkpoints" / "00000005")):
        again = resumed_config(where)
        assert Path(again.out).resolve() == moved
    assert trained(resumed_config("..", epochs=3))["steps"] == 18
    assert not Path(config.out).exists()


def test_why_no_checkpoint_can_be_gone_on_from_is_said(tmp_path):
    config = config_of(tmp_path, "sync", checkpoint_every=10, keep=1)
    trained(config)
    manifest = Path(config.out) / "checkpoints" / "00000020" / "manifest.json"
    values = json.loads(manifest.read_text())
    for changes, line in (
        ({"format": 2}, "of format 2, this psrt reads format 1 only"),
        ({"step": 10}, "its files are those of step 10"),
        ({"parts": []}, "it has no parts"),
    ):
        manifest.write_text(json.dumps(values | changes))
        with pytest.raises(ConfigError, match=f"--resume .*/00000020: {line}"):
            resumed_config(config.out)


@pytest.mark.parametrize("mode", ["sync", "local", "gossip"])
def test_a_run_that_has_come_further_is_not_made_shorter(tmp_path, mode):
    """Its steps would be said to be fewer than its parameters have had."""
    config = config_of(tmp_path, mode, checkpoint_every=6)
    trained(config)
    for end in ({"steps": 23}, {"epochs": 3}, {"epochs": 0.5}):
        with pytest.raises(ConfigError, match=r"worker 0.* had taken 24 steps when it was made"):
            trained(resumed_config(config.out, **end))
    earlier = str(Path(config.out) / "checkpoints" / "00000018")
    for end in ({"steps": 18}, {"epochs": 3}, {"steps": 24}):
        again = resumed_config(earlier, out=str(tmp_path / f"{end}"), **end)
        assert trained(again)["steps"] == end.get("steps", 18)


def test_a_checkpoint_that_was_copied_goes_on_in_a_folder_of_its_own(tmp_path):
    config = config_of(tmp_path, "sync", checkpoint_every=5)
    whole = trained(config)["parameters_sha256"]
    copy = tmp_path / "best model"
    shutil.copytree(Path(config.out) / "checkpoints" / "00000015", copy)
    assert [it for it, _ in Checkpoints.at(Disk(), copy).listed()] == [copy]
    with pytest.raises(ConfigError, match="best model lies in no run's folder: it needs --out"):
        resumed_config(str(copy))
    again = resumed_config(str(copy), out=str(tmp_path / "again"))
    assert trained(again)["parameters_sha256"] == whole


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"lr": 0.1}, "lr 0.1 instead of 0.05"),
        ({"mode": "allreduce"}, "mode allreduce instead of sync"),
        ({"seed": 1}, "seed 1 instead of 0"),
    ],
)
def test_another_run_is_refused(tmp_path, changes, line):
    config = config_of(tmp_path, "sync", checkpoint_every=10)
    trained(config)
    with pytest.raises(ConfigError, match=line):
        resumed_config(config.out, **changes)


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("local", "2 workers instead of 3, which --mode local-sgd cannot have without"),
        ("gossip", "2 workers instead of 3, which --mode gossip cannot have"),
        ("sums in frames", "2 workers instead of 3, which --codec dgc cannot have without servers"),
    ],
)
def test_other_workers_are_refused_where_each_has_something_of_its_own(tmp_path, mode, line):
    config = config_of(tmp_path, mode)
    trained(config)
    with pytest.raises(ConfigError, match=line):
        resumed(config, saved_steps(config)[0], tmp_path, workers=2)


def test_other_batches_are_those_of_other_workers(tmp_path):
    config = config_of(tmp_path, "sync", epochs=2)
    trained(config)
    with pytest.raises(ConfigError, match="batch-size 6 instead of 4"):
        resumed(config, 7, tmp_path, workers=3, batch_size=6)


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        ({"out": None}, "--checkpoint-every 5 has no effect without --out DIR"),
        ({"mode": "local-sgd", "eager": True}, "--checkpoint-every 5 is not possible with --eager"),
        (
            {"mode": "local-sgd", "local_steps": 4, "fragments": 2, "sync_delay": 2},
            "--checkpoint-every 5 is not possible with --sync-delay 2",
        ),
        ({"resume": "x", "replay": "y"}, "--checkpoint-every 5 cannot be combined with --replay y"),
        ({"keep": 3, "checkpoint_every": None}, "--keep 3 has no effect without"),
    ],
)
def test_what_does_not_go_together_is_one_line(knobs, line):
    with pytest.raises(ConfigError, match=line):
        TrainConfig(**{"out": "runs/x", "checkpoint_every": 5} | knobs)


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


@pytest.mark.parametrize("step", [8, 12, 16])
def test_workers_that_are_done_are_saved_with_those_that_are_not(tmp_path, step):
    """Sums go on with them, so their part is of each step; here they are done at 10, 15 and 20."""
    config = TrainConfig(
        mode="allreduce", allreduce="ring", batch_size=1, epochs=1, optimizer="adam", lr=0.1,
        out=str(tmp_path / "run"), checkpoint_every=4, keep=9,
    )  # fmt: skip
    whole = simulate(config, Uneven(), workers=3)
    where = str(tmp_path / "run" / "checkpoints" / f"{step:08d}")
    again = resumed_config(where, out=str(tmp_path / "again"))
    run = simulate(again, Uneven(), workers=3, seed=5)
    assert run.theta.tobytes() == whole.theta.tobytes()
    assert run.summary.steps == whole.summary.steps == 20


def test_with_servers_there_are_no_checkpoints_once_a_worker_is_done(tmp_path):
    config = TrainConfig(
        mode="sync", batch_size=1, epochs=1, lr=0.1, timeout_s=1.0,
        out=str(tmp_path / "run"), checkpoint_every=4, keep=9,
    )  # fmt: skip
    simulate(config, Uneven(), workers=3)
    names = sorted(it.name for it in (tmp_path / "run" / "checkpoints").iterdir())
    assert [it for it in names if "." not in it] == ["00000004", "00000008"]


def test_without_numerics_there_is_nothing_to_save(tmp_path):
    config = config_of(tmp_path, "sync")
    with pytest.raises(ConfigError, match="--checkpoint-every 7 has nothing to save"):
        simulate(config, workers=3, numerics=False)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_other_data_is_refused(tmp_path):
    config = config_of(tmp_path, "sync")
    trained(config)
    problem = supervised_problem(replace(config, seed=1, dataset="synthetic:70x12x4"), workers=3)
    again = resumed_config(config.out, out=str(tmp_path / "again"))
    with pytest.raises(ConfigError, match="would not go on with that run: other data"):
        simulate(again, problem, workers=3)


#: Modes in which other workers may go on, and some that sum in another order.
REGROUPED = ("all-reduce", "node", "clipped", "shared out", "gradients shared out",
             "parameters shared out", "sync", "servers", "shards")  # fmt: skip


def test_which_modes_other_workers_go_on_with():
    in_rounds = {MODES[mode]["mode"] for mode in REGROUPED}
    assert {it.name for it in MODE_TABLE.values() if it.regroups} == {
        *in_rounds, "async", "ssp", "softsync", "local-sgd", "easgd",
    }  # fmt: skip


@pytest.mark.one_in(16)
@pytest.mark.parametrize("optimizer", ["adam", "momentum", "adagrad"])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (4, 1), (3, 6), (6, 4)])
@pytest.mark.parametrize("mode", REGROUPED)
def test_other_workers_go_on_with_the_same_batches(tmp_path, mode, before, after, optimizer):
    """The samples of a step are the same, so only the order of sums is another one."""
    config = config_of(tmp_path, mode, optimizer=optimizer, batch_size=12 // before)
    clips = config.clip_norm is not None  # each worker's gradient by itself
    whole = simulate(config, workers=before)
    for step in (7, 14):
        where = str(Path(config.out) / "checkpoints" / f"{step:08d}")
        out = str(tmp_path / f"from-{step}")
        again = resumed_config(where, out=out, batch_size=12 // after, checkpoint_every=7)
        one = simulate(again, workers=after)
        assert (one.summary.steps, one.summary.samples) == (24, whole.summary.samples)
        assert one.summary.epochs == whole.summary.epochs
        assert one.summary.updates == whole.summary.updates
        if not clips:
            np.testing.assert_allclose(one.theta, whole.theta, rtol=2e-4, atol=2e-5)
        # And back, from a checkpoint that others have made.
        back = resumed_config(out, out=str(tmp_path / f"back-{step}"), batch_size=12 // before)
        two = simulate(back, workers=before)
        assert two.summary.samples == whole.summary.samples
        if not clips:
            np.testing.assert_allclose(two.theta, whole.theta, rtol=2e-4, atol=2e-5)


def test_other_workers_go_on_with_one_series_of_metrics(tmp_path):
    """The checkpoint lies between two lines: what was counted before it is in the next one."""
    config = config_of(tmp_path, "sync", batch_size=3, log_every=5)
    simulate(config, workers=4)
    whole = metrics(config)
    where = str(Path(config.out) / "checkpoints" / "00000007")
    simulate(resumed_config(where, batch_size=6), workers=2)
    again = metrics(config)
    assert [it["step"] for it in again] == [it["step"] for it in whole]
    for one, other in zip(whole, again, strict=True):
        assert other["samples"] == one["samples"]
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)


@pytest.mark.parametrize("mode", ["all-reduce", "servers"])
def test_other_workers_with_other_batches_go_on_where_the_epoch_was(tmp_path, mode):
    config = config_of(tmp_path, mode, epochs=4)  # 6 steps an epoch, the last of 10 samples
    simulate(config, workers=3)
    where = str(Path(config.out) / "checkpoints" / "00000007")  # 12 samples into epoch 1
    again = resumed_config(where, out=str(tmp_path / "again"), checkpoint_every=None, keep=None)
    summary = simulate(again, workers=5).summary  # 20 samples a step, 4 steps an epoch
    assert summary.epochs == 4
    assert summary.steps == 7 + 3 * 4
    # The first 12 of epoch 1 are trained on again: no step of 20 ends there.
    assert summary.samples == 70 + 12 + 3 * 70


@pytest.mark.parametrize("mode", ["node", "shared out", "parameters shared out"])
def test_workers_on_other_hosts_get_what_others_updated(tmp_path, mode, monkeypatch):
    """Who updates what depends on the hosts; then the optimizer's state is put together."""
    config = config_of(tmp_path, mode, optimizer="adam")
    whole = trained(config)
    monkeypatch.setattr(giving_back, "hosts_text", lambda setup: "0,1,2")
    read = []
    part = Resumption.part
    monkeypatch.setattr(Resumption, "part", lambda it, name: read.append(name) or part(it, name))
    assert not differences(resumed(config, 14, tmp_path), whole)
    assert len(read) >= 3 * 3, "each worker has read what all have saved"


@pytest.mark.parametrize(
    ("every", "more", "line"),
    [
        ("5s", {}, "--checkpoint-every 5s is not possible in virtual time"),
        ("auto", {}, "--checkpoint-every auto is not possible in virtual time"),
        (5, {"numerics": False}, "--checkpoint-every 5 has nothing to save without numerics"),
    ],
)
def test_what_virtual_time_cannot_do_leaves_nothing_behind(tmp_path, every, more, line):
    config = config_of(tmp_path, "sync", checkpoint_every=every)
    with pytest.raises(ConfigError, match=line):
        simulate(config, workers=3, **more)
    assert not Path(config.out).exists()


def test_a_run_under_way_is_not_gone_on_with(tmp_path, monkeypatch):
    config = config_of(tmp_path, "sync", checkpoint_every=6)
    trained(config)
    there = OutputFolder(config.out)
    there.prepare("", resumes=True)
    again = resumed_config(config.out)

    def read(it, name):
        raise ConfigError("the other one has deleted it")

    with monkeypatch.context() as patched:
        patched.setattr(Resumption, "part", read)
        for resume in (again.resume, "auto"):
            with pytest.raises(ConfigError, match="is in use by a run under way"):
                simulate(replace(again, resume=resume), workers=WORKERS)
    there.discard()
    there.release()
    with pytest.raises(ConfigError, match="2 workers instead of 3, which --record cannot have"):
        simulate(replace(resumed_config(config.out), record=True), workers=2)
    assert trained(resumed_config(config.out, epochs=5))["steps"] == 30
