"""``--shard`` where the model is cut across ranks: the same bits as without, in less memory."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from psrt.config import TrainConfig
from psrt.config.names import SHARDS
from psrt.errors import ConfigError
from psrt.job.virtual import simulate
from psrt.sharding import Sharing, memory
from psrt.simulation import SimulationCosts
from support.uneven import Uneven

pytestmark = pytest.mark.rest_one_in(3)

#: Layers of 200, 147, 72 and 30 parameters. The last batch of an epoch is smaller.
KNOBS = {
    "dataset": "synthetic:60x9x3", "hidden": (20, 7, 9), "batch_size": 5, "epochs": 2,
    "mode": "allreduce", "optimizer": "adam", "bucket_bytes": 300, "allreduce": "ring",
}  # fmt: skip
#: Layouts, and the parts that each makes of a model.
AXES = {"pipeline:1": 1, "pipeline:2": 2, "tensor:2": 2, "pipeline:2,tensor:2": 4}
ONE, DEFERRED = {"micro_batches": 1}, {"micro_batches": 3, "defer_weights": True}
WAYS = (
    ONE,
    DEFERRED,
    {**ONE, "pipeline_schedule": "zero-bubble"},
    {**ONE, "pipeline_schedule": "interleaved:2"},
    {**DEFERRED, "pipeline_schedule": "interleaved:2"},
    {**DEFERRED, "pipeline_schedule": "gpipe"},
    {"pipeline_schedule": "pipedream"},
    {"pipeline_schedule": "pipedream", "staleness_rate": "inverse"},
    {"pipeline_schedule": "pipedream", "recompute": True},
)


def bits(workers, problem=None, **knobs):
    config = TrainConfig(**{**KNOBS, **knobs})
    return simulate(config, problem, workers=workers).theta.tobytes()


def goes(shard, axes, more):
    """Return whether a combination is one that is not refused."""
    name = more.get("pipeline_schedule", "1f1b")
    if name.startswith("interleaved") and "pipeline:2" not in axes:
        return False
    return name != "pipedream" or (shard != "parameters" and "pipeline:2" in axes)


GRID = [it for it in itertools.product(SHARDS, AXES, WAYS) if goes(*it)]


def has_the_bits(shard, axes, more, copies, **knobs):
    workers, knobs = copies * AXES[axes], {"parallel": axes, **more, **knobs}
    return bits(workers, **knobs, shard=shard) == bits(workers, **knobs)


#: Two batches are alive in a stage of three layers, and the older is computed once more.
AGAIN = ("gradients", "pipeline:2", {**WAYS[-1], "stages": "3,1"})


@pytest.mark.parametrize(("shard", "axes", "more"), [*GRID[1::7], AGAIN], ids=str)
def test_the_bits_of_a_run_without(shard, axes, more):
    assert has_the_bits(shard, axes, more, 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("shard", "axes", "more"), GRID, ids=str)
@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("bucket_bytes", [1, 300, 1 << 20])
def test_the_bits_of_every_run_without(shard, axes, more, copies, bucket_bytes):
    assert has_the_bits(shard, axes, more, copies, bucket_bytes=bucket_bytes)


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("more", [ONE, DEFERRED], ids=["one", "deferred"])
def test_copies_that_leave_at_different_times(shard, more):
    """The last batch of an epoch has one sample or two: some micro-batches have no row."""
    knobs = {"parallel": "pipeline:2", **more, "bucket_bytes": 1}
    config = TrainConfig(**{**KNOBS, **knobs, "dataset": "synthetic:34x9x3"})
    runs = [
        simulate(dataclasses.replace(config, shard=of), problem, workers=6)
        for problem in (Uneven(config, 3), None)
        for of in (None, shard)
    ]
    assert runs[0].theta.tobytes() == runs[1].theta.tobytes()
    assert runs[2].theta.tobytes() == runs[3].theta.tobytes()
    updates = [[worker.stats.updates for worker in run.workers] for run in runs]
    assert updates == [[6] * 6] * 4


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_nobody_waits_forever_however_long_passes_and_messages_take(shard):
    def random(*of):
        return of[-1].exponential(1e-3)

    costs = SimulationCosts(compute=random, latency=random)
    for more in (DEFERRED, {**ONE, "pipeline_schedule": "interleaved:2"}):
        knobs = {**KNOBS, "parallel": "pipeline:2,tensor:2", **more, "bucket_bytes": 1, "epochs": 1}
        knobs["hidden"] = (8, 7, 6)
        found = {
            simulate(TrainConfig(**knobs, shard=shard), workers=12, costs=costs, seed=seed)
            .theta.tobytes()
            for seed in range(2)
        }  # fmt: skip
        assert len(found) == 1


@pytest.mark.parametrize("shard", [None, *SHARDS])
def test_memory_is_what_the_formula_says_of_a_part(shard):
    """The two stages have the layers of 200 and of 147, 72 and 30 parameters."""
    config = TrainConfig(**KNOBS, parallel="pipeline:2", **ONE, stages="1,3", shard=shard)
    found = simulate(config, workers=6).workers
    sharing = None if shard is None else Sharing(shard)
    for worker, buckets in ((found[0], [200]), (found[1], [102, 147])):
        due = memory(sharing, sum(buckets), workers=3, vectors=2, buckets=buckets)
        for name, value in dataclasses.asdict(due).items():
            has = getattr(worker.strategy.memory, name)
            assert has == pytest.approx(value, rel=0.05), name


@pytest.mark.parametrize("shard", SHARDS)
def test_timing_only_counts_the_same(shard):
    config = TrainConfig(**KNOBS, parallel="pipeline:2", **DEFERRED, shard=shard)
    whole, timed = (simulate(config, workers=4, numerics=numerics) for numerics in (True, False))
    assert timed.summary.bytes_sent == whole.summary.bytes_sent
    assert timed.seconds == pytest.approx(whole.seconds)


def test_parameters_that_are_shared_out_are_gathered_once_more_for_each_micro_batch():
    """With one bucket a stage they stay; with more than two places they do not."""
    knobs = {**KNOBS, "parallel": "pipeline:1", "shard": "parameters", "defer_weights": True}

    def sent(micro_batches, size):
        config = TrainConfig(**{**knobs, "micro_batches": micro_batches, "bucket_bytes": size})
        return simulate(config, workers=2).summary.bytes_sent

    assert sent(2, 1 << 20) == sent(4, 1 << 20)
    assert sent(2, 1) < sent(4, 1)


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_gradients_that_are_added_up_are_refused_in_one_line(shard):
    for given in ({"micro_batches": 4}, {}):  # by default a stage has four for each of two
        with pytest.raises(ConfigError) as error:
            bits(2, parallel="pipeline:2", shard=shard, **given)
        count = given.get("micro_batches", 5)
        assert str(error.value) == (
            f"--shard {shard} gives each gradient away at once, and {count} --micro-batches are "
            "added up; --defer-weights makes one gradient of them, and --shard optimizer keeps the "
            "sum"
        )
