"""Sums that run while the gradient is still being computed: not a bit may differ for it."""

import time

import numpy as np
import pytest

from psrt.config import TrainConfig, resolve
from psrt.job.build import role_map_for, worker_role
from psrt.model import MLP
from psrt.mpi.port import MpiPort
from psrt.transport import SoloPort, drive

pytestmark = pytest.mark.mpi

STEPS = 6
SIZES = (30, 40, 500, 40, 6)


class SameForAll:
    """A problem of one batch, the same for all workers, whose layers take their time.

    With 2, 4 or 8 workers the mean of equal gradients is that gradient to the bit if no sum on the
    way is rounded, so training leads exactly to where one worker gets alone.
    """

    def __init__(self, pauses):
        rng = np.random.default_rng(3)
        self.batch = (rng.standard_normal((8, SIZES[0])).astype(np.float32), rng.integers(0, 6, 8))
        self.model = MLP(SIZES, batch_size=8)
        self.pauses = pauses

    def initial(self):
        return self.model.initial(np.random.default_rng(4))

    def batches(self, worker, workers, epoch):
        return [self.batch] * STEPS

    def gradient_spans(self):
        return self.model.gradient_spans()

    def loss_and_grad(self, theta, batch, out, ready=None):
        spans = self.gradient_spans()

        def ready_late(i):
            coarsen(spans[i].of(out))
            time.sleep(self.pauses.exponential(1e-4))
            ready(i)

        loss = self.model.loss_and_grad(theta, *batch, out, ready_late if ready else None)
        if ready is None:
            coarsen(out)
        return loss

    def evaluate(self, theta):
        return {}


def coarsen(numbers):
    """Leave 16 bits of each number's 24, so that sums of a few equal ones are exact."""
    numbers.view(np.int32)[:] &= ~0xFF


def trained(port, problem, ranks, **knobs):
    config = resolve(TrainConfig(steps=STEPS, lr=0.05, **knobs), ranks=ranks)
    np.copyto(port.theta, problem.initial())
    drive(worker_role(port, config, problem).run())
    return port.theta.copy()


@pytest.mark.parametrize(
    ("algorithm", "optimizer"),
    [("node", "sgd"), ("node", "adam"), ("auto", "adam"), ("ring", "sgd"), ("double-tree", "adam")],
)
@pytest.mark.parametrize("one_theta_from", [0, 1 << 40])
def test_buckets_that_overlap_lead_where_one_worker_gets_alone(
    comm, host, algorithm, optimizer, one_theta_from, monkeypatch
):
    monkeypatch.setattr("psrt.mpi.collectives.reductions.ONE_THETA_BYTES", one_theta_from)
    if comm.size not in (2, 4, 8):
        pytest.skip("the mean of equal numbers is exact for powers of two")
    problem = SameForAll(np.random.default_rng(comm.rank))
    alone = trained(SoloPort(problem.model.n), problem, 1, mode="serial", optimizer=optimizer)
    role_map = role_map_for(problem.model.n, (), tuple(range(comm.size)))
    port = MpiPort(comm, role_map, timeout_s=20, host=host)
    knobs = {"mode": "allreduce", "allreduce": algorithm, "optimizer": optimizer, "check_every": 5}
    for bucket_bytes in (1, 50_000):
        raise_on_all = trained(port, problem, comm.size, bucket_bytes=bucket_bytes, **knobs)
        comm.Barrier()  # ranks may share θ, which the next job begins anew
        np.testing.assert_array_equal(raise_on_all, alone)
    raise_on_all = trained(port, problem, comm.size, overlap=False, **knobs)
    np.testing.assert_array_equal(raise_on_all, alone)
    port.close()


@pytest.mark.parametrize("algorithm", ["node", "ring"])
def test_the_ranks_of_a_host_share_one_theta_where_its_update_is_sharded(
    comm, host, algorithm, monkeypatch
):
    monkeypatch.setattr("psrt.mpi.collectives.reductions.ONE_THETA_BYTES", 0)
    port = MpiPort(comm, role_map_for(5, (), tuple(range(comm.size))), timeout_s=20, host=host)
    chosen, _ = port.choice(algorithm, 5)
    port.theta[:] = -1.0
    port.share_theta(chosen)
    comm.Barrier()
    local_ranks = comm.allgather(comm.rank if host is None else host)
    first = 0 if host is None else local_ranks.index(host)
    if comm.rank == first:
        port.theta[:] = first
    comm.Barrier()
    shares = algorithm == "node"
    np.testing.assert_array_equal(port.theta, first if shares or comm.rank == first else -1.0)
    port.close()
