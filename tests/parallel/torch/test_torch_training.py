"""A module of torch over MPI, as a problem and in a loop of one's own, beside torch alone."""

import numpy as np
import pytest
import torch

import psrt
from psrt import TrainConfig
from psrt.data import BatchPlan
from psrt.history.check.run import check_run
from support.least_squares import schemes
from support.staging import BOTH
from support.torch_models import (
    data,
    loss,
    noisy,
    parameters_of,
    plain,
    problem_of,
    trained_alone,
)

pytestmark = BOTH
GOSSIP = pytest.param({"mode": "gossip"}, marks=pytest.mark.mpi(min_size=2), id="gossip")
BASE = {"epochs": 2, "lr": 0.1, "timeout_s": 60}


def run_of(comm, flags, module, **more):
    """Train a module; return the result at rank 0."""
    buffers = {"buffers": "mean"} if len(list(module.buffers())) else {}
    config = TrainConfig(**BASE | flags | more)
    return psrt.run(config, problem_of(module, **buffers), comm=comm)


@pytest.mark.parametrize("flags", [*schemes("sync", "async", "local-sgd", "auto"), GOSSIP])
def test_a_recorded_run_is_checked_repeated_and_loaded(comm, shared_folder, flags):
    """With dropout and running means; also rank 0's module is the trained one where it serves."""
    module, out = noisy(), str(shared_folder / "run")
    run = run_of(comm, flags, module, out=out, record=True)
    again = psrt.run(psrt.recorded_config(out), problem_of(noisy()), comm=comm)
    if comm.rank == 0:
        assert check_run(out).ok
        np.testing.assert_array_equal(again.theta, run.theta)
        np.testing.assert_array_equal(parameters_of(module), run.theta)
        assert module[1].num_batches_tracked > 1
        loaded = noisy()
        psrt.torch.load(loaded, out)
        for name, tensor in module.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
        # What was evaluated is what was saved, running means included.
        assert problem_of(loaded).evaluate(run.theta)["loss"] == run.summary.test_loss


@pytest.mark.parametrize("flags", schemes("sync", "auto"))
def test_a_run_goes_on_from_a_checkpoint_to_the_bit(comm, shared_folder, flags):
    out, onward = str(shared_folder / "run"), str(shared_folder / "onward")
    length = {"epochs": None, "steps": 7}
    whole = run_of(comm, flags, noisy(), **length)
    run_of(comm, flags, noisy(), **length, out=out, checkpoint_every=4)
    onward = run_of(comm, flags, noisy(), **length, out=onward, resume=out)
    if comm.rank == 0:
        assert onward.summary.steps == 7
        np.testing.assert_array_equal(onward.theta, whole.theta)
        assert onward.summary.test_loss == whole.summary.test_loss


# --- loops --------------------------------------------------------------------------------------


def trained(config, module, comm):
    """Train in a loop; return the trainer."""
    x, y = data()
    with psrt.Trainer(config, module, comm=comm) as trainer:
        plan = BatchPlan(len(x), batch_size=8, workers=max(1, trainer.workers), seed=0)
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


@pytest.mark.parametrize("flags", schemes("sync, 2 servers", "ring", "node"))
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


@pytest.mark.parametrize("rule", ["local", "mean"])
@pytest.mark.parametrize("flags", [*schemes("sync", "async", "ring"), GOSSIP])
def test_running_means_are_trained_evaluated_saved_and_handed_back(
    comm, shared_folder, flags, rule
):
    """Rank 0, which serves in most modes, has no batch of its own, and other means at first."""
    x, y = data()
    torch.manual_seed(0)
    module, seen, out = noisy(), [], shared_folder / "run"
    module[1].running_mean += comm.rank
    config = TrainConfig(**BASE | flags, out=str(out))

    def evaluate(given):
        seen.append(float(loss(given.eval(), data()).detach()))
        return {"loss": seen[-1]}

    # Two parts wrapped, as one might.
    given = torch.nn.DataParallel(module)
    with psrt.Trainer(config, given, comm=comm, evaluate=evaluate, buffers=rule) as trainer:
        own = None if trainer.serves else [(trainer.worker, module[1].running_mean.clone())]
        while trainer.epoch():
            for rows in torch.arange(len(x)).split(8):
                mine = rows[trainer.worker :: trainer.workers]
                loss(given, (x[mine], y[mine])).backward()
                trainer.step(samples=len(mine))
            own.append((trainer.worker, module[1].running_mean.clone()))
    each = [it for it in comm.allgather(own) if it is not None]
    assert all(torch.equal(it[0][1], torch.zeros(16)) for it in each)  # rank 0's count at first
    last = torch.stack([mean for _, mean in sorted((it[-1] for it in each), key=lambda it: it[0])])
    expected = last[0] if rule == "local" else last.double().mean(0).float()
    torch.testing.assert_close(module[1].running_mean, expected, rtol=0, atol=0)
    assert module[1].num_batches_tracked == 2 * 12
    assert len({it.tobytes() for it in comm.allgather(parameters_of(module))}) == 1
    if comm.rank == 0:
        loaded = noisy()
        psrt.torch.load(loaded, out)
        for name, it in module.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], it), name
        assert trainer.result.summary.test_loss == seen[-1] == evaluate(loaded)["loss"]
