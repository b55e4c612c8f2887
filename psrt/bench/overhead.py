"""What psrt itself costs: a step without compute or bytes, and a server that only waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from psrt.bench.asleep import others_asleep
from psrt.bench.measure import Summary, format_table, ratios
from psrt.bench.train import MODELS, FixedBatch, Scheme
from psrt.messages import Leave
from psrt.mpi.port import MpiPort
from psrt.partition import even_spans
from psrt.transport import Wiring, drive
from psrt.transport.port import Vector

_NOTHING = (np.zeros((1, 1), np.float32), np.zeros(1, np.int64))


class _NoCompute:
    """A problem of 256 parameters whose gradient costs nothing."""

    def initial(self) -> Vector:
        """Return zeros."""
        return np.zeros(256, np.float32)

    def batches(self, worker: int, workers: int, epoch: int) -> list[Any]:
        """Return many batches of one sample."""
        return [_NOTHING] * 1000

    def loss_and_grad(self, theta: Vector, batch: Any, out: Vector) -> float:
        """Leave the gradient as it is."""
        return 0.0

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Measure nothing."""
        return {}


def measure(
    comm: MPI.Comm, *, rounds: int = 7, steps: int = 2000, segment_s: float = 0.4
) -> list[dict[str, Any]]:
    """Measure both; collective.

    Args:
        comm: at least 3 ranks.
        rounds: readings of each.
        steps: of a reading of the step's own cost.
        segment_s: how long one reading of compute is to take, in seconds.

    Returns:
        At rank 0 a row per figure, as medians with quartiles; an empty list elsewhere.
    """
    rows: list[dict[str, Any]] = []
    for mode, knobs in (("async", {"servers": 1}), ("sync", {"servers": 1}), ("allreduce", {})):
        rows.append(
            {
                "figure": f"own cost of a step, {mode}, 2 ranks (µs)",
                "value": _own_cost(comm, {"mode": mode, **knobs}, rounds, steps),
            }
        )
    rows.append(
        {
            "figure": "speed of 2 workers beside a server that waits / sleeps",
            "value": _beside_a_waiting_server(comm, rounds, segment_s),
        }
    )
    return rows if comm.rank == 0 else []


def _own_cost(comm: MPI.Comm, knobs: dict[str, Any], rounds: int, steps: int) -> Summary:
    """Return microseconds of a step that has nothing to compute and 1 KB to send."""
    part = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED, comm.rank)
    readings = np.zeros(rounds)
    with others_asleep(comm):
        if part != MPI.COMM_NULL:
            scheme = Scheme(part, _NoCompute(), knobs)
            scheme.run(10)
            for i in range(rounds):
                readings[i] = scheme.run(steps) / steps * 1e6
            scheme.close()
            part.Free()
    comm.Allreduce(MPI.IN_PLACE, readings, MPI.MAX)
    return Summary.of(readings.tolist())


def _beside_a_waiting_server(comm: MPI.Comm, rounds: int, segment_s: float) -> Summary:
    """Return how much of their speed 2 workers keep when a third rank waits for a message."""
    sizes = MODELS["784-512-512-10"]
    part = comm.Split(0 if comm.rank < 3 else MPI.UNDEFINED, comm.rank)
    result = Summary.of([1.0])
    with others_asleep(comm):
        if part != MPI.COMM_NULL:
            result = _waiting_against_sleeping(part, FixedBatch(sizes), rounds, segment_s)
            part.Free()
    return result


def _waiting_against_sleeping(
    comm: MPI.Comm, problem: FixedBatch, rounds: int, segment_s: float
) -> Summary:
    n = problem.model.n
    port = MpiPort(comm, Wiring(n, workers=(1, 2), servers=(0,), spans=even_spans(n, 1)))
    theta, gradient = problem.initial(), np.empty(n, np.float32)

    def step() -> None:
        problem.loss_and_grad(theta, problem.batch, gradient)

    step()
    steps = np.array([max(4, segment_s / _seconds(step))], np.int64)
    comm.Bcast(steps, 1)

    def compute() -> None:
        for _ in range(int(steps[0])):
            step()

    def waits() -> float:
        """Let the server wait in ``receive`` until both workers are through."""
        if comm.rank == 0:
            for _ in port.wiring.workers:
                drive(port.receive())
            return 0.0
        seconds = _seconds(compute)
        port.send(0, Leave(comm.rank - 1, 0))
        return seconds

    def sleeps() -> float:
        """Let the server sleep in the operating system, which costs nothing."""
        request = comm.Ibarrier()
        seconds = 0.0 if comm.rank == 0 else _seconds(compute)
        while not request.Test():
            time.sleep(0.02 if comm.rank == 0 else 0)
        return seconds

    readings: dict[str, list[float]] = {"waits": [], "sleeps": []}
    for number in range(-1, rounds):
        for name, turn in (("waits", waits), ("sleeps", sleeps)):
            with others_asleep(comm):
                seconds = np.array([turn()])
            comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
            if number >= 0:
                readings[name].append(float(seconds[0]))
    port.close()
    return ratios(readings["sleeps"], readings["waits"])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    return format_table(["figure", "value"], [[r["figure"], r["value"].format()] for r in rows])
