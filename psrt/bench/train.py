"""Training: samples per second of the schemes against one serial process, turn by turn.

Every candidate runs the real training loop (``psrt.runtime.worker``) on one and the same batch,
64 samples a worker, with SGD. Ranks that have no part in a turn sleep. Where torch is installed,
its DistributedDataParallel over gloo takes its turn, too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from psrt.arrays import Vector
from psrt.bench.bounds import CpuMeter, cores_of, least_seconds
from psrt.bench.figures import Column, Summary, spread
from psrt.bench.race import Candidate, Pace, Readings, calls_in_a_turn, race, trial
from psrt.bench.ranks import RankTrack, part_of
from psrt.bench.shards import chosen_shards
from psrt.config import MODES, TrainConfig, resolve
from psrt.config.names import AUTO
from psrt.errors import ProtocolError
from psrt.history import EventLog
from psrt.job.build import role_map_for, server_role, theta_memory, worker_role
from psrt.model import MLP
from psrt.mpi.cores import kept_on
from psrt.mpi.port import MpiPort
from psrt.partition import Span
from psrt.progress import PROGRESS
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
    "allreduce, no overlap": (2, {"mode": "allreduce", "overlap": False}),
}
#: The scheme of a rank alone, which the others are compared with; and those that end as it does.
_REFERENCE = next(name for name, (_, knobs) in SCHEMES.items() if MODES[knobs["mode"]].single)
_SUMS = [name for name, (_, knobs) in SCHEMES.items() if MODES[knobs["mode"]].sums]
#: Every run compiles its sums anew, at most a few buckets, and a port has room for 256.
_RUNS_OF_A_PORT = 32
TORCH = "torch ddp"
_LR = 0.01


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
        config = TrainConfig(steps=steps, lr=_LR, batch_size=BATCH, **self._knobs)
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
            pushes = sum(it.shard.stats.histogram)
            if pushes != steps * len(port.role_map.workers):
                raise ProtocolError(f"a shard applied {pushes} pushes, expected {steps} a worker")
        return 0.0

    def close(self) -> None:
        """Free the port."""
        if isinstance(self.port, MpiPort):
            self.port.close()


def measure(
    comm: MPI.Comm,
    *,
    models: dict[str, tuple[int, ...]] | None = None,
    shards_per_server: int | None = None,
    rounds: int = 7,
    turn_s: float = 0.4,
) -> list[dict[str, Any]]:
    """Measure every scheme on every model; collective.

    Args:
        comm: at least 3 ranks; more have no part in it.
        models: layer sizes by name.
        shards_per_server: of the schemes with servers, None for as many as training would choose.
        rounds: turns of each candidate.
        turn_s: how long one turn of the serial process is to take, in seconds.

    Returns:
        At rank 0 a row per model and scheme: samples per second and their ratio to the serial
        process's, as medians with quartiles, and of schemes with servers the ratio that the cores
        allow; an empty list elsewhere.
    """
    rows = []
    for model, sizes in PROGRESS.each(list((models or MODELS).items()), "measures", "model"):
        found, shards, least_s = _race(comm, sizes, shards_per_server, rounds, turn_s)
        for name in found.rounds[0]:
            workers = workers_of(name)
            samples = [workers * BATCH / seconds for seconds in found.of(name)]
            rows.append(
                {
                    "model": model,
                    "scheme": name,
                    "workers": workers,
                    "shards_per_server": shards.get(name, 0),
                    "samples_per_second": Summary.of(samples),
                    "over_serial": found.ratio(_REFERENCE, name, 1 / workers),
                    "cores_allow": workers * least_s[_REFERENCE] / least_s[name]
                    if name in shards
                    else None,
                }
            )
    return rows if comm.rank == 0 else []


def _knobs(name: str, shards_per_server: int | None) -> dict[str, Any]:
    """Return the knobs of a scheme."""
    _, knobs = SCHEMES[name]
    if not MODES[knobs["mode"]].needs_servers:
        return knobs
    return knobs | {"shards_per_server": shards_per_server}


def workers_of(name: str) -> int:
    """Return the number of ranks of a candidate that compute gradients."""
    if name == TORCH:
        return 2
    ranks, knobs = SCHEMES[name]
    return ranks - (resolve(TrainConfig(**knobs), ranks=ranks).servers or 0)


def _race(
    comm: MPI.Comm,
    sizes: tuple[int, ...],
    shards_per_server: int | None,
    rounds: int,
    turn_s: float,
) -> tuple[Readings[str], dict[str, int], dict[str, float]]:
    """Let all candidates train, and check that synchronous ones end where serial training does.

    Returns:
        What they took; by name the shards of a server, of schemes of this rank with servers; and by
        name of those schemes, and of the reference, how long a step of all workers takes at least.
    """
    served = [name for name, (_, knobs) in SCHEMES.items() if MODES[knobs["mode"]].needs_servers]
    meters = {name: CpuMeter() for name in (_REFERENCE, *served)}
    track, problem = RankTrack(comm), FixedBatch(sizes)
    parts = {name: part_of(comm, range(ranks)) for name, (ranks, _) in SCHEMES.items()}
    schemes = {
        name: Scheme(part, problem, _knobs(name, shards_per_server), cpu=meters.get(name))
        for name, part in parts.items()
        if part is not None
    }
    candidates = {
        name: Candidate(schemes[name].run if name in schemes else None) for name in SCHEMES
    }
    torch = None
    if has_torch(comm):
        from psrt.bench.torch_ddp import TorchDDP

        parts[TORCH] = part = part_of(comm, range(2))
        torch = None if part is None else TorchDDP(part, sizes, batch_size=BATCH, lr=_LR)
        candidates[TORCH] = Candidate(None if torch is None else torch.run)
    pace = Pace(turn_s, fewest=4)
    steps = calls_in_a_turn(trial(candidates[_REFERENCE].run, track), pace)
    found = race(candidates, rounds, track=track, calls=steps, warmup=1)
    _check_equal(schemes)
    for scheme in schemes.values():
        scheme.close()
    if torch is not None:
        torch.close()
    for part in parts.values():
        if part is not None:
            part.Free()
    cores = cores_of(comm)
    least_s = {
        name: least_seconds(comm, meter.seconds, cores=cores, ranks=SCHEMES[name][0])
        for name, meter in meters.items()
    }
    shards = {name: schemes[name].shards for name in served if name in schemes}
    return found, shards, least_s


def has_torch(comm: MPI.Comm) -> bool:
    """Return whether torch is installed on every rank; collective."""
    missing = np.array([importlib.util.find_spec("torch") is None], np.int64)
    comm.Allreduce(MPI.IN_PLACE, missing, MPI.SUM)
    return not missing[0]


def _check_equal(schemes: dict[str, Scheme]) -> None:
    """Raise if the result of synchronous training differs from that of serial training.

    All workers have the same batch, so their mean gradient is the serial one up to rounding.
    """
    if _REFERENCE not in schemes:
        return
    expected = schemes[_REFERENCE].port.theta
    for name in _SUMS:
        np.testing.assert_allclose(schemes[name].port.theta, expected, rtol=1e-3, atol=1e-4)


COLUMNS: tuple[Column, ...] = (
    ("model", "model"),
    ("scheme", "scheme"),
    ("workers", "workers"),
    ("shards", lambda row: str(row["shards_per_server"] or "–")),
    ("samples/s", spread("samples_per_second", 1, 0)),
    ("× serial", spread("over_serial")),
    ("cores allow", lambda row: f"{row['cores_allow']:.2f}" if row["cores_allow"] else "–"),
)
