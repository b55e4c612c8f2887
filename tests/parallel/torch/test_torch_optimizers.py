"""Optimizers of torch at servers and workers over MPI, beside torch alone."""

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import psrt
from psrt import ConfigError, TrainConfig
from psrt.data import BatchPlan
from psrt.history.check.run import check_run
from support.least_squares import schemes
from support.torch_models import data, loss, parameters_of, plain, problem_of, trained_alone

BASE = {"epochs": 2, "timeout_s": 60}


def given(module, lr=0.01):
    """Return an optimizer with a scheduler; biases have no weight decay."""
    named = list(module.named_parameters())
    weights, biases = ([it for name, it in named if ("bias" in name) is is_bias]
                       for is_bias in (False, True))  # fmt: skip
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases}]
    optimizer = torch.optim.Adam(groups, lr=lr)
    return {"optimizer": optimizer, "scheduler": lr_scheduler.ExponentialLR(optimizer, 0.5)}


def run_of(comm, flags, **more):
    module = plain()
    config = TrainConfig(**BASE | flags | more)
    return psrt.run(config, problem_of(module, **given(module)), comm=comm)


@pytest.mark.parametrize("flags", schemes("sync, 2 servers", "ring", "node"))
def test_workers_in_a_loop_are_torch_alone_on_large_batches(comm, flags):
    module, alone, (x, y) = plain(), plain(), data()
    with psrt.Trainer(TrainConfig(**BASE | flags), module, comm=comm, **given(module)) as trainer:
        plan = BatchPlan(len(x), batch_size=8, workers=max(1, trainer.workers), seed=0)
        while trainer.epoch(steps=plan.steps_per_epoch):
            for step in range(plan.steps_per_epoch):
                rows = np.array(plan.indices(trainer.epochs, step, trainer.worker))
                if len(rows):
                    loss(module, (x[rows], y[rows])).backward()
                trainer.step(samples=len(rows))
    of = given(alone)
    workers = comm.size - flags.get("servers", 0)
    expected = trained_alone(
        alone, batch=8 * workers, epochs=2, optimizer=of["optimizer"], after_epoch=of["scheduler"]
    )
    np.testing.assert_allclose(parameters_of(module), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("flags", schemes("async", "local-sgd", "auto"))
def test_a_recorded_run_is_checked_and_repeated(comm, shared_folder, flags):
    out = str(shared_folder / "run")
    run = run_of(comm, flags, out=out, record=True)
    module = plain()
    again = psrt.run(psrt.recorded_config(out), problem_of(module, **given(module)), comm=comm)
    if comm.rank == 0:
        assert check_run(out).ok
        np.testing.assert_array_equal(again.theta, run.theta)


@pytest.mark.mpi(min_size=2)
def test_ranks_must_have_the_same_optimizer(comm):
    module = plain()
    lr = 0.01 if comm.rank < comm.size - 1 else 0.02
    problem = problem_of(module, **given(module, lr=lr))
    last = comm.size - 1
    with pytest.raises(ConfigError, match=f"differs between ranks: rank {last} brings .*lr=0.02"):
        psrt.run(TrainConfig(mode="allreduce", **BASE), problem, comm=comm)
