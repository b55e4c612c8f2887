"""Training: samples per second of the schemes against one serial process, turn by turn.

Every candidate runs the real training loop (``psrt.runtime.worker``) on one and the same batch,
64 samples a worker, with SGD. Ranks that have no part in a turn sleep. Where torch is installed,
its DistributedDataParallel over gloo takes its turn, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from psrt.bench.asleep import others_asleep
from psrt.bench.measure import Summary, format_table, ratios
from psrt.config import TrainConfig, resolve
from psrt.errors import ProtocolError
from psrt.history import EventLog
from psrt.job.build import server_role, wiring_for, worker_role
from psrt.model import MLP
from psrt.mpi.port import MpiPort
from psrt.partition import Span
from psrt.transport import SoloPort, drive
from psrt.transport.port import Vector

MODELS = {"784-512-512-10": (784, 512, 512, 10), "784-2048-2048-10": (784, 2048, 2048, 10)}
BATCH = 64
#: Name → ranks and config. The first is what the others are held against.
SCHEMES: dict[str, tuple[int, dict[str, Any]]] = {
    "serial": (1, {"mode": "serial"}),
    "sync": (3, {"mode": "sync"}),
    "async": (3, {"mode": "async"}),
    "ssp": (3, {"mode": "ssp"}),
    "allreduce": (2, {"mode": "allreduce"}),
    "allreduce, no overlap": (2, {"mode": "allreduce", "overlap": False}),
}
_LR = 0.01


class Candidate(Protocol):
    """Something that trains for so many steps on the ranks of a communicator."""

    def run(self, steps: int) -> float:
        """Train from the start; return the seconds that this rank took, 0 for a server."""
        ...

    def close(self) -> None:
        """Free what was made."""
        ...


class FixedBatch:
    """A problem of one batch that comes again and again, with real numbers."""

    def __init__(self, sizes: tuple[int, ...], batch_size: int = BATCH) -> None:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((batch_size, sizes[0])).astype(np.float32)
        self.batch = (x, rng.integers(0, sizes[-1], batch_size))
        self.model = MLP(sizes, batch_size=batch_size)

    def initial(self) -> Vector:
        """Return the same parameters on every rank."""
        return self.model.initial(np.random.default_rng(1))

    def batches(self, worker: int, workers: int, epoch: int) -> list[Any]:
        """Return the batch a few times over."""
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
        """Measure nothing: this is about time."""
        return {}


class Scheme:
    """One of psrt's modes, through the same roles as a run."""

    def __init__(self, comm: MPI.Comm, problem: Any, knobs: dict[str, Any]) -> None:
        self._problem = problem
        self._knobs = knobs
        self._size = comm.size
        self.initial = problem.initial()
        servers = self._config(1).servers or 0
        wiring = wiring_for(
            self.initial.size, tuple(range(servers)), tuple(range(servers, comm.size))
        )
        self.port = SoloPort(wiring.n) if comm.size == 1 else MpiPort(comm, wiring)

    def _config(self, steps: int) -> TrainConfig:
        config = TrainConfig(steps=steps, lr=_LR, batch_size=BATCH, **self._knobs)
        return resolve(config, ranks=self._size)

    def run(self, steps: int, *, log: EventLog | None = None) -> float:
        """Train from the start, with a history if there is a log for it."""
        port, config = self.port, self._config(steps)
        shard = port.wiring.shard_of(port.rank)
        if shard is None:
            np.copyto(port.theta, self.initial)
            worker = worker_role(port, config, self._problem, log=log)
            drive(worker.run())
            if worker.clock != steps:
                raise ProtocolError(f"a worker took {worker.clock} steps, expected {steps}")
            return worker.seconds
        server = server_role(port, config, port.wiring.spans[shard].of(self.initial), log=log)
        drive(server.run())
        pushes = sum(server.shard.histogram)
        if pushes != steps * len(port.wiring.workers):
            raise ProtocolError(f"a server applied {pushes} pushes, expected {steps} a worker")
        return 0.0

    def close(self) -> None:
        """Free the port."""
        if isinstance(self.port, MpiPort):
            self.port.close()


