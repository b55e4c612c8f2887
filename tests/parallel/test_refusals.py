"""What cannot be: every rank raises the same error, and nothing was trained or written."""

import numpy as np
import pytest

import psrt
from psrt import PsrtError, TrainConfig
from psrt.job.mpi import run_over_mpi

pytestmark = pytest.mark.mpi(min_size=2)


def refused(comm, match, config, problem=None, **more):
    """Assert that every rank raises the same agreed error of status 2."""
    with pytest.raises(PsrtError, match=match) as caught:
        run_over_mpi(comm, config, problem, **more)
    assert caught.value.exit_status == 2
    text = np.frombuffer(str(caught.value).encode().ljust(400), np.uint8)
    texts = np.empty((comm.size, 400), np.uint8)
    comm.Allgather(text, texts)
    assert (texts == texts[0]).all()


def test_no_worker_left(comm):
    refused(comm, "no worker", TrainConfig(mode="sync", servers=comm.size))


def test_more_servers_than_ranks(comm):
    refused(comm, "more than the", TrainConfig(mode="sync", servers=comm.size + 1))


def test_a_batch_larger_than_the_data(comm):
    refused(comm, "batch-size", TrainConfig(mode="sync", batch_size=1400 * 2))


@pytest.mark.mpi(min_size=3)
def test_more_shards_than_parameters(comm):
    class Tiny(Linear):
        def initial(self):
            return np.zeros(1, np.float32)

    refused(comm, "shard", TrainConfig(mode="sync", servers=2), Tiny())


def test_a_slow_worker_that_is_not_there(comm):
    slow = (f"{comm.size - 1}:delay:1",)
    refused(comm, "names a worker that does not exist", TrainConfig(mode="sync", inject=slow))


def test_data_that_only_rank_0_finds_missing(comm, shared_folder):
    missing = str(shared_folder / "missing.npz")
    refused(comm, "missing.npz", TrainConfig(mode="sync", dataset=missing))


def test_an_output_folder_that_is_used(comm, shared_folder):
    out = shared_folder / "run"
    if comm.rank == 0:
        out.mkdir()
        (out / "summary.json").write_text("{}")
    comm.Barrier()
    refused(comm, "holds a run already", TrainConfig(mode="sync", out=str(out)))
    assert [path.name for path in out.iterdir()] == ["summary.json"]


def test_initial_parameters_that_are_not_float32(comm):
    class Double(Linear):
        def initial(self):
            return np.zeros(4)

    refused(comm, "flat float32 vector", TrainConfig(mode="sync"), Double())


def test_a_config_that_cannot_be_made_at_rank_0(comm):
    def made():
        assert comm.rank == 0, "flags are parsed at rank 0 only"
        return TrainConfig(epochs=-1)

    refused(comm, "epochs", made)


def test_roles_for_some_ranks_only(comm):
    refused(comm, "others were not", TrainConfig(), role="server" if comm.rank == 0 else None)


def test_other_servers_than_were_started(comm):
    role = "server" if comm.rank == 0 else "worker"
    refused(comm, "1 ranks? w(as|ere) started", TrainConfig(servers=2), role=role)


@pytest.mark.parametrize(("role", "match"), [("server", "no worker"), ("worker", "server")])
def test_one_role_for_all(comm, role, match):
    refused(comm, match, TrainConfig(mode="sync"), role=role)


def test_ranks_train_after_a_refusal(comm):
    refused(comm, "no worker", TrainConfig(mode="sync", servers=comm.size))
    run = psrt.run(TrainConfig(mode="sync", steps=2, hidden=(8,), timeout_s=20), comm=comm)
    assert (run is not None) == (comm.rank == 0)


class Linear:
    """The least that a problem must have."""

    def initial(self):
        return np.zeros(4, np.float32)

    def batches(self, worker, workers, epoch):
        return [(0,)]

    def loss_and_grad(self, theta, batch, out):
        out[:] = 0
        return 0.0

    def evaluate(self, theta):
        return {}
