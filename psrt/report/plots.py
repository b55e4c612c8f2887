"""Plots of finished runs, from plain rows to a file.

Not imported by the package, and matplotlib only when a plot is drawn, so no rank ever pays for it.
Figures are drawn by the Agg canvas without a window and without pyplot's global state. Colours are
those of Okabe and Ito, "Color universal design", 2008, which the colour-blind tell apart; hatches,
markers and dashes tell the same once more, for print.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from psrt.report.figure import blank, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

#: Okabe and Ito's, but grey for their yellow, which is too faint for a line on white.
COLOURS = ("black", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":")

#: One row of bars per mode: without a straggler above, with one below.
_SERIES = (
    (False, "no straggler", {"facecolor": "#0072B2", "edgecolor": "black"}),
    (True, "with a straggler", {"facecolor": "#E69F00", "edgecolor": "black", "hatch": "///"}),
)
_BAR = 0.38


def compare_modes(
    rows: Sequence[Row], path: str | PathLike[str], *, target: float, note: str = ""
) -> None:
    """Draw four panels, a line per mode: time to accuracy, accuracy, staleness, bytes.

    Args:
        rows: one per run, with the keys ``mode`` (its label), ``straggler`` (bool),
            ``seconds_to_accuracy`` (None: never reached), ``test_accuracy`` in [0, 1],
            ``staleness_mean`` and ``bytes_sent``; None where there is nothing to show. Modes are
            drawn in the order of their first row.
        path: the file to write; its ending chooses the format.
        target: the accuracy in [0, 1] that the time is taken to.
        note: a line below the title, for instance model, data and machine.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    figure = _figure(width=13.0, height=1.7 + 0.52 * len(modes), title="Modes compared", note=note)
    time, accuracy, staleness, sent = figure.subplots(1, 4, sharey=True)
    series = [s for s in _SERIES if any(row["straggler"] == s[0] for row in rows)]
    for straggler, label, style in series:
        mine = {row["mode"]: row for row in rows if row["straggler"] == straggler}
        shift = 0.0 if len(series) == 1 else _BAR / 2 if straggler else -_BAR / 2
        places = [(mine[mode], y + shift) for y, mode in enumerate(modes) if mode in mine]
        _bars(time, _values(places, "seconds_to_accuracy"), "{:.3g}", label, style, none="never")
        _dots(accuracy, _values(places, "test_accuracy", scale=100), label, style)
        _bars(staleness, _values(places, "staleness_mean"), "{:.2f}", label, style, none="–")
        _bars(sent, _values(places, "bytes_sent", scale=1e-6), "{:.3g}", label, style, none="–")
    time.set_yticks(range(len(modes)), modes)
    time.set_ylim(len(modes) - 0.4, -0.6)  # the first mode on top
    time.set_xlabel(f"time to {100 * target:g} % accuracy [s]")
    accuracy.set_xlabel("test accuracy at the end [%]")
    staleness.set_xlabel("mean staleness [versions]")
    sent.set_xlabel("sent by all ranks [MB]")
    for axes in (time, accuracy, staleness, sent):
        axes.locator_params(axis="x", nbins=4)  # more would run into each other
    if len(series) > 1:
        figure.legend(*time.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save(figure, path)


def staleness_study(rows: Sequence[Row], path: str | PathLike[str], *, note: str = "") -> None:
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
    figure = _figure(width=8.5, height=5.0, title="Accuracy and asynchrony", note=note)
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


Point = tuple[float | None, float]


def _values(places: Sequence[tuple[Row, float]], key: str, scale: float = 1.0) -> Iterator[Point]:
    """Yield the value of each row, None where there is none, with the row's place."""
    for row, y in places:
        yield (row[key] * scale if _is_known(row[key]) else None), y


def _bars(
    axes: Axes, points: Iterator[Point], form: str, label: str, style: dict[str, Any], none: str
) -> None:
    """Draw bars with their values at the tips; ``none`` stands where there is no value."""
    known = list(points)
    bars = axes.barh(
        [y for _, y in known], [value or 0.0 for value, _ in known], _BAR, label=label, **style
    )
    texts = [none if value is None else form.format(value) for value, _ in known]
    axes.bar_label(bars, texts, padding=3, fontsize=8)
    axes.margins(x=0.22)  # room for the values
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="0.9")


def _dots(axes: Axes, points: Iterator[Point], label: str, style: dict[str, Any]) -> None:
    """Draw dots, whose axis need not begin at 0 as that of bars must: accuracies are close."""
    known = [(value, y) for value, y in points if value is not None]
    marker = "D" if "hatch" in style else "o"
    axes.plot(
        [value for value, _ in known], [y for _, y in known], marker, label=label,
        markerfacecolor=style["facecolor"], markeredgecolor=style["edgecolor"],
    )  # fmt: skip
    for value, y in known:
        axes.annotate(
            f"{value:.1f}", (value, y), (6, 0), textcoords="offset points", fontsize=8, va="center"
        )
    axes.margins(x=0.22)
    axes.grid(color="0.9")


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _figure(*, width: float, height: float, title: str, note: str) -> Figure:
    """Return an empty figure, in inches."""
    figure = blank(width, height)
    figure.suptitle(f"{title}\n{note}" if note else title, fontsize=11)
    return figure
