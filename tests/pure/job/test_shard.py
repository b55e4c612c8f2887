"""``--shard``, of whole models and of cut ones: the same bits as without, in less memory."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from psrt.config import TrainConfig
from psrt.config.names import SHARDS
from psrt.core.errors import ConfigError
from psrt.core.sharding import Sharing, memory
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts
from support.cases import each, some
from support.knobs import together
from support.uneven import Uneven

pytestmark = pytest.mark.rest_one_in(6)

#: 371 parameters in three layers of 200, 147 and 24, and buckets of the last two and the first. The
#: last batch of an epoch is smaller: 60 samples are no multiple of 5 for each worker.
KNOBS = {
    "dataset": "synthetic:60x9x3", "hidden": (20, 7), "batch_size": 5, "epochs": 2,
    "mode": "allreduce:bucket-bytes=300",
}  # fmt: skip


def run(workers, **knobs):
    return simulate(TrainConfig(**together({**KNOBS, **knobs})), workers=workers)


def shared(config, shard):
    """Return the config with other parts of it that workers share out."""
    return dataclasses.replace(config, mode=dataclasses.replace(config.scheme, shard=shard))


def bits(result):
    return result.theta.tobytes()


#: What is shared out, and the all-reduces for it: a host cannot keep parameters for its ranks.
CASES = [(it, "ring") for it in SHARDS] + [(it, "node") for it in SHARDS if it != "parameters"]


@pytest.mark.parametrize(("shard", "algorithm"), CASES)
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adagrad", "adamw"])
@pytest.mark.parametrize("bucket_bytes", [1, 300, 1 << 20])
@pytest.mark.one_in(50)
def test_the_bits_of_a_run_without(shard, algorithm, workers, optimizer, bucket_bytes):
    knobs = {"optimizer": optimizer, "allreduce": algorithm, "bucket_bytes": bucket_bytes}
    knobs |= {"weight_decay": 0.01}
    whole, part = run(workers, **knobs), run(workers, **knobs, shard=shard)
    assert bits(part) == bits(whole)
    assert part.summary.updates == whole.summary.updates > 2
    buckets = {1: 3, 300: 2, 1 << 20: 1}[bucket_bytes]
    assert part.summary.buckets == whole.summary.buckets == buckets


@each("shard", SHARDS)
def test_more_workers_than_parameters(shard):
    """A layer of 2 x 1 weights and a bias, and 1 x 2 and two: most workers own nothing."""
    knobs = {"dataset": "synthetic:30x2x2", "hidden": (1,), "batch_size": 2, "allreduce": "ring"}
    assert bits(run(8, **knobs, shard=shard)) == bits(run(8, **knobs))


@each("shard", SHARDS)
def test_workers_that_leave_at_different_times(shard):
    """In five buckets: a place is used again while others still have nothing but zeros there."""
    deep = {
        **KNOBS,
        "dataset": "synthetic:120x9x3",
        "hidden": (8, 7, 6, 5),
        "mode": "allreduce:bucket-bytes=1",
    }
    config = TrainConfig(**deep, allreduce="ring", optimizer="adam")
    runs = [simulate(shared(config, of), Uneven(config, 4), workers=4) for of in (None, shard)]
    assert [worker.clock for worker in runs[1].workers] == [2, 4, 6, 8]
    assert bits(runs[0]) == bits(runs[1])


@each("shard", [None, *SHARDS])
def test_memory_is_what_the_formula_says(shard):
    knobs = {"hidden": (40, 40, 40), "dataset": "synthetic:120x20x10", "bucket_bytes": 6000}
    found = run(7, **knobs, optimizer="adam", allreduce="ring", shard=shard).summary
    model = [(20, 40), (40, 40), (40, 40), (40, 10)]
    buckets = [410 + 1640, 1640, 840]
    assert found.buckets == len(buckets)
    n = sum(a * b + b for a, b in model)
    due = memory(
        None if shard is None else Sharing(shard), n, workers=7, vectors=2, buckets=buckets
    )
    for name, value in dataclasses.asdict(due).items():
        assert getattr(found.memory, name) == pytest.approx(value, rel=0.05), name


@each("shard", SHARDS)
def test_the_parts_of_a_step_take_the_time_of_a_step(shard):
    """Messages take none here: what is left is four steps an epoch, of a millisecond each."""
    costs = SimulationCosts(compute=lambda rank, rng: 1e-3, latency=lambda rng: 0.0)
    config = TrainConfig(**together({**KNOBS, "allreduce": "ring", "shard": shard}))
    assert simulate(config, workers=3, costs=costs).seconds == pytest.approx(8e-3)


class NoChain(Uneven):
    """Its gradient comes as a whole."""

    layers = loss = None


@each(
    ("knobs", "message"),
    [
        ({"shard": "optimizer", "optimizer": "demo"}, "cannot be combined with --codec demo"),
        ({"mode": "allreduce:shard=parameters,overlap=false"}, "parameters needs overlap=true; "),
        ({"shard": "parameters", "check_every": 5}, "--check-every 5 has no effect with --mode"),
        ({"shard": "gradients", "parallel": "pipeline:2", "micro_batches": 4}, "4 micro-batches"),
        (
            {"shard": "gradients"},
            "^--mode allreduce:shard=gradients: the problem, NoChain, is not a chain",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(knobs, message):
    def asked():
        config = TrainConfig(**together({**KNOBS, **knobs}))
        simulate(config, None if "parallel" in knobs else NoChain(config, 2), workers=2)

    with pytest.raises(ConfigError, match=message):
        asked()


@each("shard", ["gradients", "parameters"])
def test_a_worker_holds_no_more_than_it_says(shard):
    """Its vectors in the port, by hand: two buckets of 200, and of 371 the 124 of its share."""
    found = run(3, optimizer="adam", allreduce="ring", shard=shard)
    for port in found.world.ports:
        held = 57 + 67 + 400 if shard == "parameters" else 371
        assert (port.gradient.size - 3, port.theta.size) == (400, held)


def test_parameters_are_never_whole_before_the_end():
    """No line has an accuracy but the last one, and all have that of a run without."""
    whole, part = (run(3, allreduce="ring", shard=shard) for shard in (None, "parameters"))
    assert [record.accuracy for record in part.records[:-1]] == [None] * (len(part.records) - 1)
    assert part.records[-1].accuracy == whole.records[-1].accuracy
    assert [it.loss for it in part.records] == [it.loss for it in whole.records]


# --- models that are cut -------------------------------------------------------------------------

#: Layers of 200, 147, 72 and 30 parameters. The last batch of an epoch is smaller.
CUT = KNOBS | {"hidden": (20, 7, 9), "optimizer": "adam", "allreduce": "ring"}
#: Layouts, and the parts that each makes of a model.
AXES = {"pipeline:1": 1, "pipeline:2": 2, "tensor:2": 2, "pipeline:2,tensor:2": 4}
ONE, DEFERRED = {"micro_batches": 1}, {"micro_batches": 3, "defer_weights": True}
WAYS = (
    ONE,
    {**ONE, "pipeline_schedule": "zero-bubble"},
    {**DEFERRED, "pipeline_schedule": "interleaved:2"},
    {**DEFERRED, "pipeline_schedule": "gpipe"},
    {"pipeline_schedule": "pipedream"},
    {"pipeline_schedule": "pipedream", "recompute": True},
)


def goes(shard, axes, more):
    """Return whether a combination is one that is not refused."""
    name = more.get("pipeline_schedule", "1f1b")
    if name.startswith("interleaved") and "pipeline:2" not in axes:
        return False
    return name != "pipedream" or (shard != "parameters" and "pipeline:2" in axes)


GRID = [it for it in itertools.product(SHARDS, AXES, WAYS) if goes(*it)]
#: Two batches are alive in a stage of three layers, and the older is computed once more.
AGAIN = ("gradients", "pipeline:2", {**WAYS[-1], "stages": "3,1"})


@pytest.mark.parametrize("combination", [AGAIN, *some(GRID, one_in=25)], ids=str)
def test_the_bits_of_a_cut_run_without(combination):
    shard, axes, more = combination
    copies = 1 + GRID.index(combination) % 3 if combination in GRID else 2
    for bucket_bytes in (1, 300) if copies == 2 else (1 << 20,):
        knobs = CUT | {"parallel": axes, **more, "bucket_bytes": bucket_bytes}
        part, whole = (run(copies * AXES[axes], **knobs, shard=it) for it in (shard, None))
        assert bits(part) == bits(whole)


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("more", [ONE, DEFERRED], ids=["one", "deferred"])
@pytest.mark.one_in(4)
def test_copies_that_leave_at_different_times(shard, more):
    """The last batch of an epoch has one sample or two: some micro-batches have no row."""
    knobs = {"parallel": "pipeline:2", **more, "bucket_bytes": 1}
    config = TrainConfig(**together({**CUT, **knobs, "dataset": "synthetic:34x9x3"}))
    for problem in (Uneven(config, 3), None):
        whole, part = (simulate(shared(config, of), problem, workers=6) for of in (None, shard))
        assert bits(whole) == bits(part)
        assert [worker.stats.updates for worker in part.workers] == [6] * 6


def test_parameters_that_are_shared_out_are_gathered_once_more_for_each_micro_batch():
    """With one bucket a stage they stay; with more than two places they do not."""
    knobs = {
        **CUT,
        "parallel": "pipeline:1",
        "mode": "allreduce:bucket-bytes=300,shard=parameters",
        "defer_weights": True,
    }

    def sent(micro_batches, size):
        config = TrainConfig(
            **together({**knobs, "micro_batches": micro_batches, "bucket_bytes": size})
        )
        return simulate(config, workers=2).summary.bytes_sent

    assert sent(2, 1 << 20) == sent(4, 1 << 20)
    assert sent(2, 1) < sent(4, 1)
