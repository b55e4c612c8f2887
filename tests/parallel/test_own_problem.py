"""A user's own problem over MPI: data dealt out unevenly, slow steps, gradients in parts."""

import os
import time
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import load_file

import psrt
from psrt import TrainConfig
from psrt.history import Kind, read_history
from psrt.job.build import role_map_for
from psrt.mpi.port import MpiPort
from support.cases import also
from support.least_squares import EVERY, D, UnevenSquares, schemes

LR = 0.05
#: Modes with the same bits whoever is fast, however long their sums take.
NAMES = "sync", "sync, 2 servers", "local-sgd, ring", "local-sgd, server", "ring", "butterfly"
IN_STEP = [EVERY[it][0] for it in NAMES]


def config_of(flags, **more):
    return TrainConfig(**(flags | {"lr": LR, "epochs": 3, "timeout_s": 20} | more))


@pytest.mark.parametrize("flags", schemes())
def test_uneven_data_ends_in_every_mode(comm, flags):
    problem, config = UnevenSquares(), config_of(flags)
    run = psrt.run(config, problem, comm=comm)
    if comm.rank:
        return
    lists = problem.lists(comm.size - run.summary.servers, 3)
    dealt = sum(len(batch) for batches in lists for batch in batches)
    # A worker that backups overtake leaves batches out.
    assert run.summary.samples == dealt or (
        "backup" in flags["mode"] and run.summary.samples < dealt
    )
    assert run.summary.steps == max(map(len, lists))
    assert run.summary.test_accuracy is None
    assert run.summary.test_loss < problem.evaluate(problem.initial())["loss"]
    assert run.theta.shape == (D,)
    assert run.theta.dtype == np.float32
    if flags in IN_STEP:
        virtual = psrt.simulate(config, problem, workers=len(lists))
        np.testing.assert_array_equal(run.theta, virtual.theta)


class Wanders(UnevenSquares):
    """Each step leaves the current folder."""

    def batches(self, worker, workers, epoch):
        return [np.arange(8)] * 20

    def loss_and_grad(self, theta, batch, out):
        os.chdir("/")
        return super().loss_and_grad(theta, batch, out)


@pytest.mark.mpi(min_size=2)
def test_a_run_stays_in_its_folder_if_a_step_leaves_the_current_one(
    comm, shared_folder, monkeypatch
):
    monkeypatch.chdir(shared_folder)
    config = config_of({"mode": "sync"}, out="run", record=True, checkpoint_every=20)
    result = psrt.run(config, Wanders(), comm=comm)
    run = shared_folder / "run"
    if comm.rank == 0:
        saved = load_file(run / "model.safetensors")
        np.testing.assert_array_equal(saved["theta"], result.theta)
    assert len(list((run / "history").glob("rank-*.npy"))) == comm.size
    assert list((run / "checkpoints").glob("0*"))


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


# --- slow steps ---------------------------------------------------------------------------------


class Slow(UnevenSquares):
    """Its evaluation, and one worker's first gradient, take longer than the deadline."""

    seconds = 3.0

    def loss_and_grad(self, theta, batch, out):
        time.sleep(self.seconds)
        self.seconds = 0
        return super().loss_and_grad(theta, batch, out)

    def evaluate(self, theta):
        time.sleep(Slow.seconds)
        return super().evaluate(theta)


@pytest.mark.exhaustive
@pytest.mark.mpi(min_size=3)  # a server and two workers, one of whom is slow
@pytest.mark.parametrize("flags", schemes("async", "local-sgd, server", "ring", "mpi"))
def test_whoever_computes_is_not_late(comm, enough_on_few, flags):
    enough_on_few()
    problem = Slow()
    problem.seconds *= comm.rank == comm.size - 1
    run = psrt.run(config_of(flags, epochs=1, timeout_s=Slow.seconds - 1), problem, comm=comm)
    assert comm.rank or run.summary.epochs == 1


# --- gradients in parts -------------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.parametrize("algorithm", ["node", "ring"])
def test_the_ranks_of_a_host_share_one_theta_where_its_update_is_sharded(
    comm, one_host, host, algorithm, monkeypatch
):
    one_host()
    monkeypatch.setattr("psrt.mpi.collectives.reductions.ONE_THETA_BYTES", 0)
    port = MpiPort(comm, role_map_for(5, (), tuple(range(comm.size))), timeout_s=20, host=host)
    chosen, _ = port.choice(algorithm, 5)
    port.theta[:] = -1.0
    port.share_theta(chosen)
    comm.Barrier()
    first = comm.allgather(comm.rank if host is None else host).index(host or 0)
    if comm.rank == first:
        port.theta[:] = first
    comm.Barrier()
    shares = algorithm == "node"
    np.testing.assert_array_equal(port.theta, first if shares or comm.rank == first else -1.0)
    port.close()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("mode", "clip_norm"), [("sync", 1.0), ("async", None)])
def test_the_last_layers_are_pushed_before_backward_ends(comm, shared_folder, mode, clip_norm):
    config = TrainConfig(
        mode=mode, hidden=(64, 64), batch_size=8, steps=6, timeout_s=20, shards_per_server=4,
        clip_norm=clip_norm, record=True, out=str(shared_folder / "run"),
    )  # fmt: skip
    if psrt.run(config, comm=comm) is None:
        return
    for events in read_history(shared_folder / "run").workers:
        pushes = events[events["kind"] == Kind.PUSH].reshape(-1, 4)
        first, last = pushes[:, 0], pushes[:, -1]
        if clip_norm:  # the norm is that of the whole gradient
            assert (first["time"] == last["time"]).all()
        else:
            assert (first["time"] < last["time"]).all()
        assert (pushes["shard"] == [3, 2, 1, 0]).all()


class Reads:
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
@pytest.mark.parametrize("mode", ["sync", "async", also("ssp"), also("softsync")])
def test_nobody_writes_where_a_worker_computes_or_evaluates(comm, mode):
    knobs = {"servers": 2 if comm.size > 3 else 1, "shards_per_server": 2, "timeout_s": 20}
    run = psrt.run(TrainConfig(mode=mode, epochs=1, lr=1.0, **knobs), Reads(), comm=comm)
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
    knobs = {"shards_per_server": 4, "shared_memory": False, "timeout_s": 10}
    run = psrt.run(
        TrainConfig(mode="sync", epochs=1, lr=1.0, **knobs), Parted(comm.rank), comm=comm
    )
    if run is not None:
        assert (run.theta == -3.0).all()
