"""Statistics of readings: medians with quartiles, tables, JSON, and the machine."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psrt.core.files import write_text
from psrt.report.environment import processor

Row = Mapping[str, Any]
#: A heading, and the key or the function of a row that gives the column's values.
Column = tuple[str, str | Callable[[Row], object]]


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and quartiles of readings of one quantity, in its unit."""

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


def spread(key: str, scale: float = 1.0, digits: int = 2) -> Callable[[Row], str]:
    """Return a function that formats the summary of a row under ``key``, a dash for None.

    Args:
        key: of a `Summary` in the row, or None.
        scale: factor of its figures, such as 1e6 for µs of seconds.
        digits: after the point.
    """
    return lambda row: "-" if row[key] is None else row[key].format(scale, digits)


def table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return rows as text.

    >>> print(table([{"n": 1, "s": Summary(2.0, 1.0, 3.0, 9)}], [("n", "n"), ("s", spread("s"))]))
    n                    s
    -  -------------------
    1  2.00 [1.00 .. 3.00]
    """
    cells = [[row[of] if isinstance(of, str) else of(row) for _, of in columns] for row in rows]
    return format_table([heading for heading, _ in columns], cells)


def format_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns under their headings: the first to the left, the rest to the right.

    >>> print(format_table(["model", "ms"], [["small", "1.25"], ["large", 20]]))
    model    ms
    -----  ----
    small  1.25
    large    20
    """
    cells = [[str(cell) for cell in row] for row in (headings, *rows)]
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

    >>> " ".join(to_json([Summary(2.0, 1.0, 3.0, 9)]).split())
    '[ { "median": 2.0, "low": 1.0, "high": 3.0, "readings": 9 } ]'
    """
    return json.dumps(value, indent=2, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Summary):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be reported by a benchmark")


def write_json(path: str | Path, value: Any) -> None:
    """Write ``to_json(value)`` to a file.

    Raises:
        ConfigError: if the file cannot be written.
    """
    write_text(path, to_json(value) + "\n")


def machine() -> str:
    """Return processor, cores, Python, numpy and, if it is in use, the MPI library."""
    parts = [
        f"{len(os.sched_getaffinity(0))} cores of {processor()}",
        f"Python {platform.python_version()}",
        f"numpy {np.__version__}",
    ]
    if "mpi4py.MPI" in sys.modules:
        from psrt.job.mpi import library_name

        parts.append(library_name())
    return ", ".join(parts)