def measure(
    comm: MPI.Comm,
    *,
    models: dict[str, tuple[int, ...]] | None = None,
    rounds: int = 7,
    segment_s: float = 0.4,
) -> list[dict[str, Any]]:
    """Measure every scheme on every model; collective.

    Args:
        comm: at least 3 ranks; more have no part in it.
        models: layer sizes by name.
        rounds: turns of each candidate.
        segment_s: how long one turn is to take, in seconds.

    Returns:
        At rank 0 a row per model and scheme: samples per second and their ratio to the serial
        process's, as medians with quartiles; an empty list elsewhere.
    """
    rows = []
    for model, sizes in (models or MODELS).items():
        rates = _rates(comm, sizes, rounds, segment_s)
        for name, samples_per_second in rates.items():
            rows.append(
                {
                    "model": model,
                    "scheme": name,
                    "workers": max(1, SCHEMES.get(name, (2, {}))[0] - (name in _SERVED)),
                    "samples_per_second": Summary.of(samples_per_second),
                    "over_serial": ratios(samples_per_second, rates["serial"]),
                }
            )
    return rows if comm.rank == 0 else []


_SERVED = ("sync", "async", "ssp")


def _rates(
    comm: MPI.Comm, sizes: tuple[int, ...], rounds: int, segment_s: float
) -> dict[str, list[float]]:
    """Return samples per second of every candidate, round by round."""
    parts = {name: _part(comm, ranks) for name, (ranks, _) in SCHEMES.items()}
    problem = FixedBatch(sizes)
    candidates: dict[str, Candidate | None] = {
        name: None if (part := parts[name]) is None else Scheme(part, problem, knobs)
        for name, (_, knobs) in SCHEMES.items()
    }
    workers = {name: ranks - (name in _SERVED) for name, (ranks, _) in SCHEMES.items()}
    parts["torch ddp"], torch = _torch(comm, sizes)
    if torch is not _MISSING:
        candidates["torch ddp"], workers["torch ddp"] = torch, 2
    steps = _calibrate(comm, candidates["serial"], segment_s)
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(-1, rounds):
        for name, candidate in candidates.items():
            seconds = _turn(comm, candidate, steps)
            if number >= 0:
                rates[name].append(workers[name] * steps * BATCH / seconds)
    _check_equal(candidates, comm)
    for candidate in candidates.values():
        if candidate is not None:
            candidate.close()
    for part in parts.values():
        if part is not None:
            part.Free()
    return rates


def _part(comm: MPI.Comm, ranks: int) -> MPI.Comm | None:
    """Return a communicator of the first so many ranks, None on the others; collective."""
    part = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED, comm.rank)
    return None if part == MPI.COMM_NULL else part


def _calibrate(comm: MPI.Comm, serial: Candidate | None, segment_s: float) -> int:
    """Return how many serial steps take about a segment; the same on every rank."""
    steps = np.zeros(1, np.int64)
    if serial is not None:
        serial.run(3)
        steps[0] = max(4, segment_s / max(1e-9, serial.run(5) / 5))
    with others_asleep(comm):
        pass
    comm.Bcast(steps)
    return int(steps[0])


def _turn(comm: MPI.Comm, candidate: Candidate | None, steps: int) -> float:
    """Let a candidate train while the ranks without a part sleep; return its slowest rank."""
    seconds = np.zeros(1)
    with others_asleep(comm):
        if candidate is not None:
            seconds[0] = candidate.run(steps)
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return float(seconds[0])


def _check_equal(candidates: dict[str, Candidate | None], comm: MPI.Comm) -> None:
    """Raise if synchronous training did not lead where serial training did.

    All workers have the same batch, so their mean gradient is the serial one up to rounding.
    """
    serial = candidates["serial"]
    expected = serial.port.theta if isinstance(serial, Scheme) else None
    for name in ("allreduce", "allreduce, no overlap"):
        reduced = candidates[name]
        if expected is not None and isinstance(reduced, Scheme):
            np.testing.assert_allclose(reduced.port.theta, expected, rtol=1e-3, atol=1e-4)


_MISSING: Any = object()


def _torch(comm: MPI.Comm, sizes: tuple[int, ...]) -> tuple[MPI.Comm | None, Any]:
    """Return torch's candidate and its communicator; ``_MISSING`` where torch is not installed."""
    try:
        from psrt.bench.torch_ddp import TorchDDP
    except ImportError:
        return None, _MISSING
    part = _part(comm, 2)
    return part, None if part is None else TorchDDP(part, sizes, batch_size=BATCH, lr=_LR)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    return format_table(
        ["model", "scheme", "workers", "samples/s", "× serial"],
        [
            [
                row["model"],
                row["scheme"],
                row["workers"],
                row["samples_per_second"].format(1, 0),
                row["over_serial"].format(),
            ]
            for row in rows
        ],
    )
