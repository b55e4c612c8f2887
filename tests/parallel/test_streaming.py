"""Pushes that set out while the gradient is still being computed."""

import time

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.history import Kind, read_history

BASE = {
    "hidden": (64, 64), "batch_size": 8, "steps": 6, "lr": 0.05, "timeout_s": 20,
    "shards_per_server": 4, "record": True,
}  # fmt: skip


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("more", [{}, {"clip_norm": 1.0}], ids=["", "clipped"])
def test_the_last_layers_are_pushed_before_backward_ends(comm, shared_folder, mode, more):
    config = TrainConfig(mode=mode, **BASE, **more, out=str(shared_folder / "run"))
    run = psrt.run(config, comm=comm)
    if run is None:
        return
    history = read_history(shared_folder / "run")
    for events in history.workers:
        pushes = events[events["kind"] == Kind.PUSH].reshape(-1, 4)
        first, last = pushes[:, 0], pushes[:, -1]
        if more:  # the norm is that of the whole gradient
            assert (pushes["shard"] == np.arange(4)).all()
            assert (first["time"] == last["time"]).all()
        else:
            assert (first["shard"] == 3).all()
            assert (first["time"] < last["time"]).all()
    if mode == "sync":
        whole = psrt.simulate(
            TrainConfig(mode="sync", **(BASE | {"shards_per_server": 1, "record": False}), **more),
            workers=comm.size - 1,
        )
        np.testing.assert_array_equal(run.theta, whole.theta)


class Uneven:
    """Worker 0 leaves after two steps, the others take six; everybody reads θ slowly."""

    def initial(self):
        return np.zeros(5, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.ones(1)] * (6 if worker else 2)

    def loss_and_grad(self, theta, batch, out):
        before = theta.copy()
        out[:] = 1.0
        time.sleep(0.005)
        np.testing.assert_array_equal(theta, before)
        return 1.0

    def evaluate(self, theta):
        first = theta.copy()
        time.sleep(0.1)
        np.testing.assert_array_equal(theta, first)
        return {"loss": float(theta[0])}


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("mode", ["sync", "async", "ssp", "softsync"])
@pytest.mark.parametrize("servers", [1, 2])
def test_nobody_writes_where_a_worker_computes_or_evaluates(comm, mode, servers):
    if comm.size - servers < 2:
        pytest.skip("takes two workers")
    config = TrainConfig(
        mode=mode, epochs=1, lr=1.0, servers=servers, shards_per_server=2, timeout_s=20
    )
    run = psrt.run(config, Uneven(), comm=comm)
    if run is None:
        return
    updates = -run.theta[0]
    assert updates == 6 if mode == "sync" else updates > 2
    if mode == "sync":
        told = {record.test_loss for record in run.records} - {None}
        assert told == {-2.0}  # worker 0 evaluates what it read last
