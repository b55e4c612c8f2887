"""Gossip without rounds over MPI: nothing is lost between pairs, and a slow one slows nobody."""

import time

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.history import Kind, read_history

N, RATE, SLOW_S = 20_000, 0.125, 0.02


class Drift:
    """Gradients that do not depend on θ, so that their sum is known; some have more of them."""

    def __init__(self, slow=None):
        self.slow, self.worker = slow, -1

    def initial(self):
        return np.zeros(N, np.float32)

    def batches(self, worker, workers, epoch):
        self.worker = worker
        return [np.zeros(1)] * self.steps(worker)

    @staticmethod
    def steps(worker):
        return 30 + 5 * (worker % 3)

    @staticmethod
    def point(worker):
        return (np.arange(N) % 7 + worker).astype(np.float32)

    def loss_and_grad(self, theta, batch, out):
        time.sleep(SLOW_S if self.worker == self.slow else SLOW_S / 20)
        out[:] = self.point(self.worker)
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_the_mean_moves_by_gradients_alone_and_the_slow_one_is_not_waited_for(
    comm, shared_folder, shared_memory
):
    path, size = shared_folder / "path", comm.size
    if comm.rank == 0:
        path.write_text("".join(f"{i} {i + 1}\n" for i in range(size - 1)))
    comm.Barrier()
    config = TrainConfig(
        mode="gossip", topology=str(path), asynchronous=True, lr=RATE, epochs=1, timeout_s=20,
        shared_memory=shared_memory, out=str(shared_folder / "run"), record=True,
    )  # fmt: skip
    run = psrt.run(config, Drift(slow=1), comm=comm)
    if comm.rank:
        return
    due = sum(Drift.steps(i) * Drift.point(i).astype(float) for i in range(size)) / size
    assert run.theta == pytest.approx(-RATE * due, rel=1e-5, abs=1e-3)
    workers = read_history(shared_folder / "run").workers
    ends = [it["time"][it["kind"] == Kind.STEP][-1] for it in workers]
    assert max(ends) == ends[1]
    taken = np.concatenate([it[it["kind"] == Kind.TAKE] for it in workers])
    assert len(taken) == 2 * (taken["flag"] == 0).sum() > 0
    assert sum(run.summary.staleness.histogram) == len(taken)
