"""A job that goes on from the state of its roles at a step is the job that was not interrupted."""

import pytest

from psrt.config import TrainConfig
from psrt.optim.registry import OPTIMIZERS
from support.resuming import differences, trained

#: 24 steps in four epochs; the last batch of each is smaller.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 8), "batch_size": 4, "epochs": 4, "lr": 0.05,
}  # fmt: skip
MODES = {
    "serial": {"mode": "serial", "batch_size": 12},
    "all-reduce": {"mode": "allreduce", "allreduce": "ring", "bucket_bytes": 64},
    "all-reduce of nodes": {"mode": "allreduce"},
    "clipped": {"mode": "allreduce", "allreduce": "tree", "clip_norm": 0.5},
    "optimizer shared out": {"mode": "allreduce", "allreduce": "ring", "shard": "optimizer"},
    "sync": {"mode": "sync"},
    "servers": {"mode": "sync", "servers": 2, "clip_norm": 0.5},
    "shards": {"mode": "sync", "servers": 2, "shards_per_server": 2},
}
#: As registered under other names, too; a codec makes the other half of the last one.
NAMES = [name for name in OPTIMIZERS if name != "demo"]


def config_of(mode, **more):
    return TrainConfig(**KNOBS | MODES[mode] | more)


def goes_on(config, steps, *, workers=3, problem=None):
    """Check that a job goes on from some of its steps."""
    whole = trained(config, workers=workers, problem=problem and problem(), cuts=True)
    assert set(steps) <= set(whole.snapshots)
    for step in steps:
        start = whole.snapshots[step]
        again = trained(config, workers=workers, problem=problem and problem(), seed=9, start=start)
        assert again.run.theta.tobytes() == whole.run.theta.tobytes(), step
        assert not differences(whole.roles, again.roles), step


def workers_in(mode):
    return 1 if MODES[mode]["mode"] == "serial" else 3


@pytest.mark.parametrize("mode", MODES)
def test_a_job_goes_on(mode):
    goes_on(config_of(mode, optimizer="adam"), [6, 13], workers=workers_in(mode))


@pytest.mark.parametrize("optimizer", NAMES)
def test_a_job_goes_on_with_each_optimizer(optimizer):
    goes_on(config_of("sync", optimizer=optimizer), [7])


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", NAMES)
def test_a_job_goes_on_from_every_step(mode, optimizer):
    config = config_of(mode, optimizer=optimizer)
    goes_on(config, range(1, 21), workers=workers_in(mode))
