"""The plot of ``compare_modes.py``: the fastest modes when workers are late, and their cost.

Colours are those of Okabe
and Ito, "Color universal design", 2008; the shapes of the marks tell the same once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from psrt.report.figure import save, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

#: How a mode stands in a scenario: what the legend calls it, and how it is marked.
_STANDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "first": ("fastest", {"marker": "D", "markerfacecolor": "#009E73"}),
    "tied": ("a tie with it", {"marker": "D", "markerfacecolor": "white"}),
    "near": ("slower by a tenth at most", {"marker": "o", "markerfacecolor": "#56B4E9"}),
    "behind": ("slower", {"marker": "o", "markerfacecolor": "#E69F00"}),
    "never": ("never at the target", {"marker": "X", "markerfacecolor": "#D55E00"}),
    "baseline": ("one process, for comparison", {"marker": "s", "markerfacecolor": "#999999"}),
}


def draw(rows: Sequence[Row], path: str | PathLike[str], *, target: float, note: str = "") -> None:
    """Draw a line per mode: time to an accuracy in a panel per scenario, and what it costs.

    A mark is a median over seeds, its line goes from the fastest to the slowest of them. The last
    two panels show the range over the scenarios, marked where it is worst.

    Args:
        rows: one per mode and scenario, with the keys ``mode`` and ``scenario`` (their labels);
            ``seconds_to_accuracy``, ``fastest`` and ``slowest``, None: never; ``standing``:
            first, tied, near, behind, never or baseline; ``worst_accuracy`` in [0, 1] and
            ``staleness_mean``. Modes and scenarios are drawn in the order of their first row.
        path: the file to write; its ending chooses the format.
        target: the accuracy in [0, 1] that the time is taken to.
        note: a line below the title, for instance machine and seeds.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    title = f"Time to {100 * target:g} % accuracy, when workers are late"
    figure = titled(
        width=5.5 + 2.2 * len(scenarios), height=1.9 + 0.34 * len(modes), title=title, note=note
    )
    panels = figure.subplots(1, len(scenarios) + 2, sharey=True)
    limits = _limits([row[key] for row in rows for key in ("fastest", "slowest")])
    for axes, scenario in zip(panels, scenarios, strict=False):
        here = [(modes.index(row["mode"]), row) for row in rows if row["scenario"] == scenario]
        _times(axes, here, limits)
        axes.set_title(scenario, fontsize=10)
        axes.set_xlabel("seconds")
    by_mode = [[row for row in rows if row["mode"] == mode] for mode in modes]
    accuracies = [[100 * row["worst_accuracy"] for row in mine] for mine in by_mode]
    _ranges(panels[-2], accuracies, min, "{:.1f}")
    panels[-2].set_title("lowest accuracy", fontsize=10)
    panels[-2].set_xlabel("%, at the end")
    _ranges(
        panels[-1], [[row["staleness_mean"] for row in mine] for mine in by_mode], max, "{:.2f}"
    )
    panels[-1].set_title("mean staleness", fontsize=10)
    panels[-1].set_xlabel("versions")
    panels[0].set_yticks(range(len(modes)), modes)
    panels[0].set_ylim(len(modes) - 0.4, -0.6)  # the first mode on top
    _legend(figure, panels[0], [row["standing"] for row in rows])
    save(figure, path)


def _limits(values: Sequence[float | None]) -> tuple[float, float]:
    """Return the ends of an axis on which all known values have room, and texts beside them."""
    known = [value for value in values if value is not None and value > 0] or [0.1, 1.0]
    return min(known) / 1.5, max(known) * 4


def _times(axes: Axes, rows: Sequence[tuple[int, Row]], limits: tuple[float, float]) -> None:
    """Draw the times of one scenario; what never came is at the right end."""
    axes.set_xscale("log")
    axes.set_xlim(*limits)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_axisbelow(True)
    axes.grid(color="0.9")
    end = limits[1] / 2.2
    for y, row in rows:
        _, style = _STANDINGS[row["standing"]]
        median, fastest, slowest = (
            end if row[key] is None else row[key]
            for key in ("seconds_to_accuracy", "fastest", "slowest")
        )
        axes.hlines(y, fastest, slowest, "black", linewidth=1.2)
        axes.plot([median], [y], markeredgecolor="black", markersize=6, **style)
        text = "never" if row["standing"] == "never" else f"{median:.2g}"
        _beside(axes, text, slowest, y)


def _ranges(
    axes: Axes, values: Sequence[Sequence[float]], worst: Callable[..., float], form: str
) -> None:
    """Draw a range for each mode, marked and told at its worst end."""
    for y, mine in enumerate(values):
        axes.hlines(y, min(mine), max(mine), "black", linewidth=1.2)
        axes.plot([worst(mine)], [y], "o", markerfacecolor="#0072B2", markeredgecolor="black")
        _beside(axes, form.format(worst(mine)), max(mine), y)
    axes.set_axisbelow(True)
    axes.grid(color="0.9")
    axes.margins(x=0.35)  # room for the values
    axes.locator_params(axis="x", nbins=3)  # more would run into each other


def _beside(axes: Axes, text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), (6, 0), textcoords="offset points", fontsize=8, va="center")


def _legend(figure: Figure, axes: Axes, standings: Sequence[str]) -> None:
    """Explain the marks that occur."""
    marks = [
        axes.plot([], [], linestyle="", markeredgecolor="black", label=label, **style)[0]
        for standing, (label, style) in _STANDINGS.items()
        if standing in standings
    ]
    if marks:
        figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), fontsize=9)
