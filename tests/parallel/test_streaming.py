"""Pushes that set out while the gradient is still being computed."""

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
