"""Hooks over MPI: rank 0 calls them, whoever evaluates, and all ranks end together."""

import json
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

import psrt
from psrt import TrainConfig
from psrt.history.check.run import check_run
from support.least_squares import UnevenSquares, schemes

BASE = {"lr": 0.05, "epochs": 4000, "timeout_s": 20}
KINDS = schemes("sync, 2 servers", "async", "ssp", "auto", "local-sgd")


@pytest.mark.parametrize("flags", KINDS)
def test_rank_0_sees_and_stops_a_run_on_all_ranks(comm, shared_folder, flags):
    out, problem = shared_folder / "run", UnevenSquares()
    epochs, records = [], []

    def on_epoch(epoch):
        epochs.append(epoch)
        epoch.save(shared_folder / "best.safetensors")
        if epoch.number >= 2:
            epoch.stop()

    hooks = {"on_epoch": on_epoch, "on_record": records.append}
    config = TrainConfig(**BASE | flags, out=str(out), record=True)
    run = psrt.run(config, problem, comm=comm, **hooks)
    if comm.rank:
        assert not epochs
        assert not records
        return
    assert run.summary.stopped == "on_epoch"
    assert run.summary.steps < 4000  # of 16000; worker 1 has none
    assert records == [json.loads(it) for it in (out / "metrics.jsonl").read_text().splitlines()]
    for epoch in epochs:
        due = problem.evaluate(epoch.tensors["theta"])["loss"]
        assert epoch.figures == {"loss": pytest.approx(due)}
    kept = load_file(shared_folder / "best.safetensors")["theta"]
    np.testing.assert_array_equal(kept, epochs[-1].tensors["theta"])
    assert check_run(out).ok, check_run(out)
    workers = comm.size - run.summary.servers
    again = psrt.simulate(psrt.recorded_config(out), problem, workers=workers)
    np.testing.assert_array_equal(again.theta, run.theta)


@pytest.mark.parametrize("flags", schemes("ssp", "auto"))
def test_a_hook_that_fails_or_takes_longer_than_the_deadline_ends_no_rank(comm, flags):
    """The others wait for rank 0, which computes; what it raises comes when all are done."""
    config = TrainConfig(**BASE | flags | {"epochs": 2, "timeout_s": 1})
    error = None

    def on_epoch(epoch):
        time.sleep(1.5)
        raise LookupError("no such board")

    try:
        psrt.run(config, UnevenSquares(), comm=comm, on_epoch=on_epoch)
    except LookupError as raised:
        error = raised
    assert (error is not None) == (comm.rank == 0)
    if error is not None:
        assert error.run.summary.epochs == 2
    assert comm.allreduce(1) == comm.size
