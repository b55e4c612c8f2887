"""The study of softsync as a picture: how stale gradients were, and what became of the error."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from psrt.report.figure import save, titled
from studies.palette import COLOURS, DASHES, MARKERS
from studies.softsync_lines import Line, Row, lines_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Test errors in percent that a logarithmic axis names.
_TICKS = (1, 2, 5, 10, 20, 50, 100)


def draw(rows: Sequence[Row], path: str | PathLike[str], *, note: str = "") -> None:
    """Draw a histogram of τ for each n, one above the other, beside the test error over epochs.

    Runs that differ in their seed alone are drawn as the mean of their errors. Those that diverged
    have none: the legend counts them.

    Args:
        rows: one per run, see ``softsync_lines.Row``; n and rates are drawn in the order in which
            they first occur.
        path: the file to write; its ending chooses the format.
        note: a line below the title, for instance workers, optimizer and data.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    lines = lines_of(rows)
    title = "Staleness of softsync(n), and what it does to learning"
    figure = titled(width=11.0, height=5.6, title=title, note=note)
    layout: list[Any] = [[f"{line.n}", "error"] for line in lines] or [["error"]]
    axes = figure.subplot_mosaic(layout, width_ratios=[1.0, 1.15] if lines else None)
    farthest = max((max(line.staleness.max, 2 * line.n) for line in lines), default=0)
    for i, line in enumerate(lines):
        _histogram(axes[f"{line.n}"], line, COLOURS[(i + 1) % len(COLOURS)])
        axes[f"{line.n}"].set_xlim(-2.0, farthest + 4.0)
        if i < len(lines) - 1:
            axes[f"{line.n}"].tick_params(labelbottom=False)
        else:
            axes[f"{line.n}"].set_xlabel("staleness τ [versions]")
    _errors(axes["error"], rows, lines)
    save(figure, path)


def _histogram(axes: Axes, line: Line, colour: str) -> None:
    """Draw how often which τ was met, with marks at n and 2n."""
    found = line.staleness
    total = sum(found.histogram.values())
    shares = [100 * count / total for count in found.histogram.values()]
    axes.bar(list(found.histogram), shares, width=0.9, color=colour)
    for place, name, dash, side in (
        (line.n, "n ", "-", "right"),
        (2 * line.n, " 2n", "--", "left"),
    ):
        axes.axvline(place, color="black", linestyle=dash, linewidth=1)
        axes.text(
            place, 0.96, name, transform=axes.get_xaxis_transform(), va="top", ha=side, fontsize=9
        )
    axes.set_ylabel("pushes [%]")
    axes.set_ylim(0, 1.22 * max(shares, default=1.0))  # room for the names
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    counted = f"mean τ {found.mean:.1f}, P(τ > 2n) = {line.beyond:.1g}" if total else "all diverged"
    axes.set_title(f"n = {line.n}: {counted}", fontsize=10)


def _errors(axes: Axes, rows: Sequence[Row], lines: Sequence[Line]) -> None:
    """Draw the test error of each n and rate, in the colours of the histograms."""
    lowest = _lowest(rows)
    for i, line in enumerate(lines):
        for j, rate in enumerate(line.errors):
            mine = [r for r in rows if (r["softsync"], r["staleness_rate"]) == (line.n, rate)]
            diverged = line.errors[rate].diverged
            label = f"n = {line.n}, {rate}"
            if diverged:
                label += f", {diverged} of {len(mine)} diverged"
            epochs, means = _means(mine)
            errors = [max(error, lowest) for error in means]  # a logarithm knows no 0
            axes.plot(
                epochs, errors, color=COLOURS[(i + 1) % len(COLOURS)], label=label,
                linestyle=DASHES[j % len(DASHES)], marker=MARKERS[i % len(MARKERS)],
                # In turns, or equal curves would hide each other.
                markevery=(i * len(epochs) // (8 * len(lines)), max(1, len(epochs) // 8)),
            )  # fmt: skip
    axes.set_yscale("log")
    axes.set_yticks(_TICKS, [str(tick) for tick in _TICKS])
    axes.minorticks_off()
    axes.set_ylim(lowest, 130)
    axes.set_xlabel("epochs")
    axes.set_ylabel("test error [%]")
    axes.grid(color="0.9")
    if axes.lines:
        axes.legend(fontsize=9, framealpha=0.9)


def _means(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Return epochs and the mean test error of some runs after each of them, in percent."""
    runs: dict[float, list[float]] = {}
    for row in rows:
        for epoch, error in row["errors"]:
            runs.setdefault(epoch, []).append(100 * error)
    epochs = sorted(runs)
    return epochs, [sum(runs[epoch]) / len(runs[epoch]) for epoch in epochs]


def _lowest(rows: Sequence[Row]) -> float:
    """Return where the axis of errors begins, in percent."""
    known = [100 * error for row in rows for _, error in row["errors"] if error]
    return max(0.1, 0.8 * min(known, default=1.0))
