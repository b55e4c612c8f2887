"""A problem of JAX over MPI: the bits of virtual time, and of a loop of one's own."""

import jax
import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.data import BatchPlan
from support.jax_models import SAMPLES, data, dropped, plain, problem
from support.least_squares import schemes

BASE = {"epochs": 2, "lr": 0.2, "timeout_s": 60}


@pytest.mark.parametrize("flags", schemes("sync, 2 servers", "ring", "local-sgd", "async", "ssp"))
def test_a_run_is_repeated_in_virtual_time_to_the_bit(comm, shared_folder, flags):
    out = shared_folder / "jax"
    config = TrainConfig(**BASE | flags, out=str(out), record=True)
    run = psrt.run(config, problem(dropped), comm=comm)
    if comm.rank == 0:
        workers = run.summary.workers
        again = psrt.simulate(psrt.recorded_config(out), problem(dropped), workers=workers)
        np.testing.assert_array_equal(again.theta, run.theta)


@pytest.mark.parametrize("flags", schemes("sync", "ring"))
def test_a_loop_of_ones_own_ends_with_the_bits_of_a_problem(comm, flags):
    config = TrainConfig(**BASE | flags)
    run = psrt.run(config, problem(), comm=comm)
    x, y = data()
    step = jax.jit(jax.value_and_grad(plain))
    whole = problem()
    with psrt.Trainer(config, whole.params(whole.initial()), comm=comm) as trainer:
        plan = BatchPlan(SAMPLES, batch_size=4, workers=max(1, trainer.workers), seed=3)
        while trainer.epoch(steps=plan.steps_per_epoch):
            for i in range(plan.steps_per_epoch):
                rows = plan.indices(trainer.epochs, i, trainer.worker)
                loss, gradients = step(trainer.parameters, (x[rows], y[rows]))
                trainer.step(gradients, samples=len(rows), loss=float(loss))
    if comm.rank == 0:
        np.testing.assert_array_equal(trainer.theta, run.theta)
