"""The study of learners as pictures: goodput by what is varied, and quality by merge."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from psrt.report.figure import save, titled
from studies.compression import LINKS
from studies.learners import SCHEMES
from studies.palette import COLOURS, DASHES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

#: By sweep: the field of a row on its axis, and the label.
_AXES = {
    "workers": ("workers", "learners"),
    "spread": ("spread", "slowest over fastest"),
    "mtbf": ("mtbf", "steps between failures, 64 learners"),
    "many": ("mtbf", "steps between failures, 2,048 learners"),
    "link": ("link", "link [Gbit/s]"),
}
_GBIT_S = 1.25e8
#: What the curves of a plot may have in common, in words.
_PANELS = {"outer": "{}", "wrong": "wrong: {}", "counted": "{} steps"}


def draw_goodput(rows: Sequence[Row], path: str | PathLike[str]) -> None:
    """Draw goodput, a line for each scheme, a plot for each sweep.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    sweeps = list(dict.fromkeys(row["sweep"] for row in rows))
    figure = titled(
        width=2.9 * len(sweeps) + 0.5, height=3.8, title="Goodput of learners",
        note="unless varied: 64 learners, spread 2, 10⁵ steps between failures, 1 Gbit/s",
    )  # fmt: skip
    plots = figure.subplots(1, len(sweeps), squeeze=False, sharey=True)[0]
    for axes, sweep in zip(plots, sweeps, strict=True):
        _draw_sweep(axes, [row for row in rows if row["sweep"] == sweep], sweep)
    plots[0].set_ylabel("goodput [%]")
    plots[0].set_ylim(0, 105)
    handles, labels = plots[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(SCHEMES), fontsize=9)
    save(figure, path)


def _draw_sweep(axes: Axes, rows: Sequence[Row], sweep: str) -> None:
    field, label = _AXES[sweep]
    for i, scheme in enumerate(SCHEMES):
        mine = [row for row in rows if row["scheme"] == scheme]
        where = list(dict.fromkeys(row[field] for row in mine))
        found = [[100 * row["goodput"] for row in mine if row[field] == it] for it in where]
        axes.errorbar(
            [LINKS[it] / _GBIT_S if field == "link" else it for it in where],
            list(map(statistics.mean, found)), list(map(_spread, found)), label=scheme,
            color=COLOURS[i], marker=MARKERS[i], markersize=5, capsize=2,
            linestyle=DASHES[i % len(DASHES)], linewidth=1.3,
        )  # fmt: skip
    axes.set_xscale("log", base=2 if field in ("workers", "spread") else 10)
    if field in ("workers", "spread"):
        where = list(dict.fromkeys(row[field] for row in rows))
        axes.set_xticks(where, [f"{it:,}" for it in where])
    axes.minorticks_off()
    axes.set_xlabel(label, fontsize=9)
    axes.grid(color="0.9")


def _spread(found: Sequence[float]) -> float:
    """Return the standard deviation, 0 of one value."""
    return statistics.stdev(found) if len(found) > 1 else 0.0


def draw_curves(rows: Sequence[Row], path: str | PathLike[str]) -> None:
    """Draw accuracy by samples, mean and standard deviation: a line for each merge or outer step.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    of_lines = "merge" if len({row["merge"] for row in rows}) > 1 else "outer"
    of_plots = [it for it in _PANELS if it != of_lines and len({row[it] for row in rows}) > 1]
    panels = list(dict.fromkeys(tuple(row[it] for it in of_plots) for row in rows))
    lines = list(dict.fromkeys(row[of_lines] for row in rows))
    columns = min(3, len(panels))
    figure = titled(
        width=3.1 * columns + 0.7, height=2.5 * math.ceil(len(panels) / columns) + 1.3,
        title=f"{'Merges' if of_lines == 'merge' else 'Outer steps'} at equal samples",
        note=f"mean and standard deviation of {len({row['seed'] for row in rows})} seeds",
    )  # fmt: skip
    plots = figure.subplots(
        math.ceil(len(panels) / columns), columns, squeeze=False, sharex=True, sharey=True
    )
    for axes, panel in zip(plots.flat, panels, strict=False):
        for i, line in enumerate(lines):
            mine = [
                row for row in rows
                if row[of_lines] == line and tuple(row[it] for it in of_plots) == panel
            ]  # fmt: skip
            _draw_curve(axes, mine, i, line)
        axes.set_title(
            ", ".join(_PANELS[it].format(value) for it, value in zip(of_plots, panel, strict=True)),
            fontsize=10,
        )
        axes.grid(color="0.9")
    plots[0][0].set_ylim(0, min(103, plots[0][0].get_ylim()[1]))
    for axes in plots[-1]:
        axes.set_xlabel("samples of all learners [thousands]", fontsize=9)
    for axes in plots[:, 0]:
        axes.set_ylabel("test accuracy [%]", fontsize=9)
    handles, labels = plots.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(lines), fontsize=9)
    save(figure, path)


def _draw_curve(axes: Axes, rows: Sequence[Row], i: int, label: str) -> None:
    """Draw one line; each row has its own, and at its end the accuracy of the final model."""
    curves = [
        [(samples, accuracy) for samples, _, accuracy in row["curve"] if samples < row["samples"]]
        + [(row["samples"], row["accuracy"])]
        for row in rows if row["accuracy"] is not None
    ]  # fmt: skip
    points = list(zip(*curves, strict=False))
    found = [[100 * accuracy for _, accuracy in point] for point in points]
    axes.errorbar(
        [statistics.mean(samples for samples, _ in point) / 1000 for point in points],
        list(map(statistics.mean, found)), list(map(_spread, found)), label=label,
        color=COLOURS[i], marker=MARKERS[i], markersize=4, capsize=2,
        linestyle=DASHES[i % len(DASHES)], linewidth=1.2,
    )  # fmt: skip
