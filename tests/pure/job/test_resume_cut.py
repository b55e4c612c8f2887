"""A run of a model that is cut goes on from a checkpoint to the same bits and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.job.resuming import found, resumed_config
from psrt.job.virtual import simulate
from psrt.report.files import SUMMARY

#: 18 steps in three epochs with two copies; the last batch of each is smaller.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 12, 8), "batch_size": 6, "epochs": 3,
    "lr": 0.05, "optimizer": "adam", "mode": "allreduce", "micro_batches": 2, "keep": 1000,
}  # fmt: skip
STAGES, SLICES = {"parallel": "data:2,pipeline:2"}, {"parallel": "data:2,tensor:2"}
BOTH = {"parallel": "data:2,pipeline:2,tensor:2"}
SYNC, LOCAL = {"mode": "sync"}, {"mode": "local-sgd", "local_steps": 2}
WHOLE = {"pipeline_schedule": "pipedream", "micro_batches": None}
ROWS = {
    "clipped": STAGES | {"clip_norm": 0.5},
    "slices": SLICES | {"micro_batches": None},
    "both": BOTH,
    **{
        f"by {it}": STAGES | {"pipeline_schedule": it, "micro_batches": 4}
        for it in ("sequential", "gpipe", "1f1b", "interleaved:2", "zero-bubble")
    },
    "one copy": {"parallel": "data:1,pipeline:4"},
    "optimizer shared out": STAGES | {"shard": "optimizer"},
    "gradients shared out": STAGES | {"shard": "gradients", "micro_batches": 1},
    "parameters shared out": STAGES | {"shard": "parameters", "micro_batches": 1},
    "codec": STAGES | {"codec": "top-k", "codec_everywhere": True},
    "sync": BOTH | SYNC | {"servers": 4},
    "several servers": STAGES | SYNC | {"servers": 4},
    "shards": STAGES | SYNC | {"servers": 2, "shards_per_server": 2},
    "local": STAGES | LOCAL | {"outer_lr": 0.7},
    "local, servers": STAGES | LOCAL | {"servers": 2},
    "elastic": STAGES | LOCAL | {"mode": "easgd", "servers": 2},
    "gossip": STAGES | {"mode": "gossip", "gradient_tracking": True},
    "push-sum": SLICES | {"mode": "gossip", "push_sum": True, "micro_batches": None},
    "pipedream": STAGES | WHOLE,
    "pipedream, four stages": WHOLE | {"parallel": "data:1,pipeline:4"},
    "pipedream, so many steps": STAGES | WHOLE | {"steps": 15, "epochs": None},
    "pipedream, slices": BOTH | WHOLE,
    "pipedream, servers": STAGES | WHOLE | SYNC | {"servers": 2},
    "pipedream, local": STAGES | WHOLE | LOCAL,
    "pipedream, gossip": STAGES | WHOLE | {"mode": "gossip"},
}
#: What of a run's summary is about its time, or about why something was chosen.
APART = ("second", "wait", "why", "throughput", "per_s", "environment")


def config_of(tmp_path, row, **more):
    knobs = KNOBS | {"checkpoint_every": 1, "out": str(tmp_path / "run")} | ROWS[row] | more
    return TrainConfig(**{name: it for name, it in knobs.items() if it is not None})


def trained(config, seed=0):
    """Train; return the parameters and the figures."""
    run = simulate(config, workers=config.axes.data * config.axes.cells, seed=seed)
    summary = json.loads((Path(config.out) / SUMMARY).read_text())
    figures = {name: it for name, it in summary.items() if not any(word in name for word in APART)}
    return run.theta, figures


def resumed(config, step, tmp_path, **changes):
    where = str(Path(config.out) / "checkpoints" / f"{step:08d}")
    out = str(tmp_path / f"from-{step}")
    return resumed_config(where, out=out, checkpoint_every=None, keep=None, **changes)


def goes_on(tmp_path, row, cuts):
    """Check that a run goes on from some of its checkpoints."""
    config = config_of(tmp_path, row)
    theta, figures = trained(config)
    names = sorted((Path(config.out) / "checkpoints").iterdir())
    steps = [int(it.name) for it in names]
    assert len(steps) >= 2
    for step in [it for it in steps if it < figures["steps"]][cuts]:
        again, found_again = trained(resumed(config, step, tmp_path), seed=99)
        assert again.tobytes() == theta.tobytes(), step
        assert found_again == figures, step
    if (
        config.shard != "parameters" and steps[-1] == figures["steps"]
    ):  # else no worker has them all
        assert found(config.out).theta().tobytes() == theta.tobytes()


@pytest.mark.one_in(8)
@pytest.mark.parametrize("row", ROWS)
def test_it_ends_with_the_same_bits_and_figures(tmp_path, row):
    goes_on(tmp_path, row, slice(0, 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", ROWS)
def test_it_does_so_from_every_cut(tmp_path, row):
    goes_on(tmp_path, row, slice(None))


def test_pipedream_is_saved_where_no_batch_is_under_way(tmp_path):
    config = config_of(tmp_path, "pipedream, four stages", checkpoint_every=5)
    trained(config)
    names = (Path(config.out) / "checkpoints").iterdir()
    assert sorted(int(it.name) for it in names) == [12, 24, 36]


def test_a_longer_run_of_pipedream_goes_on_from_the_end_of_a_shorter_one(tmp_path):
    theta, figures = trained(config_of(tmp_path / "long", "pipedream"))
    short = config_of(tmp_path, "pipedream", epochs=2)
    trained(short)
    again, found_again = trained(resumed(short, 12, tmp_path, epochs=3), seed=9)
    assert again.tobytes() == theta.tobytes()
    assert found_again == figures


def test_other_servers_are_refused_in_one_line(tmp_path):
    config = config_of(tmp_path, "several servers", checkpoint_every=6)
    trained(config)
    with pytest.raises(ConfigError, match="the parts of --parallel data:2,pipeline:2"):
        trained(resumed(config, 6, tmp_path, servers=2))


def test_other_copies_are_refused_in_one_line(tmp_path):
    config = config_of(tmp_path, "one copy", checkpoint_every=12)
    trained(config)
    with pytest.raises(ConfigError, match="parallel data:2,pipeline:4"):
        resumed(config, 12, tmp_path, parallel="data:2,pipeline:4")


def test_pipedream_with_parts_of_the_data_is_refused():
    with pytest.raises(ConfigError, match="--checkpoint-every 5 is not possible with --pipeline-"):
        TrainConfig(
            out="x", checkpoint_every=5, parallel="data:2,pipeline:2", mode="allreduce",
            pipeline_schedule="pipedream", partition="by-label:2",
        )  # fmt: skip


def test_workers_that_save_different_steps_are_refused():
    with pytest.raises(ConfigError, match="--checkpoint-every 5 is not possible with --parallel"):
        TrainConfig(out="x", checkpoint_every=5, parallel="data:2,pipeline:2", mode="async")


def test_the_flags_that_it_was_begun_with_go_on(tmp_path):
    """The number of copies may be left to the ranks."""
    config = config_of(tmp_path, "clipped")
    trained(config)
    for text in ("pipeline:2", "pipeline:2,tensor:1", "data:2,pipeline:2"):
        again = resumed_config("auto", out=config.out, parallel=text)
        assert again.axes == (2, 2, 1)
    for text in ("tensor:2", "data:3,pipeline:2"):
        with pytest.raises(ConfigError, match=r"parallel data:.* instead of data:2,pipeline:2"):
            resumed_config("auto", out=config.out, parallel=text)
