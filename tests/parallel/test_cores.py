"""Workers keep to cores of their own while they train, and only then."""

import os

import numpy as np
import pytest

import psrt
from psrt import TrainConfig

SEEN = []


class Looks:
    """Notes the cores that its gradients are computed on."""

    def initial(self):
        return np.zeros(5, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.ones(1)] * 2

    def loss_and_grad(self, theta, batch, out):
        SEEN.append(os.sched_getaffinity(0))
        out[:] = 1.0
        return 1.0

    def evaluate(self, theta):
        return {}


def seen_cores(comm, **knobs):
    """Train; return the cores of each worker."""
    SEEN.clear()
    psrt.run(TrainConfig(epochs=1, timeout_s=20, **knobs), Looks(), comm=comm)
    return [cores[0] for cores in comm.allgather(SEEN) if cores]


@pytest.mark.mpi(min_size=3)
def test_no_bind_cores(comm):
    before = os.sched_getaffinity(0)
    assert seen_cores(comm, mode="sync", bind_cores=False) == [before] * (comm.size - 1)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_workers_without_enough_cores_for_all_ranks_keep_apart(comm, mode):
    before = os.sched_getaffinity(0)
    found = seen_cores(comm, mode=mode)
    assert os.sched_getaffinity(0) == before
    workers, cores = comm.size - 1, len(before)
    assert len(found) == workers
    if comm.size > cores >= workers:
        assert sum(map(len, found)) == len(set().union(*found)) == cores // workers * workers
    else:
        assert found == [before] * workers
