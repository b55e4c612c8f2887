"""``psrt plan --try``: trains the best rows of a plan on their ranks, and shows what comes of them.

A plan says how fast a row is, not how well it learns. Rows are trained one after the other, each by
its own command and for as many steps as are predicted for the same time.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from psrt.bench.figures import format_table
from psrt.core.errors import ConfigError
from psrt.core.units import time_text
from psrt.planning.measuring import ran
from psrt.planning.ranking import Row
from psrt.planning.table import named
from psrt.views.page.thin import Floats
from psrt.views.runs.folder import read_run

#: Where runs go, each to a folder with the number of its row.
FOLDER = Path("runs") / "plan"
#: Lines of metrics of a run, and the least seconds whose speed says something.
_LINES, _LEAST_S = 40, 1.0
#: How many times as long as predicted a run may take, after the seconds in which it starts.
_SLOWER, _START_S = 2.0, 30.0
#: At which shares of the time losses are shown.
_SHARES = (0.25, 0.5, 0.75, 1.0)


def try_best(
    rows: Sequence[Row],
    command: Callable[[int, Mapping[str, str]], str],
    *,
    seconds: float,
    say: Callable[[str], object],
) -> int:
    """Train rows, and print how fast they are and what they learn; return 1 if all failed, else 0.

    Args:
        rows: the best of a plan.
        command: returns what to type, for a number of ranks and flags.
        seconds: of training for each, by its prediction.
        say: takes what is printed.
    """
    tried = list[tuple[Row, Floats]]()
    for row in rows:
        say(f"trying row {row.number} for about {time_text(seconds)}: {row.command}")
        steps, folder = max(2, math.ceil(seconds / row.prediction.step_s)), FOLDER / str(row.number)
        own = {"out": str(folder), "overwrite": "true", "steps": str(steps)}
        own["log-every"] = str(max(1, steps // _LINES))
        knobs = {name: text for name, text in row.knobs.items() if name != "epochs"}
        try:
            tried.append((row, _lines_of(command(row.ranks, knobs | own), folder, seconds)))
        except ConfigError as error:
            say(f"row {row.number} failed: {error}")
    if tried:
        times = [share * max(lines[0, -1] for _, lines in tried) for share in _SHARES]
        head = ["row", "samples/s: predicted", "measured", "off by", "trained"]
        head += [f"loss at {time_text(it)}" for it in times]
        say("\n" + format_table(head, [_cells(*it, times) for it in tried]))
    return 0 if tried else 1


def _lines_of(command: str, folder: Path, seconds: float) -> Floats:
    """Train; return the seconds, samples and loss, nan without any, of each line: (3, k).

    Raises:
        ConfigError: if it fails, or ends before it writes metrics.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    with log.open("w", encoding="utf-8") as file:
        try:
            status = ran(command, file, _SLOWER * seconds + _START_S)
        except subprocess.TimeoutExpired:
            status = 0  # what it has written by then says enough
    lines = [it for it in log.read_text(encoding="utf-8").splitlines() if it.strip()]
    if status:
        why = next((it for it in lines if "error:" in it), lines[-1] if lines else "")
        raise ConfigError(f"status {status}: {why} ({log} has all of it)")
    if not (records := read_run(folder).records):
        raise ConfigError(f"it ended before its first line of metrics ({log} has all of it)")
    return np.array([[it[of] for it in records] for of in ("seconds", "samples", "loss")], float)


def _cells(row: Row, lines: Floats, times: Sequence[float]) -> list[str]:
    x, samples, loss = lines
    predicted, first = row.prediction.samples_per_s, int(np.searchsorted(x, 0.1 * x[-1]))
    cells = [named(row), f"{predicted:.4g}"]
    if x[-1] - x[first] < _LEAST_S:  # the first tenth warms up
        cells += ["too short", "-"]
    else:
        rate = float((samples[-1] - samples[first]) / (x[-1] - x[first]))
        cells += [f"{rate:.4g}", f"{predicted / rate - 1:+.1%}"]
    known = np.isfinite(loss)
    found = np.interp(times, x[known], loss[known], left=np.nan) if known.any() else loss[:0]
    texts = ["-" if np.isnan(it) else f"{it:.4g}" for it in found] or ["-"] * len(times)
    return [*cells, time_text(float(x[-1])), *texts]
