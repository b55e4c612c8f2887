"""A module of torch over MPI: every mode, replays and checkpoints to the bit, codecs."""

import hashlib

import numpy as np
import pytest
import torch

import psrt
from psrt.history.check.run import check_run
from support.torch_models import (
    data,
    loss,
    noisy,
    parameters_of,
    plain,
    problem_of,
    trained_alone,
)

#: Every mode, and the fewest ranks that it needs.
MODES = {
    "sync": ({"mode": "sync", "servers": 1}, 2),
    "async": ({"mode": "async", "servers": 2}, 3),
    "ssp": ({"mode": "ssp", "staleness": 1}, 2),
    "softsync": ({"mode": "softsync", "softsync": 1}, 2),
    "local-sgd": ({"mode": "local-sgd", "local_steps": 3}, 2),
    "easgd": ({"mode": "easgd", "local_steps": 2}, 2),
    "allreduce": ({"mode": "allreduce", "bucket_bytes": 100}, 2),
    "gossip": ({"mode": "gossip"}, 2),
    "serial": ({"mode": "serial"}, 1),
}
#: Those in which the same job is the same to the bit without a replay.
IN_STEP = ("sync", "local-sgd", "allreduce", "gossip")


def schemes(*names):
    return [
        pytest.param(MODES[name][0], marks=pytest.mark.mpi(min_size=MODES[name][1]), id=name)
        for name in names or MODES
    ]


def run_of(comm, flags, module, **more):
    """Train a module; return the result at rank 0."""
    length = {} if "steps" in more else {"epochs": 2}
    asked = {"lr": 0.1, "timeout_s": 20} | length | flags | more
    if flags["mode"] == "serial" and comm.size > 1:
        pytest.skip("one rank is enough")
    buffers = {"buffers": "mean"} if len(list(module.buffers())) else {}
    return psrt.run(psrt.TrainConfig(**asked), problem_of(module, **buffers), comm=comm)


@pytest.mark.parametrize("flags", schemes())
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


@pytest.mark.parametrize("flags", schemes(*IN_STEP, "serial"))
def test_a_run_goes_on_from_a_checkpoint_to_the_bit(comm, shared_folder, flags):
    whole = run_of(comm, flags, noisy(), steps=7)
    out = str(shared_folder / "run")
    run_of(comm, flags, noisy(), steps=7, out=out, checkpoint_every=4)
    onward = run_of(comm, flags, noisy(), steps=7, out=str(shared_folder / "onward"), resume=out)
    if comm.rank == 0:
        assert onward.summary.steps == 7
        np.testing.assert_array_equal(onward.theta, whole.theta)
        assert onward.summary.test_loss == whole.summary.test_loss


@pytest.mark.parametrize("flags", schemes("sync", "allreduce"))
def test_workers_in_step_are_one_process_with_the_whole_batch(comm, flags):
    run = run_of(comm, flags, plain(), epochs=3)
    if comm.rank == 0:
        batch = 8 * (comm.size - run.summary.servers)
        alone = trained_alone(plain(), batch=batch, epochs=3, lr=0.1)
        np.testing.assert_allclose(run.theta, alone, atol=1e-5)


@pytest.mark.parametrize("flags", schemes("allreduce", "async"))
def test_low_rank_finds_the_weights(comm, flags):
    more = {"codec": "low-rank", "codec_rank": 1, "codec_everywhere": True}
    run = run_of(comm, flags, plain(), **more)
    if comm.rank == 0:
        assert run.summary.test_loss < 1.1


@pytest.mark.mpi(min_size=2)
def test_labels_are_dealt_out(comm):
    module = plain()
    problem = psrt.torch.Problem(module, loss, data(), data(1, 30), batch_size=8)
    config = psrt.TrainConfig(
        mode="allreduce", partition="dirichlet:0.5", batch_size=8, epochs=1, timeout_s=20
    )
    run = psrt.run(config, problem, comm=comm)
    if comm.rank == 0:
        assert run.summary.samples == 96


@pytest.mark.mpi(min_size=2)
def test_when_a_run_is_over_no_module_is_in_its_memory(comm):
    """Which is unmapped: reading it would end the process."""
    for flags, _ in (MODES["sync"], MODES["allreduce"], MODES["local-sgd"]):
        module = plain()
        run_of(comm, flags, module, epochs=1)
        hashlib.sha256(parameters_of(module)).hexdigest()
        module(data()[0]).sum().backward()
