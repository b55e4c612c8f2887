"""What keeping a history costs, or the last events: training with ``--record`` against without.

mpirun -n 3 python apps/bench/history.py
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from schemes import MODELS, SCHEMES, FixedBatch, Scheme, workers_of

from psrt.bench.figures import Column, spread, table
from psrt.bench.race import Candidate, Pace, Readings, calls_in_a_turn, race, trial
from psrt.bench.ranks import RankTrack, run_on
from psrt.cli.bench import Report, run_script
from psrt.history import EventLog
from psrt.history.ring import EventRing

#: Layers → samples of a batch: the model that `psrt train` has by default, and the two of
#: ``train.py``.
_MODELS = {"64-128-64-10": (64, 128, 64, 10), **MODELS}
_BATCH = {"64-128-64-10": 32}
_SCHEMES = ("sync", "async", "ssp", "allreduce")


def measure(
    comm: MPI.Comm,
    *,
    rounds: int = 9,
    turn_s: float = 0.3,
    models: dict[str, tuple[int, ...]] | None = None,
) -> list[dict[str, Any]]:
    """Measure every scheme on every model; collective.

    Args:
        comm: at least 3 ranks; more have no part in it.
        rounds: turns without a history, with the last events only, and with one.
        turn_s: how long one turn is to take, in seconds.
        models: layer sizes by name.

    Returns:
        At rank 0 a row per model and scheme: microseconds of a step without a history, its length
        with the last events, and with a history, over that, and the events of a step; an empty
        list elsewhere.
    """
    rows = []
    for model, sizes in (models or _MODELS).items():
        problem = FixedBatch(sizes, _BATCH.get(model, 64))
        for name in _SCHEMES:
            ranks, knobs = SCHEMES[name]
            work = partial(_race, problem=problem, knobs=knobs, rounds=rounds, turn_s=turn_s)
            found = run_on(comm, range(ranks), work)
            if found is not None:
                readings, events = found
                rows.append(
                    {
                        "model": model,
                        "scheme": name,
                        "step_us": readings.summary("plain", 1e6),
                        "ring_over_plain": readings.ratio("ring", "plain"),
                        "recorded_over_plain": readings.ratio("recorded", "plain"),
                        "events_per_step": events / workers_of(name),
                    }
                )
    return rows if comm.rank == 0 else []


def _race(
    comm: MPI.Comm, *, problem: FixedBatch, knobs: dict[str, Any], rounds: int, turn_s: float
) -> tuple[Readings[str], float]:
    """Return the seconds of a step, without a history and with, and the events of all ranks."""
    scheme, track = Scheme(comm, problem, knobs), RankTrack(comm)
    events, ring = np.zeros(1), EventRing()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.npy"

        def recorded(steps: int) -> float:
            log = EventLog(path)
            seconds = scheme.run(steps, log=log)
            log.close()
            events[0] = log.events / steps
            path.unlink()
            return seconds

        candidates = {
            "plain": Candidate(scheme.run),
            "ring": Candidate(partial(scheme.run, log=ring)),
            "recorded": Candidate(recorded),
        }
        steps = calls_in_a_turn(trial(scheme.run, track), Pace(turn_s, fewest=20))
        found = race(candidates, rounds, track=track, calls=steps, warmup=1)
    scheme.close()
    comm.Allreduce(MPI.IN_PLACE, events, MPI.SUM)
    return found, float(events[0])


COLUMNS: tuple[Column, ...] = (
    ("model", "model"),
    ("scheme", "scheme"),
    ("step µs", spread("step_us", digits=0)),
    ("with the last events / without", spread("ring_over_plain", digits=3)),
    ("with a history / without", spread("recorded_over_plain", digits=3)),
    ("events a step", lambda row: f"{row['events_per_step']:.1f}"),
)


def report(comm: MPI.Comm, rounds: int) -> Report:
    """Measure, and return the rows and their table."""
    rows = measure(comm, rounds=rounds)
    return {"keeping a history": (rows, table(rows, COLUMNS))}


if __name__ == "__main__":
    sys.exit(run_script(lambda given, comm: report(comm, given.rounds), __doc__, ranks=3))
