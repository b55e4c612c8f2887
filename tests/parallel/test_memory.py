"""What a rank holds: a server three versions and a gradient per remote worker, a worker θ and one
gradient. Windows are counted by their sizes, everything else by tracemalloc."""

import tracemalloc

import numpy as np
import pytest

from psrt.config import TrainConfig, resolve
from psrt.job.build import role_map_for, server_role, theta_memory, worker_role
from psrt.mpi.port import MpiPort
from psrt.transport import drive
from psrt.transport.port import VERSIONS

N = 400_000
SMALL = 4 * N // 10


class Ones:
    """A problem of N parameters that itself holds next to nothing."""

    def batches(self, worker, workers, epoch):
        return [np.ones(1)] * 3

    def loss_and_grad(self, theta, batch, out):
        out[:] = 1.0
        return 1.0

    def evaluate(self, theta):
        return {}


def traced_bytes_of_a_run(comm, config, role_map, host):
    """Return what making a port and a role and running it held at most, and the port's arrays."""
    comm.Barrier()
    tracemalloc.start()
    port = MpiPort(comm, role_map, host=host, theta_memory=theta_memory(config))
    if not role_map.shards_of(port.rank):
        role = worker_role(port, config, Ones())
        held = port.theta.nbytes + port.gradient.nbytes
    else:
        start = np.zeros(1, np.float32)
        role = server_role(port, config, np.broadcast_to(start, N))
        held = sum(own.nbytes for it in port.versions.values() for own in it[:VERSIONS])
    drive(role.run())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    port.close()
    return peak, held


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_nobody_holds_more_than_is_promised(comm, mode, apart):
    config = resolve(TrainConfig(mode=mode, epochs=1), ranks=comm.size)
    role_map = role_map_for(N, (0,), tuple(range(1, comm.size)))
    host = comm.rank if apart else None
    peak, held = traced_bytes_of_a_run(comm, config, role_map, host)
    workers = len(role_map.workers)
    if comm.rank == 0:
        assert held == 3 * 4 * N
        assert peak < SMALL + 4 * N * workers * apart + 2**20
    else:
        assert held <= 2 * 4 * N + 64
        assert peak < SMALL + 2**20
