"""Pushes that set out while the gradient is still being computed."""

import time
from itertools import pairwise

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
            assert (first["time"] == last["time"]).all()
        else:
            assert (first["time"] < last["time"]).all()
        assert (pushes["shard"] == [3, 2, 1, 0]).all()
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


class Parted:
    """A gradient in parts, which only some workers hand over early.

    Each is longer than what may be unanswered between hosts.
    """

    def __init__(self, worker):
        self.says = worker % 2
        self.bounds = np.arange(5) * (1 << 17)

    def initial(self):
        return np.zeros(self.bounds[-1], np.float32)

    def gradient_spans(self):
        return [*pairwise(self.bounds.tolist())][::-1]

    def batches(self, worker, workers, epoch):
        return [np.ones(1)] * 3

    def loss_and_grad(self, theta, batch, out, ready):
        out[:] = 1.0
        for i in range(4 * self.says):
            ready(i)
        return 0.0

    def evaluate(self, theta):
        return {"loss": 0.0}


@pytest.mark.mpi(min_size=3)
def test_between_hosts_workers_may_hand_over_different_parts_early(comm):
    config = TrainConfig(
        mode="sync", shards_per_server=4, epochs=1, lr=1.0, shared_memory=False, timeout_s=10
    )
    run = psrt.run(config, Parted(comm.rank), comm=comm)
    if run is not None:
        assert (run.theta == -3.0).all()
