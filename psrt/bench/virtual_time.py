"""How fast virtual time passes, how much it holds, and how fast a history is checked."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from psrt.bench.measure import Summary, format_table
from psrt.config import TrainConfig
from psrt.history import read_history
from psrt.history.check import check
from psrt.job.simulation import simulate
from psrt.job.virtual import Scenario, run_in_virtual_time
from psrt.simulation import Costs
from psrt.simulation.cost_flags import VirtualCosts

#: Name → config and workers of a simulation without numerics.
_JOBS: dict[str, tuple[dict[str, Any], int]] = {
    "async, 1,000 workers, 8 servers": ({"mode": "async", "servers": 8, "steps": 20}, 1000),
    "ssp 3, 1,000 workers, 8 servers": (
        {"mode": "ssp", "staleness": 3, "servers": 8, "steps": 20},
        1000,
    ),
    "sync, 1,000 workers, 8 servers": ({"mode": "sync", "servers": 8, "steps": 20}, 1000),
    "allreduce by ring, 64 workers": (
        {"mode": "allreduce", "allreduce": "ring", "overlap": False, "steps": 20},
        64,
    ),
}
_PARAMETERS = 1_000_000
#: The job whose memory is read.
_LARGE = ("--mode", "async", "--servers", "8", "--workers", "10000", "--steps", "5")


def run(*, rounds: int = 5) -> list[dict[str, Any]]:
    """Measure; one process, but for the one whose memory is read.

    Args:
        rounds: readings of each.

    Returns:
        A row per figure, with what was wanted of it.
    """
    rows = [
        {"figure": f"events/s: {name}", "value": _events_per_second(*job, rounds), "wanted": "1e5"}
        for name, job in _JOBS.items()
    ]
    for name in ("ssp", "sync"):
        checked = _checked_per_second(name, rounds)
        rows.append({"figure": f"events/s checked: {name}", "value": checked, "wanted": "5e5"})
    memory = Summary.of([_memory()])
    rows.append({"figure": "GB held: async, 10,000 workers", "value": memory, "wanted": "< 2"})
    return rows


def _events_per_second(knobs: dict[str, Any], workers: int, rounds: int) -> Summary:
    config = TrainConfig(**knobs)
    readings = []
    for seed in range(rounds):
        start = time.perf_counter()
        found = simulate(
            config,
            workers=workers,
            seed=seed,
            costs=Costs(latency=lambda _: 5e-5, bandwidth=1.25e9),
            numerics=False,
            parameters=_PARAMETERS,
        )
        readings.append(found.events / (time.perf_counter() - start))
    return Summary.of(readings)


def _checked_per_second(mode: str, rounds: int) -> Summary:
    """Check a history of half a million events or so, again and again."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        config = TrainConfig(mode=mode, servers=2, steps=600, record=True, out=out)
        scenario = Scenario(64, VirtualCosts(), numerics=False, parameters=1000)
        run_in_virtual_time(config, scenario)
        readings = []
        for _ in range(rounds):
            start = time.perf_counter()
            history = read_history(out)
            if not check(history).ok:
                raise AssertionError("a history of psrt's own breaks its contract")
            readings.append(history.events / (time.perf_counter() - start))
    return Summary.of(readings)


def _memory() -> float:
    """Return the largest resident size of a whole large simulation, in GB."""
    words = ("-m", "psrt", "simulate", *_LARGE, "--no-numerics", "--parameters", str(_PARAMETERS))
    child = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise AssertionError(f"the large simulation ended with {child.returncode}")
    return used.ru_maxrss / 1e6


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    cells = [
        [r["figure"], _short(r["value"].median), _short(r["value"].low), r["wanted"]] for r in rows
    ]
    return format_table(["figure", "median", "lower quartile", "wanted"], cells)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
