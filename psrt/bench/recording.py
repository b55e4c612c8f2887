"""What keeping a history costs: training with ``--record`` against training without."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from psrt.bench.asleep import others_asleep
from psrt.bench.measure import Summary, format_table, ratios
from psrt.bench.train import MODELS, FixedBatch, Scheme
from psrt.history import EventLog

#: Layers → samples of a batch: the model that `psrt train` has by default, and the two of
#: ``bench train``.
_MODELS = {"64-128-64-10": (64, 128, 64, 10), **MODELS}
_BATCH = {"64-128-64-10": 32}
#: Scheme → ranks and config.
_SCHEMES: dict[str, tuple[int, dict[str, Any]]] = {
    "sync": (3, {"mode": "sync"}),
    "async": (3, {"mode": "async"}),
    "ssp": (3, {"mode": "ssp"}),
    "allreduce": (2, {"mode": "allreduce"}),
}


def measure(
    comm: MPI.Comm,
    *,
    rounds: int = 9,
    segment_s: float = 0.3,
    models: dict[str, tuple[int, ...]] | None = None,
) -> list[dict[str, Any]]:
    """Measure every scheme on every model; collective.

    Args:
        comm: at least 3 ranks; more have no part in it.
        rounds: turns with and without a history.
        segment_s: how long one turn is to take, in seconds.
        models: layer sizes by name.

    Returns:
        At rank 0 a row per model and scheme: microseconds of a step without a history, its length
        with one over that, and the events and bytes of a step; an empty list elsewhere.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model, sizes in (models or _MODELS).items():
            problem = FixedBatch(sizes, _BATCH.get(model, 64))
            for scheme, (ranks, knobs) in _SCHEMES.items():
                part = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED, comm.rank)
                found = np.zeros((rounds, 2))
                events = np.zeros(1)
                with others_asleep(comm):
                    if part != MPI.COMM_NULL:
                        found[:], events[0] = _readings(
                            part, problem, knobs, rounds, segment_s, Path(folder)
                        )
                        part.Free()
                comm.Allreduce(MPI.IN_PLACE, found, MPI.MAX)
                comm.Allreduce(MPI.IN_PLACE, events, MPI.SUM)
                workers = ranks - (scheme != "allreduce")
                rows.append(
                    {
                        "model": model,
                        "scheme": scheme,
                        "step_us": Summary.of((found[:, 0] * 1e6).tolist()),
                        "recorded_over_plain": ratios(found[:, 1].tolist(), found[:, 0].tolist()),
                        "events_per_step": float(events[0]) / workers,
                    }
                )
    return rows if comm.rank == 0 else []


def _readings(
    comm: MPI.Comm,
    problem: FixedBatch,
    knobs: dict[str, Any],
    rounds: int,
    segment_s: float,
    folder: Path,
) -> tuple[np.ndarray, float]:
    """Return (rounds, 2) seconds of a step without and with a history, and this rank's events."""
    scheme = Scheme(comm, problem, knobs)
    scheme.run(20)
    comm.Barrier()
    seconds = np.array([scheme.run(20) / 20])
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    steps = max(20, int(segment_s / float(seconds[0])))
    found, events = np.zeros((rounds, 2)), 0
    for turn in range(-1, rounds):
        for recorded in (False, True) if turn % 2 else (True, False):
            log = EventLog(folder / f"{comm.rank}.npy") if recorded else None
            comm.Barrier()  # a server of the last turn would not know a worker of this one
            taken = scheme.run(steps, log=log) / steps
            if log is not None:
                log.close()
                events = log.events
                (folder / f"{comm.rank}.npy").unlink()
            if turn >= 0:
                found[turn, int(recorded)] = taken
    scheme.close()
    return found, events / steps


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    headers = ["model", "scheme", "step [µs]", "with a history / without", "events a step"]
    cells = [
        [
            row["model"],
            row["scheme"],
            row["step_us"].format(digits=0),
            row["recorded_over_plain"].format(digits=3),
            f"{row['events_per_step']:.1f}",
        ]
        for row in rows
    ]
    return format_table(headers, cells)
