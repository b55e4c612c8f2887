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


class Linear:
    """The least that a problem must have."""

    def __init__(self, theta):
        self.theta = theta

    def initial(self):
        return self.theta

    def batches(self, worker, workers, epoch):
        return [(0,)]

    def loss_and_grad(self, theta, batch, out):
        out[:] = 0
        return 0.0

    def evaluate(self, theta):
        return {}


def test_what_cannot_be(comm):
    size = comm.size
    for match, knobs, problem in (
        ("no worker", {"servers": size}, None),
        ("more than the", {"servers": size + 1}, None),
        ("batch-size", {"batch_size": 1400 * 2}, None),
        ("shard", {"servers": 1, "shards_per_server": 2}, Linear(np.zeros(1, np.float32))),
        ("names a worker that does not exist", {"inject": (f"{size - 1}:delay:1",)}, None),
        ("missing.npz", {"dataset": "/nowhere/missing.npz"}, None),
        ("flat float32 vector", {}, Linear(np.zeros(4))),
    ):
        refused(comm, match, TrainConfig(**{"mode": "sync"} | knobs), problem)


def test_an_output_folder_that_is_used(comm, shared_folder):
    """After which ranks train."""
    out = shared_folder / "run"
    if comm.rank == 0:
        out.mkdir()
        (out / "summary.json").write_text("{}")
    comm.Barrier()
    refused(comm, "holds a run already", TrainConfig(mode="sync", out=str(out)))
    assert [path.name for path in out.iterdir()] == ["summary.json"]
    run = psrt.run(TrainConfig(mode="sync", steps=2, hidden=(8,), timeout_s=20), comm=comm)
    assert (run is not None) == (comm.rank == 0)


def test_a_config_that_cannot_be_made_at_rank_0(comm):
    def made():
        assert comm.rank == 0, "flags are parsed at rank 0 only"
        return TrainConfig(epochs=-1)

    refused(comm, "epochs", made)


def test_roles_that_do_not_fit(comm):
    for (first, other), config, match in (
        (("server", None), {}, "others were not"),
        (("server", "worker"), {"servers": 2}, "1 ranks? w(as|ere) started"),
        (("server", "server"), {"mode": "sync"}, "no worker"),
        (("worker", "worker"), {"mode": "sync"}, "server"),
    ):
        refused(comm, match, TrainConfig(**config), role=other if comm.rank else first)


def test_ranks_that_name_their_arrays_differently(comm):
    problem = Linear(np.zeros(6, np.float32))
    problem.names_and_shapes = [(f"w{min(comm.rank, 1)}", (2, 3))]
    line = r"rank \d has w1 of shape \(2, 3\) where rank 0 has w0 of shape \(2, 3\)"
    refused(comm, line, TrainConfig(mode="allreduce"), problem)
