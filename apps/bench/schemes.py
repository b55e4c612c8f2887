"""What trains in several benchmarks: psrt's schemes, on one batch that is the same every time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from bounds import CpuMeter
from mpi4py import MPI
from shards import chosen_shards

from psrt.config import TrainConfig, resolve
from psrt.config.names import AUTO
from psrt.core.arrays import Vector
from psrt.core.errors import ProtocolError
from psrt.core.partition import Span
from psrt.history import EventLog
from psrt.job.build import role_map_for, server_role, theta_memory, worker_role
from psrt.model import MLP
from psrt.mpi.cores import kept_on
from psrt.mpi.port import MpiPort
from psrt.runtime.problem import gradient_spans
from psrt.transport import SoloPort, drive, quietly

MODELS = {"784-512-512-10": (784, 512, 512, 10), "784-2048-2048-10": (784, 2048, 2048, 10)}
BATCH = 64
#: Name → number of ranks, and config.
SCHEMES: dict[str, tuple[int, dict[str, Any]]] = {
    "serial": (1, {"mode": "serial"}),
    "sync": (3, {"mode": "sync"}),
    "async": (3, {"mode": "async"}),
    "ssp": (3, {"mode": "ssp"}),
    "allreduce": (2, {"mode": "allreduce"}),
    "allreduce, no overlap": (2, {"mode": "allreduce:overlap=false"}),
}
TORCH = "torch ddp"
LR = 0.01
#: Every run compiles its sums again, at most a few buckets, and a port has room for 256.
_RUNS_OF_A_PORT = 32


class FixedBatch:
    """A problem that repeats a single batch, with real numbers."""

    def __init__(self, sizes: tuple[int, ...], batch_size: int = BATCH) -> None:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((batch_size, sizes[0])).astype(np.float32)
        self.batch = (x, rng.integers(0, sizes[-1], batch_size))
        self.model = MLP(sizes, batch_size=batch_size)

    def initial(self) -> Vector:
        """Return the same parameters on every rank."""
        return self.model.initial(np.random.default_rng(1))

    def batches(self, worker: int, workers: int, epoch: int) -> list[Any]:
        """Return the batch a few times."""
        return [self.batch] * 16

    def gradient_spans(self) -> tuple[Span, ...]:
        """Return the layers, the last one first."""
        return self.model.gradient_spans()

    def loss_and_grad(
        self,
        theta: Vector,
        batch: Any,
        out: Vector,
        ready: Callable[[int], None] | None = None,
    ) -> float:
        """Compute for real."""
        x, y = batch
        return self.model.loss_and_grad(theta, x, y, out, ready)

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Return no figures: only time is measured."""
        return {}


class Scheme:
    """One of psrt's modes, through the same roles as a run."""

    def __init__(
        self,
        comm: MPI.Comm,
        problem: Any,
        knobs: dict[str, Any],
        *,
        cpu: CpuMeter | None = None,
    ) -> None:
        #: Meters computing and updating; of a rank alone all that it does.
        self._cpu = cpu
        self._problem = problem
        if cpu is not None and comm.size > 1:
            self._problem = copy(problem)
            self._problem.loss_and_grad = cpu.metered(problem.loss_and_grad)
        self._knobs = knobs
        self._size = comm.size
        self.initial = problem.initial()
        config = self._config(1)
        servers, n = config.servers or 0, self.initial.size
        layers = gradient_spans(problem, n)
        if servers and config.shards_per_server == AUTO:
            each = chosen_shards(comm, config, n, layers)
            self._knobs = knobs | {"shards_per_server": each}
        #: Of each server; 1 without servers.
        self.shards = int(self._config(1).shards_per_server or 1)
        role_map = role_map_for(
            n,
            tuple(range(servers)),
            tuple(range(servers, comm.size)),
            shards_per_server=self.shards,
            layers=layers,
        )
        memory = theta_memory(self._config(1))
        self._open = (
            partial(SoloPort, role_map.n)
            if comm.size == 1
            else partial(MpiPort, comm, role_map, theta_memory=memory)
        )
        self.port, self._runs = self._open(), 0

    def _config(self, steps: int) -> TrainConfig:
        config = TrainConfig(steps=steps, lr=LR, batch_size=BATCH, **self._knobs)
        return resolve(config, ranks=self._size)

    def run(self, steps: int, *, log: EventLog | None = None) -> float:
        """Train from the start, with a history if there is a log for it.

        Returns:
            The seconds that a worker took, 0 at a server.
        """
        if self._runs == _RUNS_OF_A_PORT:
            self.close()
            self.port, self._runs = self._open(), 0
        self._runs += 1
        if self._cpu is None:
            return self._train(steps, log)
        train = self._train if self._size > 1 else self._cpu.metered(self._train)
        seconds = train(steps, log)
        self._cpu.end_turn(steps)
        return seconds

    def _train(self, steps: int, log: EventLog | None) -> float:
        port, config = self.port, self._config(steps)
        if not port.role_map.shards_of(port.rank):
            np.copyto(port.theta, self.initial)
            worker = worker_role(port, config, self._problem, log=log)
            worker.checks_gradient = False  # which takes as long as several steps
            with kept_on(port.cores if isinstance(port, MpiPort) else None):
                drive(quietly(worker.run()))
            if worker.clock != steps:
                raise ProtocolError(f"a worker took {worker.clock} steps, expected {steps}")
            return worker.seconds
        server = server_role(port, config, self.initial, log=log)
        if self._cpu is not None:
            for it in server.shards:
                it.shard.apply = self._cpu.metered(it.shard.apply)  # type: ignore[method-assign]
        drive(quietly(server.run()))
        for it in server.shards:
            pushes = sum(it.shard.counts.stats.histogram)
            if pushes != steps * len(port.role_map.workers):
                raise ProtocolError(f"a shard applied {pushes} pushes, expected {steps} per worker")
        return 0.0

    def close(self) -> None:
        """Free the port."""
        if isinstance(self.port, MpiPort):
            self.port.close()


def workers_of(name: str) -> int:
    """Return the number of ranks of a candidate that compute gradients."""
    if name == TORCH:
        return 2
    ranks, knobs = SCHEMES[name]
    return ranks - (resolve(TrainConfig(**knobs), ranks=ranks).servers or 0)


def has_torch(comm: MPI.Comm) -> bool:
    """Return whether torch is installed on every rank; collective."""
    missing = np.array([importlib.util.find_spec("torch") is None], np.int64)
    comm.Allreduce(MPI.IN_PLACE, missing, MPI.SUM)
    return not missing[0]
