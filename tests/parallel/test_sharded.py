"""``--shard`` over MPI: the same bits as without, on one host and on several."""

from __future__ import annotations

import pytest

from psrt import TrainConfig
from psrt.config.names import SHARDS
from psrt.history.check.run import check_run
from psrt.job.mpi import run_over_mpi
from psrt.mpi.port import MpiPort
from support.uneven import Uneven

#: 371 parameters in buckets of 171 and 200; the last batch of an epoch is smaller. Shares of four
#: samples add up alike in any order: ``auto`` may sum the weights of workers by another algorithm.
SMALL = {"dataset": "synthetic:118x9x3", "hidden": (20, 7), "batch_size": 4, "bucket_bytes": 300}
#: More than one block of an update for each of four workers, and θ is one on a host.
LARGE = {"dataset": "synthetic:60x300x10", "hidden": (3500,), "batch_size": 5, "epochs": 1}
#: The only cases of it.
SLOW = ("one-host-optimizer-large]", "apart-parameters-large]")
BASE = {"mode": "allreduce", "epochs": 2, "timeout_s": 20, "optimizer": "adam"}


def result(comm, problem=None, **knobs):
    """Return the bits of a run and how it summed."""
    run = run_over_mpi(comm, TrainConfig(**{**BASE, **knobs}), problem)
    return comm.bcast(None if run is None else (run.theta.tobytes(), run.summary.allreduce))


@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("shard", SHARDS)
def test_the_bits_of_a_run_without(comm, host, monkeypatch, request, model, shard):
    """Whatever ``auto`` takes where ranks are on these hosts, and by the ring of all ranks."""
    if model is LARGE and (comm.size > 4 or request.node.name.split("[")[1] not in SLOW):
        pytest.skip("a large model takes its time: each way is shown once")
    monkeypatch.setattr(
        "psrt.job.mpi.MpiPort", lambda *given, **more: MpiPort(*given, **{**more, "host": host})
    )
    part, algorithm = result(comm, **model, shard=shard)
    assert part == result(comm, **model, allreduce=algorithm)[0]
    knobs = {**model, "allreduce": "ring"}
    assert result(comm, **knobs, shard=shard) == result(comm, **knobs)


@pytest.mark.parametrize("shard", SHARDS)
def test_ranks_that_leave_at_different_times(comm, shard):
    knobs = {**SMALL, "hidden": (8, 7, 6, 5), "bucket_bytes": 1}
    config = TrainConfig(**{**BASE, **knobs})
    runs = [
        result(comm, Uneven(config, comm.size), **knobs, allreduce="ring", shard=of)
        for of in (None, shard)
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("shard", SHARDS)
def test_recorded_and_repeated(comm, shared_folder, shard):
    knobs = {**SMALL, "allreduce": "ring", "shard": shard}
    first = result(comm, **knobs, out=str(shared_folder / "run"), record=True)
    if comm.rank == 0:
        assert check_run(shared_folder / "run").ok
    assert result(comm, **knobs, replay=str(shared_folder / "run")) == first


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize(
    "knobs",
    [
        {"parallel": "pipeline:2", "micro_batches": 1},
        {"parallel": "pipeline:2", "micro_batches": 3, "defer_weights": True},
        {"parallel": "tensor:2", "micro_batches": 1, "shared_memory": False},
    ],
    ids=["stages", "deferred", "slices"],
)
def test_of_a_model_that_is_cut(comm, shard, knobs):
    ranks = comm.size // 2 * 2
    part = comm.Split(comm.rank < ranks, comm.rank)
    if comm.rank < ranks:
        knobs = {**SMALL, **knobs, "hidden": (20, 7, 9), "allreduce": "ring"}
        assert result(part, **knobs, shard=shard) == result(part, **knobs)
    part.Free()
