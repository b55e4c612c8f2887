"""psrt's own overhead: a step without compute or bytes, and a server that only waits."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from schemes import MODELS, FixedBatch, Scheme

from psrt.bench.figures import Column, Summary, spread
from psrt.bench.race import Candidate, Pace, calls_in_a_turn, race, repeated, trial
from psrt.bench.ranks import RankTrack, run_on, wait
from psrt.core.arrays import Vector
from psrt.core.messages import Leave
from psrt.core.partition import even_spans
from psrt.mpi.port import MpiPort
from psrt.transport import RoleMap, drive

#: Two batches of one sample; their content is never read.
_FIRST, _NOTHING = ((np.zeros((1, 1), np.float32), np.zeros(1, np.int64)) for _ in range(2))
#: Mode → its config.
_STEPS: dict[str, dict[str, Any]] = {
    "async": {"servers": 1},
    "sync": {"servers": 1},
    "allreduce": {},
}


class _NoCompute:
    """A problem of 256 parameters whose gradient costs nothing."""

    def initial(self) -> Vector:
        """Return zeros."""
        return np.zeros(256, np.float32)

    def batches(self, worker: int, workers: int, epoch: int) -> list[Any]:
        """Return many batches of one sample."""
        return [_FIRST, *[_NOTHING] * 999]

    def loss_and_grad(self, theta: Vector, batch: Any, out: Vector) -> float:
        """Leave the gradient as it is; a worker checks only once whether it was written."""
        if batch is _FIRST:
            out[:] = 0.0
        return 0.0

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Measure nothing."""
        return {}


def measure(
    comm: MPI.Comm, *, rounds: int = 7, steps: int = 2000, turn_s: float = 0.4
) -> list[dict[str, Any]]:
    """Measure both; collective.

    Args:
        comm: at least 3 ranks.
        rounds: readings of each.
        steps: of a reading of the step's own cost.
        turn_s: how long one reading of compute is to take, in seconds.

    Returns:
        At rank 0 a row per figure, as medians with quartiles; an empty list elsewhere.
    """
    own = run_on(comm, range(2), partial(_own_costs, rounds=rounds, steps=steps)) or {}
    kept = run_on(comm, range(3), partial(_beside_a_server, rounds=rounds, turn_s=turn_s))
    rows = [
        {"figure": f"own cost of a step, {mode}, 2 ranks (µs)", "value": value}
        for mode, value in own.items()
    ]
    rows.append({"figure": "speed of 2 workers beside a server that waits / sleeps", "value": kept})
    return rows if comm.rank == 0 else []


def _own_costs(comm: MPI.Comm, *, rounds: int, steps: int) -> dict[str, Summary]:
    """Return microseconds of a step that has nothing to compute and 1 KB to send, by mode."""
    schemes = {
        mode: Scheme(comm, _NoCompute(), {"mode": mode, **knobs}) for mode, knobs in _STEPS.items()
    }
    candidates = {mode: Candidate(scheme.run) for mode, scheme in schemes.items()}
    found = race(candidates, rounds, track=RankTrack(comm), calls=steps, warmup=1)
    for scheme in schemes.values():
        scheme.close()
    return {mode: found.summary(mode, 1e6) for mode in schemes}


def _beside_a_server(comm: MPI.Comm, *, rounds: int, turn_s: float) -> Summary | None:
    """Return the fraction of their speed that 2 workers keep while a third rank waits for them.

    The reference is 2 workers next to a rank that sleeps in the operating system, at no cost.
    """
    problem = FixedBatch(MODELS["784-512-512-10"])
    n, track = problem.model.n, RankTrack(comm)
    port = MpiPort(comm, RoleMap(n, workers=(1, 2), servers=(0,), spans=even_spans(n, 1)))
    theta, gradient = problem.initial(), np.empty(n, np.float32)
    compute = repeated(lambda: problem.loss_and_grad(theta, problem.batch, gradient))
    steps = calls_in_a_turn(trial(compute, track), Pace(turn_s, fewest=4))

    def waits(count: int) -> float:
        """Let the server wait in ``receive`` until both workers have finished."""
        if comm.rank == 0:
            for _ in port.role_map.workers:
                drive(port.receive())
            return 0.0
        seconds = compute(count)
        port.send(0, Leave(comm.rank - 1, 0))
        return seconds

    def sleeps(count: int) -> float:
        request = comm.Ibarrier()
        if comm.rank:
            seconds = compute(count)
            wait(request)
            return seconds
        while not request.Test():
            time.sleep(0.02)
        return 0.0

    candidates = {"waits": Candidate(waits), "sleeps": Candidate(sleeps)}
    found = race(candidates, rounds, track=track, calls=steps, warmup=1)
    port.close()
    return found.ratio("sleeps", "waits")


COLUMNS: tuple[Column, ...] = (("figure", "figure"), ("value", spread("value")))
