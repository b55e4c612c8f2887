"""``psrt plan --try``: trains the best rows of a plan on their ranks, and shows what comes of them.

A plan says how fast a row is, not how well it learns. Rows are trained one after the other, each by
its own command and for the same time.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from psrt.bench.figures import format_table
from psrt.core.errors import ConfigError
from psrt.core.units import time_text
from psrt.planning.measuring import ran
from psrt.planning.ranking import Plan, Row
from psrt.planning.table import in_short
from psrt.report.files import METRICS
from psrt.views.runs.curves import Curve, curves

#: Where runs go, each to a folder with the number of its row.
FOLDER = Path("runs") / "plan"
#: Most seconds between two lines of metrics, and the fewest lines of a whole try.
_LINE_S, _LINES = 0.25, 40
#: The statuses of a run that has ended by itself, and that was ended in time.
_ENDED = (0, 128 + 15)
#: At which shares of the time losses are shown.
_SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a row."""

    row: Row
    #: Samples of all workers by seconds, and their training loss; None if it has none.
    samples: Curve | None = None
    loss: Curve | None = None
    #: Why there is nothing; empty if there is something.
    failure: str = ""

    @property
    def seconds(self) -> float:
        """How long it has trained."""
        return 0.0 if self.samples is None else float(self.samples.x[-1])

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second after the first tenth, which warms up; None if it is too short."""
        if self.samples is None:
            return None
        x, y = self.samples.x, self.samples.y
        first = int(np.searchsorted(x, 0.1 * x[-1]))
        return float((y[-1] - y[first]) / (x[-1] - x[first])) if x[-1] > x[first] else None


def try_best(plan: Plan, count: int, *, seconds: float, say: Callable[[str], object]) -> None:
    """Train the best rows, and print how fast they are and what they learn.

    Args:
        plan: whose commands can be run here.
        count: number of rows.
        seconds: of training for each, unless its own number of epochs ends it before.
        say: takes what is printed.
    """
    tried = []
    for row in plan.rows[:count]:
        say(f"trying row {row.number} for {time_text(seconds)}: {row.command}")
        tried.append(_try(row, seconds))
        if tried[-1].failure:
            say(f"row {row.number} failed: {tried[-1].failure}")
    if text := text_of(tried):
        say(text)


def _try(row: Row, seconds: float) -> Tried:
    folder = FOLDER / str(row.number)
    folder.parent.mkdir(parents=True, exist_ok=True)
    metrics, log = folder / METRICS, folder.with_suffix(".log")
    every = max(1, math.floor(min(_LINE_S, seconds / _LINES) / row.prediction.step_s))
    knobs = shlex.join(["--out", str(folder), "--overwrite", "--log-every", str(every)])
    words = shlex.split(row.command)
    words = words[words.index("launch") + 1 :]
    began = _Began(metrics)
    with log.open("w", encoding="utf-8") as file:
        status = ran(["launch", "--knobs", knobs, *words], began.over_after(seconds), log=file)
    if status not in _ENDED or not began.has_begun():
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        why = next((it for it in lines if "error:" in it), lines[-1] if lines else "")
        return Tried(row, failure=f"status {status}: {why} ({log} has all of it)")
    samples = _curve(folder, "samples")
    none = "" if samples is not None else f"it ended before its first line of {metrics}"
    return Tried(row, samples, _curve(folder, "loss"), none)


class _Began:
    """Whether a run trains: then it has made a new file for its metrics."""

    def __init__(self, metrics: Path) -> None:
        self._metrics, self._before = metrics, _stamp(metrics)
        self._at: float | None = None

    def has_begun(self) -> bool:
        return _stamp(self._metrics) not in (None, self._before)

    def over_after(self, seconds: float) -> Callable[[], bool]:
        """Return what says whether it has trained for that long."""

        def is_over() -> bool:
            if self._at is None and self.has_begun():
                self._at = time.monotonic()
            return self._at is not None and time.monotonic() - self._at > seconds

        return is_over


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _curve(folder: Path, name: str) -> Curve | None:
    try:
        return curves([folder], "seconds", name)[0]
    except ConfigError:  # such as a loop that passes no loss
        return None


def text_of(tried: Sequence[Tried]) -> str:
    """Return a table: a row for each that has trained, with its losses at the same times."""
    tried = [it for it in tried if not it.failure]
    last = max((it.seconds for it in tried), default=0.0)
    times = [share * last for share in _SHARES]
    head = ["row", "samples/s: predicted", "measured", "off by", "trained"]
    head += [f"loss at {time_text(it)}" for it in times]
    return "\n" + format_table(head, [_cells(it, times) for it in tried]) if tried else ""


def _cells(tried: Tried, times: Sequence[float]) -> list[str]:
    row, rate = tried.row, tried.samples_per_s
    predicted = row.prediction.samples_per_s
    cells = [f"{row.number}  {in_short(row)}", f"{predicted:.4g}"]
    cells += ["-", "-"] if rate is None else [f"{rate:.4g}", f"{predicted / rate - 1:+.1%}"]
    cells.append(time_text(tried.seconds))
    loss = tried.loss
    return cells + [
        "-" if loss is None or it < loss.x[0] else f"{np.interp(it, loss.x, loss.y):.4g}"
        for it in times
    ]
