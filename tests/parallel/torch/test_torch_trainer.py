"""A loop of one's own over a module of torch: one process of torch is the oracle."""

import numpy as np
import pytest
import torch

import psrt
from psrt import ConfigError, TrainConfig
from psrt.data import BatchPlan
from support.least_squares import schemes
from support.torch_models import data, loss, parameters_of, plain, trained_alone

BASE = {"epochs": 2, "lr": 0.1, "timeout_s": 60}


def trained(config, module, comm, batch=8, parameters=None):
    """Train in a loop; return the trainer."""
    x, y = data()
    with psrt.Trainer(config, module if parameters is None else parameters, comm=comm) as trainer:
        plan = BatchPlan(len(x), batch_size=batch, workers=max(1, trainer.workers), seed=0)
        while trainer.epoch(steps=plan.steps_per_epoch):
            for step in range(plan.steps_per_epoch):
                rows = torch.from_numpy(
                    np.array(plan.indices(trainer.epochs, step, trainer.worker))
                )
                found = loss(module, (x[rows], y[rows])) if len(rows) else None
                if found is not None:
                    found.backward()
                trainer.step(samples=len(rows), loss=found and found.item())
    return trainer


@pytest.mark.parametrize("flags", schemes("sync", "sync, 2 servers", "ring", "node"))
def test_workers_together_are_torch_alone_on_large_batches(comm, flags):
    module = plain()
    trainer = trained(TrainConfig(**BASE | flags), module, comm)
    workers = comm.size - flags.get("servers", 0)
    expected = trained_alone(plain(), batch=8 * workers, epochs=2, lr=0.1)
    np.testing.assert_allclose(parameters_of(module), expected, rtol=1e-4, atol=1e-5)
    # In memory of their own now: that which the ranks shared is gone.
    before = trainer.theta.copy()
    with torch.no_grad():
        module[0].weight += 1
    np.testing.assert_array_equal(trainer.theta, before)
    with torch.no_grad():
        module[0].weight -= 1
    ended = comm.allgather(parameters_of(module).tobytes())
    assert len(set(ended)) == 1


@pytest.mark.parametrize("flags", schemes("async", "local-sgd", "auto"))
def test_adam_and_a_list_of_parameters(comm, flags):
    module = plain()
    before = float(loss(module, data()).detach())
    config = TrainConfig(**BASE | flags | {"optimizer": "adam", "lr": 0.01, "epochs": 6})
    trained(config, module, comm, parameters=module.parameters())
    assert float(loss(module, data()).detach()) < before


def test_what_is_frozen_stays_and_what_is_unused_has_no_gradient(comm):
    module = plain()
    module[0].weight.requires_grad_(False)
    module.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    frozen = module[0].weight.detach().clone()
    mode = "serial" if comm.size == 1 else "allreduce"
    trainer = trained(TrainConfig(**BASE, mode=mode), module, comm)
    assert torch.equal(module[0].weight, frozen)
    assert torch.equal(module.unused, torch.ones(3))
    assert trainer.theta.size == sum(it.numel() for it in module.parameters()) - frozen.numel()


def test_what_is_given_for_gradients_is_one_line():
    module = plain()
    with pytest.raises(ConfigError, match=r"taken from them: call backward\(\)"):
        one_step(module, torch.ones(3))
    with pytest.raises(ConfigError, match=r"parameter 0\.weight is torch\.float64"):
        psrt.Trainer(TrainConfig(mode="serial"), plain().double())


def one_step(module, gradients):
    from mpi4py import MPI

    config = TrainConfig(mode="serial", **BASE)
    with psrt.Trainer(config, module, comm=MPI.COMM_SELF) as trainer:
        trainer.epoch()
        trainer.step(gradients, samples=1)
