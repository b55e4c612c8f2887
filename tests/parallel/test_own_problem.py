"""A user's own problem over MPI, and data that is dealt out unevenly."""

import os
import time

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.data import load_dataset
from psrt.model import MLP
from psrt.runtime.problem import Supervised
from support.least_squares import D, UnevenSquares, schemes

LR = 0.05


def config_of(flags, **more):
    return TrainConfig(**(flags | {"lr": LR, "epochs": 3, "timeout_s": 20} | more))


def by_the_formula(problem, workers, epochs):
    """Return θ ← θ − η Σ m_i G_i / Σ m_i in float64, over what each worker still has."""
    lists = problem.lists(workers, epochs)
    theta = problem.initial().astype(np.float64)
    for clock in range(max(map(len, lists))):
        batches = [batches[clock] for batches in lists if clock < len(batches)]
        rows = np.concatenate(batches).astype(int)
        if rows.size:
            x, y = problem.x[rows].astype(np.float64), problem.y[rows]
            theta -= LR * (x @ theta - y) @ x / rows.size
    return theta


@pytest.mark.parametrize("flags", schemes())
def test_uneven_data_ends_in_every_mode(comm, flags):
    problem = UnevenSquares()
    run = psrt.run(config_of(flags), problem, comm=comm)
    if comm.rank == 0:
        lists = problem.lists(comm.size - run.summary.servers, 3)
        dealt = sum(len(batch) for batches in lists for batch in batches)
        # A worker that backups overtake leaves batches out.
        assert run.summary.samples == dealt or ("backup" in flags and run.summary.samples < dealt)
        assert run.summary.steps == max(map(len, lists))
        assert run.summary.test_accuracy is None
        assert run.summary.test_loss < problem.evaluate(problem.initial())["loss"]


@pytest.mark.parametrize(
    "flags",
    schemes("sync", "sync, 2 servers", "auto", "node", "ring", "tree", "butterfly", "mpi"),
)
def test_the_divisor_is_the_samples_that_were_there(comm, flags):
    problem = UnevenSquares()
    run = psrt.run(config_of(flags), problem, comm=comm)
    if comm.rank == 0:
        expected = by_the_formula(problem, comm.size - run.summary.servers, 3)
        np.testing.assert_allclose(run.theta, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "flags",
    schemes("sync", "sync, 2 servers", "local-sgd, ring", "local-sgd, server", "ring", "butterfly"),
)
def test_uneven_data_give_the_bits_of_virtual_time(comm, flags):
    problem, config = UnevenSquares(), config_of(flags)
    run = psrt.run(config, problem, comm=comm)
    if comm.rank == 0:
        virtual = psrt.simulate(config, problem, workers=comm.size - run.summary.servers)
        np.testing.assert_array_equal(run.theta, virtual.theta)


class Slow(UnevenSquares):
    """Its evaluation, and one worker's first gradient, take longer than the deadline."""

    SECONDS, TIMEOUT_S = 0.8, 0.4

    def __init__(self, hurries):
        super().__init__()
        self.hurries = hurries

    def loss_and_grad(self, theta, batch, out):
        if not self.hurries:
            time.sleep(self.SECONDS)
            self.hurries = True
        return super().loss_and_grad(theta, batch, out)

    def evaluate(self, theta):
        time.sleep(self.SECONDS)
        return super().evaluate(theta)


@pytest.mark.mpi(min_size=3)  # a server and two workers, one of whom is slow
@pytest.mark.parametrize("flags", schemes("sync", "async", "local-sgd, server", "ring", "mpi"))
def test_whoever_computes_is_not_late(comm, flags):
    if comm.size > 4 or (comm.size == 3 and flags["mode"] != "async"):
        pytest.skip("it takes seconds, and 4 ranks show all of it")
    config = config_of(flags, epochs=1, timeout_s=Slow.TIMEOUT_S)
    run = psrt.run(config, Slow(hurries=comm.rank != comm.size - 1), comm=comm)
    if comm.rank == 0:
        assert run.summary.epochs == 1


class SlowWhole(Supervised):
    """Its evaluation takes longer than the deadline."""

    def evaluate(self, theta):
        time.sleep(Slow.SECONDS)
        return super().evaluate(theta)


@pytest.mark.mpi(min_size=2)
def test_slices_wait_for_the_one_that_evaluates(comm):
    if comm.size > 2:
        pytest.skip("2 ranks show all of it")
    config = TrainConfig(parallel="tensor:2", batch_size=32, epochs=2, timeout_s=Slow.TIMEOUT_S)
    data = load_dataset("synthetic:64x4x3", seed=0)
    problem = SlowWhole(MLP([4, 6, 3], batch_size=32), data, batch_size=32, seed=0)
    run = psrt.run(config, problem, comm=comm)
    if comm.rank == 0:
        assert run.summary.epochs == 2


@pytest.mark.mpi
def test_a_problem_needs_no_more_than_its_four_methods(comm):
    mode = {"mode": "serial"} if comm.size == 1 else {"mode": "allreduce"}
    run = psrt.run(config_of(mode), UnevenSquares(), comm=comm)
    if comm.rank == 0:
        assert run.summary.parameters == D
        assert run.theta.dtype == np.float32
        assert run.records[-1].epoch == 3
        assert run.records[-1].samples == run.summary.samples


class Wanders(UnevenSquares):
    """Each step leaves the current folder."""

    def batches(self, worker, workers, epoch):
        return [np.arange(8)] * 20

    def loss_and_grad(self, theta, batch, out):
        os.chdir("/")
        return super().loss_and_grad(theta, batch, out)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", ["sync", "allreduce"])
def test_a_run_stays_in_its_folder_if_a_step_leaves_the_current_one(
    comm, shared_folder, monkeypatch, mode
):
    monkeypatch.chdir(shared_folder)
    config = config_of({"mode": mode}, out="run", record=True, checkpoint_every=20)
    said = []
    psrt.run(config, Wanders(), comm=comm, say=said.append)
    if comm.rank == 0:
        assert said[-1].splitlines()[-1].split() == ["files", "run"]
    run = shared_folder / "run"
    assert (run / "model.safetensors").exists()
    assert len(list((run / "history").glob("rank-*.npy"))) == comm.size
    assert list((run / "checkpoints").glob("0*"))


@pytest.mark.mpi(min_size=2)
def test_its_parameters_are_saved_as_one_tensor(comm, shared_folder):
    from safetensors.numpy import load_file

    out = shared_folder / "run"
    run = psrt.run(config_of({"mode": "sync", "out": str(out)}), UnevenSquares(), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(load_file(out / "model.safetensors")["theta"], run.theta)


class Concluding(UnevenSquares):
    """What each worker keeps of its own comes to rank 0 when training is over."""

    def __init__(self):
        super().__init__()
        self.number, self.concluded = None, []

    def of_worker(self, number):
        found = Concluding()
        found.number = number
        return found

    def state(self):
        return {"number": np.full(3, self.number)}

    def conclude(self, states):
        self.concluded.append(states)


@pytest.mark.parametrize("flags", schemes("sync, 2 servers", "auto"))
def test_the_states_of_all_workers_come_to_rank_0(comm, flags):
    problem = Concluding()
    psrt.run(config_of(flags), problem, comm=comm)
    [states] = problem.concluded
    workers = range(comm.size - flags.get("servers", 0)) if comm.rank == 0 else ()
    np.testing.assert_equal(states, {i: {"number": np.full(3, i)} for i in workers})
