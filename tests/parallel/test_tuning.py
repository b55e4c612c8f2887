"""--tune on real ranks: what it tries leaves nothing behind, and a replay repeats the choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.config import MODES
from psrt.core.errors import ConfigError
from psrt.history.check.run import check_run

#: Several buckets, periods and shards.
KNOBS = {
    "dataset": "synthetic:400x512x16", "hidden": (256, 700), "batch_size": 8, "optimizer": "adam",
    "lr": 1e-3, "steps": 12, "timeout_s": 60,
}  # fmt: skip


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("local-sgd:local-steps=16", {}),
        # More than 4 MiB, so that ranks of a host share one copy of it.
        ("allreduce", {"allreduce": "node", "check_every": 1, "hidden": (1024, 700)}),
        ("allreduce:shard=optimizer", {"allreduce": "ring"}),
        ("sync", {}),
        ("local-sgd:local-steps=2,learner-ranks=host", {"servers": 1}),
    ],
)
def test_the_run_is_that_of_the_choice_given_and_a_replay_repeats_it(
    comm, mode, more, shared_folder
):
    out, again = str(shared_folder / "run"), str(shared_folder / "again")
    knobs = KNOBS | {"mode": mode} | more
    made = psrt.run(TrainConfig(**knobs, tune=True, record=True, out=out), comm=comm)
    repeats = TrainConfig(**knobs, tune=True, record=True, out=again, replay=out)
    repeated = psrt.run(repeats, comm=comm)
    tuned = comm.bcast(made and made.summary.tuned)
    given = {tuned.knob: tuned.chosen}
    if tuned.knob != "shards_per_server":
        given = {"mode": replace(MODES.accept(mode), **given)}
    plain = psrt.run(TrainConfig(**knobs | given), comm=comm)
    if comm.rank == 0:
        assert len(tuned.tried) > 1
        for its in (repeated, plain):
            assert its.summary.parameters_sha256 == made.summary.parameters_sha256
            assert its.summary.bytes_sent == made.summary.bytes_sent
        assert repeated.summary.tuned == tuned
        assert check_run(out).ok
        assert check_run(again).ok


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", ["sync", "allreduce", "local-sgd"])
def test_a_loop_of_ones_own_is_not_rehearsed(comm, mode):
    theta = np.zeros(9, np.float32)
    config = TrainConfig(mode=mode, tune=True, steps=2)
    with (
        pytest.raises(ConfigError, match="cannot rehearse"),
        psrt.Trainer(config, theta, comm=comm) as trainer,
    ):
        trainer.step(0.0, theta)
