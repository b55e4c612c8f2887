"""How fast virtual time passes, how much memory it takes, and how fast a history is checked.

python apps/bench/simulate.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from psrt.bench.figures import Column, Summary, table
from psrt.bench.race import Candidate, race
from psrt.cli.bench import Report, run_script
from psrt.config import TrainConfig
from psrt.history import read_history
from psrt.history.check import check
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts
from psrt.simulation.cost_flags import VirtualCosts

#: Name → config and workers of a simulation without numerics.
_JOBS: dict[str, tuple[dict[str, Any], int]] = {
    "async, 1,000 workers, 8 servers": ({"mode": "async", "servers": 8, "steps": 20}, 1000),
    "ssp 3, 1,000 workers, 8 servers": (
        {"mode": "ssp:staleness=3", "servers": 8, "steps": 20},
        1000,
    ),
    "sync, 1,000 workers, 8 servers": ({"mode": "sync", "servers": 8, "steps": 20}, 1000),
    "allreduce by ring, 64 workers": (
        {"mode": "allreduce:overlap=false", "allreduce": "ring", "steps": 20},
        64,
    ),
}
_PARAMETERS = 1_000_000
#: The job whose memory is read.
_LARGE = ("--mode", "async", "--servers", "8", "--workers", "10000", "--steps", "5")


def run(*, rounds: int = 5) -> list[dict[str, Any]]:
    """Measure; one process, and another whose memory is read.

    Args:
        rounds: readings of each.

    Returns:
        A row per figure, with what is wanted of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        calls = {f"events/s: {name}": _Simulation(*job) for name, job in _JOBS.items()}
        checks = {f"events/s checked: {name}": _Check(name, folder) for name in ("ssp", "sync")}
        candidates = {name: Candidate(call) for name, call in (calls | checks).items()}
        found = race(candidates, rounds, calls=1)
    rows = [
        {
            "figure": name,
            "value": Summary.of([1 / seconds for seconds in found.of(name)]),
            "wanted": "1e5" if name in calls else "5e5",
        }
        for name in candidates
    ]
    memory = Summary.of([_memory()])
    rows.append({"figure": "GB held: async, 10,000 workers", "value": memory, "wanted": "< 2"})
    return rows


class _Simulation:
    """A job in virtual time, of another seed at each call."""

    def __init__(self, knobs: dict[str, Any], workers: int) -> None:
        self._config = TrainConfig(**knobs)
        self._workers = workers
        self._seed = 0

    def __call__(self, count: int) -> float:
        """Run once; return the seconds that an event took."""
        start = time.perf_counter()
        found = simulate(
            self._config,
            workers=self._workers,
            seed=self._seed,
            costs=SimulationCosts(latency=lambda _: 5e-5, bandwidth=1.25e9),
            numerics=False,
            parameters=_PARAMETERS,
        )
        self._seed += 1
        return (time.perf_counter() - start) / found.events


class _Check:
    """A history of half a million events or so, which is read and checked again and again."""

    def __init__(self, mode: str, folder: str) -> None:
        self._out = str(Path(folder) / mode)
        config = TrainConfig(mode=cast(Any, mode), servers=2, steps=600, record=True, out=self._out)
        run_in_virtual_time(config, Scenario(64, VirtualCosts(), numerics=False, parameters=1000))

    def __call__(self, count: int) -> float:
        """Check once; return the seconds that an event took."""
        start = time.perf_counter()
        history = read_history(self._out)
        if not check(history).ok:
            raise AssertionError("a history of psrt's own breaks its contract")
        return (time.perf_counter() - start) / history.events


def _memory() -> float:
    """Return the largest resident size of a whole large simulation, in GB."""
    words = ("-m", "psrt", "simulate", *_LARGE, "--timing-only", "--parameters", str(_PARAMETERS))
    child = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise AssertionError(f"the large simulation ended with {child.returncode}")
    return used.ru_maxrss / 1e6


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


COLUMNS: tuple[Column, ...] = (
    ("figure", "figure"),
    ("median", lambda row: _short(row["value"].median)),
    ("lower quartile", lambda row: _short(row["value"].low)),
    ("wanted", "wanted"),
)


def report(rounds: int) -> Report:
    """Measure, and return the rows and their table."""
    rows = run(rounds=rounds)
    return {"virtual time": (rows, table(rows, COLUMNS))}


if __name__ == "__main__":
    sys.exit(run_script(lambda given, comm: report(given.rounds), __doc__))
