"""The study of workers as a picture: test accuracy against the number of workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from psrt.report.figure import save, titled
from studies.palette import COLOURS, DASHES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def draw(rows: Sequence[Row], path: str | PathLike[str], *, note: str = "") -> None:
    """Draw test accuracy against the number of workers, one line per staleness rate.

    Rows that differ in their seed alone are drawn as their mean, with a bar from the worst to the
    best; a cross at the bottom marks runs that diverged.

    Args:
        rows: one per run, with the keys ``staleness_rate``, ``workers`` and ``test_accuracy`` in
            [0, 1], None or nan: diverged. Rates are drawn in the order of their first row.
        path: the file to write; its ending chooses the format.
        note: a line below the title, for instance mode, optimizer and data.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    figure = titled(width=8.5, height=5.0, title="Accuracy and asynchrony", note=note)
    axes = figure.subplots()
    rates = list(dict.fromkeys(row["staleness_rate"] for row in rows))
    for i, rate in enumerate(rates):
        _rate_line(axes, [row for row in rows if row["staleness_rate"] == rate], i, len(rates))
    workers = sorted({row["workers"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(workers, [str(w) for w in workers])
    axes.minorticks_off()
    axes.set_xlabel("workers")
    axes.set_ylabel("test accuracy at the end [%]")
    axes.grid(color="0.9")
    if any(not _is_known(row["test_accuracy"]) for row in rows):
        axes.plot([], [], "kx", markersize=8, markeredgewidth=2, label="diverged")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title="staleness rate")
    save(figure, path)


def _rate_line(axes: Axes, rows: Sequence[Row], i: int, of: int) -> None:
    """Draw the ``i``-th of ``of`` rates: a line of means, bars of the range, diverged runs."""
    colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
    apart = 2 ** (0.06 * (i - (of - 1) / 2))  # side by side, or equal lines would hide each other
    runs: dict[int, list[float]] = {}
    for row in rows:
        if _is_known(row["test_accuracy"]):
            runs.setdefault(row["workers"], []).append(100 * row["test_accuracy"])
    workers = sorted(runs)
    places = [w * apart for w in workers]
    axes.plot(
        places, [math.fsum(runs[w]) / len(runs[w]) for w in workers], color=colour, marker=marker,
        linestyle=DASHES[i % len(DASHES)], markersize=6, label=rows[0]["staleness_rate"],
    )  # fmt: skip
    axes.vlines(places, [min(runs[w]) for w in workers], [max(runs[w]) for w in workers], colour)
    diverged = sorted({r["workers"] for r in rows if not _is_known(r["test_accuracy"])})
    axes.plot(
        [w * apart for w in diverged], [0.03] * len(diverged), "x", color=colour, markersize=8,
        markeredgewidth=2, transform=axes.get_xaxis_transform(),
    )  # fmt: skip


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
