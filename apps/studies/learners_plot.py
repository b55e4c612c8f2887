"""The study of learners as pictures: goodput by what is varied, and quality by merge."""

from __future__ import annotations

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
    if field == "spread":
        axes.set_xticks([1, 2, 4], ["1", "2", "4"])
    axes.set_xlabel(label, fontsize=9)
    axes.grid(color="0.9")


def _spread(found: Sequence[float]) -> float:
    """Return the standard deviation, 0 of one value."""
    return statistics.stdev(found) if len(found) > 1 else 0.0


def draw_merges(rows: Sequence[Row], path: str | PathLike[str]) -> None:
    """Draw mean and standard deviation of the accuracy: a plot for each outer step.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    outers, wrongs, merges = (
        list(dict.fromkeys(row[it] for row in rows)) for it in ("outer", "wrong", "merge")
    )
    seeds = len({row["seed"] for row in rows})
    figure = titled(
        width=3.2 * len(outers) + 1, height=3.6, title="Four learners at equal samples",
        note=f"mean and standard deviation of {seeds} seeds",
    )  # fmt: skip
    plots = figure.subplots(1, len(outers), squeeze=False, sharey=True)[0]
    for axes, outer in zip(plots, outers, strict=True):
        for i, merge in enumerate(merges):
            for j, wrong in enumerate(wrongs):
                found = [
                    100 * (row["accuracy"] or 0.0) for row in rows
                    if (row["outer"], row["merge"], row["wrong"]) == (outer, merge, wrong)
                ]  # fmt: skip
                axes.errorbar(
                    j + 0.15 * (i - (len(merges) - 1) / 2), statistics.mean(found), yerr=_spread(found),
                    color=COLOURS[i], marker=MARKERS[i], markersize=5, capsize=2,
                    linestyle="", label=merge if j == 0 else None,
                )  # fmt: skip
        axes.set_title(f"outer step: {outer}", fontsize=10)
        axes.set_xticks(range(len(wrongs)), wrongs, fontsize=9)
        axes.set_xlabel("wrong learner", fontsize=9)
        axes.grid(color="0.9", axis="y")
    plots[0].set_ylabel("test accuracy [%]")
    handles, labels = plots[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(merges), fontsize=9)
    save(figure, path)
