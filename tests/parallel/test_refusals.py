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

    def initial(self):
        return np.zeros(4, np.float32)

    def batches(self, worker, workers, epoch):
        return [(0,)]

    def loss_and_grad(self, theta, batch, out):
        out[:] = 0
        return 0.0

    def evaluate(self, theta):
        return {}


class Double(Linear):
    def initial(self):
        return np.zeros(4)


class Tiny(Linear):
    def initial(self):
        return np.zeros(1, np.float32)


def of(knobs, problem=None):
    """Return what makes a config for so many ranks, and a problem."""
    return lambda size: TrainConfig(**{"mode": "sync"} | knobs(size)), problem


#: What the message holds → a config for so many ranks, and a problem.
REFUSED = {
    "no worker": of(lambda size: {"servers": size}),
    "more than the": of(lambda size: {"servers": size + 1}),
    "batch-size": of(lambda size: {"batch_size": 1400 * 2}),
    "shard": of(lambda size: {"servers": 1, "shards_per_server": 2}, Tiny),
    "names a worker that does not exist": of(lambda size: {"inject": (f"{size - 1}:delay:1",)}),
    "missing.npz": of(lambda size: {"dataset": "/nowhere/missing.npz"}),
    "flat float32 vector": of(lambda size: {}, Double),
}


@pytest.mark.parametrize("match", REFUSED)
def test_what_cannot_be(comm, match):
    make, problem = REFUSED[match]
    refused(comm, match, make(comm.size), problem and problem())


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


@pytest.mark.parametrize(
    ("roles", "config", "match"),
    [
        (("server", None), {}, "others were not"),
        (("server", "worker"), {"servers": 2}, "1 ranks? w(as|ere) started"),
        (("server", "server"), {"mode": "sync"}, "no worker"),
        (("worker", "worker"), {"mode": "sync"}, "server"),
    ],
)
def test_roles_that_do_not_fit(comm, roles, config, match):
    refused(comm, match, TrainConfig(**config), role=roles[comm.rank > 0])
