"""What a rank holds: cores of its own while it trains, memory as promised, nothing at the end."""

import gc
import os
import tracemalloc
import weakref

import numpy as np
import pytest

import psrt
from psrt.config import TrainConfig, resolve
from psrt.history.ring import EventRing
from psrt.job.build import role_map_for, server_role, theta_memory, worker_role
from psrt.mpi.port import MpiPort
from psrt.runtime.updater import Updater
from psrt.transport import drive
from psrt.transport.port import VERSIONS

# --- cores --------------------------------------------------------------------------------------

SEEN = []


class Ones:
    """A problem that holds next to nothing, and notes the cores that it is computed on."""

    def initial(self):
        return np.zeros(5, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.ones(1)] * 3

    def loss_and_grad(self, theta, batch, out):
        SEEN.append(os.sched_getaffinity(0))
        out[:] = 1.0
        return 1.0

    def evaluate(self, theta):
        return {}


@pytest.mark.mpi(min_size=3)
def test_workers_without_enough_cores_for_all_ranks_keep_apart(comm):
    def seen_cores(**knobs):
        SEEN.clear()
        psrt.run(TrainConfig(epochs=1, timeout_s=20, **knobs), Ones(), comm=comm)
        return [cores[0] for cores in comm.allgather(SEEN) if cores]

    before = os.sched_getaffinity(0)
    workers, cores = comm.size - 1, len(before)
    assert seen_cores(mode="sync", bind_cores=False) == [before] * workers
    found = seen_cores(mode="async")
    assert os.sched_getaffinity(0) == before
    if comm.size > cores >= workers:
        assert sum(map(len, found)) == len(set().union(*found)) == cores // workers * workers
    else:
        assert found == [before] * workers


# --- memory -------------------------------------------------------------------------------------

N = 400_000
SMALL = 4 * N // 10


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
@pytest.mark.parametrize(("mode", "apart"), [("sync", False), ("async", True)])
def test_nobody_holds_more_than_is_promised(comm, mode, apart):
    """A server three versions and a gradient per remote worker, a worker θ and one gradient.

    Windows are counted by their sizes, everything else by tracemalloc.
    """
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


# --- cycles -------------------------------------------------------------------------------------

#: Of all strategies, with what makes another one of them, or gives it more to be called back by.
RUNS = {
    "sync": {"mode": "sync", "shards_per_server": 2},
    "async": {"mode": "async", "codec": "top-k"},
    "fragments": {"mode": "local-sgd:local-steps=2,fragments=2"},
    "allreduce": {"mode": "allreduce:bucket-bytes=1000"},
    "parameters": {"mode": "allreduce:shard=parameters"},
    "pipeline": {"mode": "allreduce", "parallel": "pipeline:3"},
    "push-sum": {"mode": "gossip:variant=push-sum"},
    "pairs": {"mode": "gossip:variant=pairs,topology=star"},
    "servers' checkpoints": {"mode": "sync", "checkpoint_every": 1},
}


@pytest.mark.mpi(min_size=3)
def test_a_run_leaves_nothing_to_the_collector(comm, shared_folder, monkeypatch):
    """What it held is free when it ends, without Python's collector of cycles: many may follow."""
    made = []

    def noted(kind):
        class Noted(kind):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                made.append(weakref.ref(self))

        return Noted

    monkeypatch.setattr("psrt.job.last_events.EventRing", noted(EventRing))
    monkeypatch.setattr("psrt.job.build.Updater", noted(Updater))
    left = {}
    gc.collect()
    gc.disable()
    try:
        for name, knobs in RUNS.items():
            if "parallel" in knobs and comm.size % 3:
                continue
            made.clear()
            out = str(shared_folder / name) if "checkpoint_every" in knobs else None
            psrt.run(psrt.TrainConfig(steps=2, hidden=(4, 4), out=out, **knobs), comm=comm)
            left[name] = [type(it()).__mro__[1].__name__ for it in made if it() is not None]
            assert made
    finally:
        gc.enable()
    assert not any(left.values()), left
