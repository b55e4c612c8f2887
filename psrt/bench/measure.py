"""Measuring candidates against each other: interleaved rounds, medians with spread, tables.

A machine's speed drifts by more than the differences worth knowing, so what is compared takes
turns within one run, and what is reported is a median with the quartiles beside it.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from psrt.files import write_text


@dataclass(frozen=True, slots=True)
class Summary:
    """What is said of many readings of one quantity, in its own unit."""

    median: float
    #: Lower quartile.
    low: float
    #: Upper quartile.
    high: float
    #: Number of readings.
    readings: int

    @classmethod
    def of(cls, readings: Sequence[float]) -> Summary:
        """Summarize at least one reading.

        >>> Summary.of([4.0, 1.0, 2.0, 3.0, 5.0])
        Summary(median=3.0, low=2.0, high=4.0, readings=5)
        """
        low, median, high = (float(q) for q in np.quantile(readings, (0.25, 0.5, 0.75)))
        return cls(median, low, high, len(readings))

    def format(self, scale: float = 1.0, digits: int = 2) -> str:
        """Return ``median [low .. high]`` in units of ``1 / scale``.

        >>> Summary(0.003, 0.0025, 0.004, 9).format(1e3)
        '3.00 [2.50 .. 4.00]'
        """
        median, low, high = (
            f"{value * scale:.{digits}f}" for value in (self.median, self.low, self.high)
        )
        return f"{median} [{low} .. {high}]"


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmup: int = 1,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, list[float]]:
    """Time every candidate once per round.

    Every other round goes through them backwards, so that none always follows the same one and
    inherits its caches.

    Args:
        candidates: what to run, by name.
        rounds: readings of each, at least 1.
        warmup: rounds before those that count.
        clock: seconds.

    Returns:
        The seconds of each call, per candidate, in order; equal positions are of one round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates.items())
    for number in range(-warmup, rounds):
        for name, run in order if number % 2 == 0 else reversed(order):
            start = clock()
            run()
            spent = clock() - start
            if number >= 0:
                seconds[name].append(spent)
    return seconds


def ratios(readings: Sequence[float], baseline: Sequence[float]) -> Summary:
    """Summarize reading over baseline round by round, which cancels the machine's drift.

    >>> ratios([2.0, 6.0, 3.0], [1.0, 2.0, 3.0]).median
    2.0
    """
    return Summary.of([a / b for a, b in zip(readings, baseline, strict=True)])


def peak_growth(run: Callable[[], object]) -> int:
    """Return by how many bytes a call raises the memory that Python and numpy hold at once.

    The call is made twice before, so that what is kept from call to call is there already.
    """
    run()
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        run()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if started:
            tracemalloc.stop()


def format_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns under their headers: the first to the left, the rest to the right.

    >>> print(format_table(["model", "ms"], [["small", "1.25"], ["large", 20]]))
    model    ms
    -----  ----
    small  1.25
    large    20
    """
    cells = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def to_json(value: Any) -> str:
    """Return rows of numbers, texts and summaries as JSON.

    >>> print(to_json([{"seconds": Summary(2.0, 1.0, 3.0, 9)}]))
    [
      {
        "seconds": {
          "median": 2.0,
          "low": 1.0,
          "high": 3.0,
          "readings": 9
        }
      }
    ]
    """
    return json.dumps(value, indent=2, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Summary):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is nothing that a benchmark reports")


def write_json(path: str | Path, value: Any) -> None:
    """Write ``to_json(value)`` to a file.

    Raises:
        ConfigError: if the file cannot be written.
    """
    write_text(path, to_json(value) + "\n")
