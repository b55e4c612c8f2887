"""--tune on real ranks: all change at the same update, and nothing is lost at a change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.core.errors import ConfigError
from psrt.history.check.run import check_run

#: More than 4 MiB in several buckets, so that ranks of a host share one copy of it.
KNOBS = {
    "dataset": "synthetic:400x512x16", "hidden": (1024, 700), "batch_size": 8, "optimizer": "adam",
    "lr": 1e-3, "steps": 22, "timeout_s": 60,
}  # fmt: skip


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("algorithm", ["node", "ring"])
def test_the_bits_are_those_of_any_buckets(comm, algorithm):
    """Of two terms; with more, all ranks still have the same bits, which each update compares."""
    config = TrainConfig(mode="allreduce", allreduce=algorithm, check_every=1, **KNOBS)
    tuned = psrt.run(replace(config, tune=True), comm=comm)
    plain = psrt.run(config, comm=comm)
    if comm.rank == 0:
        assert tuned.summary.tuned.since == 8 * len(tuned.summary.tuned.tried) == 16
        if comm.size == 2:
            np.testing.assert_array_equal(tuned.theta, plain.theta)
        else:
            np.testing.assert_allclose(tuned.theta, plain.theta, rtol=0.1, atol=2e-3)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", ["local-sgd:local-steps=16", "allreduce", "sync"])
def test_a_replay_repeats_the_choice(comm, mode, shared_folder):
    out, again = str(shared_folder / "run"), str(shared_folder / "again")
    knobs = KNOBS | {"mode": mode, "hidden": (256, 700), "steps": 44, "record": True}
    made = psrt.run(TrainConfig(**knobs, tune=True, out=out), comm=comm)
    is_served = mode == "sync"
    repeated = psrt.run(TrainConfig(**knobs, tune=True, out=again, replay=out), comm=comm)
    if comm.rank == 0:
        assert made.summary.tuned.chosen
        assert repeated.summary.parameters_sha256 == made.summary.parameters_sha256
        assert is_served or repeated.summary.tuned == made.summary.tuned
        assert check_run(out).ok
        assert check_run(again).ok


@pytest.mark.mpi(min_size=2)
def test_a_rehearsal_leaves_nothing_behind(comm):
    knobs = KNOBS | {"mode": "sync", "hidden": (256, 700), "steps": 6}
    tuned = psrt.run(TrainConfig(**knobs, tune=True), comm=comm)
    each = comm.bcast(tuned and tuned.summary.tuned.chosen)
    plain = psrt.run(TrainConfig(**knobs, shards_per_server=each), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(tuned.theta, plain.theta)
        assert tuned.summary.steps == plain.summary.steps == 6
        assert tuned.summary.bytes_sent == plain.summary.bytes_sent


@pytest.mark.mpi(min_size=2)
def test_a_loop_of_ones_own_is_not_rehearsed(comm):
    theta = np.zeros(1 << 18, np.float32)
    config = TrainConfig(mode="sync", tune=True, steps=2)
    with (
        pytest.raises(ConfigError, match="cannot rehearse"),
        psrt.Trainer(config, theta, comm=comm) as trainer,
    ):
        trainer.step(0.0, theta)
