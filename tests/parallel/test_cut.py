"""Models that are cut into stages: the bits are those of one stage with the same micro-batches."""

import numpy as np
import pytest

import psrt
from psrt.job.virtual import simulate

BASE = {"epochs": 1, "hidden": (24, 20, 16), "seed": 1, "optimizer": "momentum"}


def trained(comm, ranks, **knobs):
    """Train on the first ranks; return the hash of the parameters, "" at the others."""
    part = comm.Split(comm.rank < ranks, comm.rank)
    try:
        if comm.rank >= ranks:
            return ""
        run = psrt.run(psrt.TrainConfig(**BASE | knobs), comm=part)
    finally:
        part.Free()
    return "" if run is None else run.summary.parameters_sha256


@pytest.mark.parametrize(
    "knobs",
    [
        {"pipeline_schedule": "sequential"},
        {"pipeline_schedule": "gpipe"},
        {"pipeline_schedule": "1f1b"},
        {"pipeline_schedule": "zero-bubble"},
        {"pipeline_schedule": "interleaved:2"},
        {"recompute": True},
        {"stages": "3,1"},
        {"shared_memory": False},
    ],
    ids=str,
)
def test_stages_train_as_one_stage_does(comm, knobs):
    if comm.size < 2:
        pytest.skip("stages are on ranks of their own")
    wanted = trained(comm, 1, parallel="pipeline:1", micro_batches=5)
    assert trained(comm, 2, parallel="pipeline:2", micro_batches=5, **knobs) == wanted


@pytest.mark.parametrize(
    ("copies", "knobs"),
    [
        (2, {"mode": "allreduce"}),
        (2, {"mode": "allreduce", "allreduce": "ring", "overlap": False}),
        (2, {"mode": "local-sgd", "local_steps": 3}),
        (1, {"mode": "sync", "servers": 1}),
        (2, {"mode": "sync", "servers": 1}),
    ],
    ids=str,
)
def test_copies_of_stages_train_as_copies_of_the_whole(comm, copies, knobs):
    servers = knobs.get("servers", 0)
    if comm.size < 2 * (copies + servers):
        pytest.skip("there are too few ranks")
    knobs |= {"micro_batches": 3, "batch_size": 16}
    wanted = trained(comm, copies + servers, parallel="pipeline:1", **knobs)
    knobs["servers"] = 2 * servers
    assert trained(comm, 2 * (copies + servers), parallel="pipeline:2", **knobs) == wanted


@pytest.mark.parametrize("axes", ["tensor:2", "tensor:3", "tensor:2,pipeline:2"])
def test_slices_train_as_the_whole_but_for_rounding(comm, axes):
    ranks = psrt.TrainConfig(parallel=axes).axes.cells
    if comm.size < ranks:
        pytest.skip("there are too few ranks")
    knobs = {"micro_batches": 3, "hidden": (25, 20, 17), "lr": 0.01}
    found = []
    for count, how in ((1, "pipeline:1"), (ranks, axes)):
        part = comm.Split(comm.rank < count, comm.rank)
        if comm.rank < count:
            run = psrt.run(psrt.TrainConfig(**BASE | knobs, parallel=how), comm=part)
            found.append(run)
        part.Free()
    if comm.rank == 0:
        whole, slices = (run.theta for run in found)
        np.testing.assert_allclose(slices, whole, atol=1e-5)
        assert not np.array_equal(slices, whole)


@pytest.mark.parametrize(
    ("servers", "knobs"),
    [
        (0, {"parallel": "pipeline:2", "pipeline_schedule": "zero-bubble"}),
        pytest.param(0, {"parallel": "tensor:3"}, marks=pytest.mark.exhaustive),
        pytest.param(1, {"parallel": "pipeline:1", "mode": "sync"}, marks=pytest.mark.exhaustive),
        pytest.param(0, {"parallel": "data:2,pipeline:2"}, marks=pytest.mark.exhaustive),
        (2, {"parallel": "data:1,pipeline:2", "mode": "sync"}),
        (0, {"parallel": "pipeline:3", "clip_norm": 0.3}),
        pytest.param(
            2,
            {"parallel": "tensor:2", "clip_norm": 0.3, "mode": "sync"},
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=str,
)
def test_a_simulation_trains_to_the_same_bits(comm, servers, knobs):
    axes = psrt.TrainConfig(parallel=knobs["parallel"]).axes
    workers = axes.cells * (axes.data or 1)
    if comm.size < workers + servers:
        pytest.skip("there are too few ranks")
    knobs = {"micro_batches": 5, "servers": servers} | knobs
    real = trained(comm, workers + servers, **knobs)
    if comm.rank == 0:
        found = simulate(psrt.TrainConfig(**BASE | knobs), workers=workers).summary
        assert found.parameters_sha256 == real


@pytest.mark.parametrize(
    "knobs",
    [
        {"shared_memory": False},
        {"recompute": True},
        {"mode": "sync", "servers": 2},
        {"mode": "local-sgd", "local_steps": 3},
    ],
    ids=str,
)
def test_a_pipeline_that_is_not_drained_trains_alike_in_every_way(comm, knobs):
    """What it trains is held against a model by hand in ``tests/pure/runtime``."""
    ranks = 2 + knobs.get("servers", 0)
    if comm.size < ranks:
        pytest.skip("there are too few ranks")
    own = {"parallel": "pipeline:2", "pipeline_schedule": "pipedream", "epochs": None}
    for steps in 47, 3:
        wanted = trained(comm, 2, **own, steps=steps)
        assert trained(comm, ranks, **own, steps=steps, **knobs) == wanted


@pytest.mark.parametrize(
    ("copies", "mode"), [(1, "serial"), (2, "allreduce"), (2, "local-sgd")], ids=str
)
def test_a_pipeline_of_one_stage_that_is_not_drained_is_none(comm, copies, mode):
    """One stage has no stale gradients: it trains as a model that is not cut, bit for bit."""
    if comm.size < copies:
        pytest.skip("there are too few ranks")
    cut = {"parallel": "pipeline:1", "pipeline_schedule": "pipedream"}
    cut |= {} if mode == "serial" else {"mode": mode}
    assert trained(comm, copies, **cut) == trained(comm, copies, mode=mode)


@pytest.mark.parametrize("mode", ["allreduce", "async"])
def test_staleness_of_a_pipeline_is_counted(comm, mode):
    ranks = 2 if mode == "allreduce" else 4
    if comm.size < ranks:
        pytest.skip("there are too few ranks")
    part = comm.Split(comm.rank < ranks, comm.rank)
    config = {"parallel": "data:1,pipeline:2", "pipeline_schedule": "pipedream", "mode": mode}
    if comm.rank < ranks:
        run = psrt.run(psrt.TrainConfig(**BASE | config, dataset="synthetic:96x8x2"), comm=part)
        if run is not None:
            # Three batches: none is late in the last stage, all but the first one in the first.
            assert run.summary.staleness.histogram == (4, 2)
    part.Free()
