"""Training: samples per second of the schemes against one serial process, turn by turn.

    mpirun -n 3 python apps/bench/train.py

Every candidate runs the real training loop (``psrt.runtime.worker``) on one and the same batch,
64 samples a worker, with SGD. Ranks that have no part in a turn sleep. Where torch is installed,
its DistributedDataParallel over gloo takes its turn, too.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import overhead
from bounds import CpuMeter, cores_of, least_seconds
from mpi4py import MPI
from schemes import (
    BATCH,
    LR,
    MODELS,
    SCHEMES,
    TORCH,
    FixedBatch,
    Scheme,
    has_torch,
    workers_of,
)
from shards import add_flag, read_shards

from psrt.bench.figures import Column, Summary, spread, table
from psrt.bench.race import Candidate, Pace, Readings, calls_in_a_turn, race, trial
from psrt.bench.ranks import RankTrack, part_of
from psrt.cli.bench import Report, run_script
from psrt.config import MODES
from psrt.core.progress import PROGRESS

#: The scheme of a rank alone, which the others are compared with; and those that end as it does.
_REFERENCE = next(name for name, (_, knobs) in SCHEMES.items() if MODES.read(knobs["mode"]).single)
_SUMS = [name for name, (_, knobs) in SCHEMES.items() if MODES.read(knobs["mode"]).sums]


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
    for model, sizes in PROGRESS.each(list((models or MODELS).items()), "measuring", "model"):
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
    if not MODES.read(knobs["mode"]).needs_servers:
        return knobs
    return knobs | {"shards_per_server": shards_per_server}


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
    served = [
        name for name, (_, knobs) in SCHEMES.items() if MODES.read(knobs["mode"]).needs_servers
    ]
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
        from torch_ddp import TorchDDP

        parts[TORCH] = part = part_of(comm, range(2))
        torch = None if part is None else TorchDDP(part, sizes, batch_size=BATCH, lr=LR)
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


def report(given: argparse.Namespace, comm: MPI.Comm) -> Report:
    """Measure, and return the rows and their tables."""
    rows = measure(comm, shards_per_server=read_shards(given), rounds=given.rounds)
    costs = overhead.measure(comm, rounds=given.rounds)
    return {
        "training": (rows, table(rows, COLUMNS)),
        "psrt itself": (costs, table(costs, overhead.COLUMNS)),
    }


if __name__ == "__main__":
    sys.exit(run_script(report, __doc__, ranks=3, flags=add_flag))
