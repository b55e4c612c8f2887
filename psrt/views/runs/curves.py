"""Curves of runs, as one picture: a column of their metrics over time, samples, epochs or steps.

Runs that differ only in their seed are one line, their mean, within a band of one standard
deviation. Where their points differ, as times do, each run is interpolated between its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.stats import COLUMNS as COUNTED
from psrt.history.folds.record import COLUMNS, time_of
from psrt.rows.suggest import did_you_mean
from psrt.views.page.lines import COLOURS, DASHES, STYLES
from psrt.views.page.scale import Scale, tick_text
from psrt.views.page.thin import Floats
from psrt.views.runs.folder import as_written, labels, read_run
from psrt.views.runs.seeds import Group, alone, grouped
from psrt.views.svg import INK, PALETTE, RULE, SOFT, Canvas, text_width

#: What curves may run over, and how the axis is named.
AXES = {"seconds": "seconds", "samples": "samples", "epoch": "epochs", "step": "steps"}
#: The picture, and the room around the curves, in pixels.
_WIDTH, _HEIGHT = 600, 340
_TOP, _BOTTOM, _RIGHT = 16, 48, 18
#: Height of a line of the legend, the length of a sample of a line in it, and sizes of texts.
_ROW, _SAMPLE, _SIZE, _LARGE = 20, 26, 12, 13
#: Points up to which each is marked.
_MARKED = 40


class Curve(NamedTuple):
    """A column of a run, or the mean of some."""

    name: str
    x: Floats
    y: Floats
    #: Standard deviation at each point; None of a single run.
    spread: Floats | None = None


def curves(runs: Sequence[str | Path], x: str, y: str, *, each: bool = False) -> list[Curve]:
    """Return the curves of runs.

    Args:
        runs: their folders.
        x: one of ``AXES``.
        y: a column of the metrics, such as ``loss``, or a figure of the user's own.
        each: whether runs that differ only in their seed are not taken together.

    Raises:
        ConfigError: if one is no run, or none has such a column.
    """
    named = list(zip(labels(runs), [read_run(run) for run in runs], strict=True))
    groups = alone(named) if each else grouped(named)
    found = [it for group in groups if (it := _curve(group, x, y)) is not None]
    if not found:
        known = dict.fromkeys(name for _, run in named for it in run.records for name in it)
        if y in known or y in COLUMNS:
            raise ConfigError(f"--y {y}: no run has a value of it")
        raise ConfigError(
            f"--y {y}: no such column{did_you_mean(y, known)}; expected one of {', '.join(known)}"
        )
    if len(found) > STYLES:
        raise ConfigError(f"{len(found)} curves; at most {STYLES} can be distinguished")
    return found


def _curve(group: Group, x: str, y: str) -> Curve | None:
    """Return the curve of a group; None if no run of it has a point."""
    its = []
    for run in group.runs:
        with as_written(run.path):
            points = [(_at(it, x, y), float(it[y])) for it in run.records if _is_number(it.get(y))]
        if points:
            xs, ys = np.array(sorted(points)).T
            its.append((xs, ys))
    if len(its) < 2:
        return Curve(group.name, *its[0]) if its else None
    return Curve(f"{group.name} ({len(its)} seeds)", *_mean(its))


def _mean(its: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats]:
    """Return the mean of several curves and its deviation, where all of them have points."""
    low, high = max(x[0] for x, _ in its), min(x[-1] for x, _ in its)
    x = np.unique(np.concatenate([x for x, _ in its]))
    x = x[(x >= low) & (x <= high)]
    if not len(x):  # such as one point each, at other times
        x = np.array([np.mean([x[-1] for x, _ in its])])
    ys = np.array([np.interp(x, *it) for it in its])
    return x, ys.mean(axis=0), ys.std(axis=0, ddof=1)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _at(record: Mapping[str, Any], x: str, y: str) -> float:
    return time_of(record, y) if x == "seconds" else float(record[x])


def drawing(found: Sequence[Curve], x: str, y: str) -> Canvas:
    """Return a picture of curves.

    Args:
        found: the curves, at least one.
        x: as of ``curves``.
        y: as of ``curves``.
    """
    rows = _legend_rows([it.name for it in found])
    canvas = Canvas(_WIDTH, _HEIGHT + _ROW * len(rows) + 6, f"{y} by {AXES[x]}")
    edges = [it.y if it.spread is None else it.y + side * it.spread
             for it in found for side in (-1, 1)]  # fmt: skip
    ys = Scale.of(np.concatenate(edges), _HEIGHT - _BOTTOM, _TOP)
    left = 34 + max(text_width(tick_text(it), _SIZE) for it in ys.ticks())
    xs = Scale.of(np.concatenate([it.x for it in found]), left, _WIDTH - _RIGHT)
    _axes(canvas, xs, ys, AXES[x], _named(y))
    for style, it in enumerate(found):
        _draw(canvas, xs, ys, it, style)
    for row, names in enumerate(rows):
        at, middle = left, _HEIGHT + _ROW * row + 8
        for style, name in names:
            _sample(canvas, at, middle, style)
            canvas.text(at + _SAMPLE + 6, middle, name, size=_SIZE, anchor="start", fill=INK)
            at += _entry(name)
    return canvas


def _entry(name: str) -> float:
    return _SAMPLE + 6 + text_width(name, _SIZE) + 18


def _legend_rows(names: Sequence[str]) -> list[list[tuple[int, str]]]:
    """Return the lines of a legend: numbers and names that fit beside each other."""
    rows: list[list[tuple[int, str]]] = [[]]
    width = 60.0
    for style, name in enumerate(names):
        if rows[-1] and width + _entry(name) > _WIDTH:
            rows.append([])
            width = 60.0
        rows[-1].append((style, name))
        width += _entry(name)
    return rows


def _named(y: str) -> str:
    """Return a column with its unit, as an axis is named."""
    unit = COLUMNS[y]["unit"] if y in COLUMNS else ""
    if not unit and y in COUNTED:
        unit = str(COUNTED[y].metadata.get("unit", ""))
    text = y.replace("_", " ")
    return text if not unit or unit in text else f"{text} ({unit})"


def _axes(canvas: Canvas, xs: Scale, ys: Scale, x_name: str, y_name: str) -> None:
    for value in ys.ticks():
        y = ys(value)
        canvas.line(xs.start, y, xs.stop, y, stroke=RULE)
        canvas.text(xs.start - 7, y, tick_text(value), size=_SIZE, fill=SOFT, anchor="end")
    for value in xs.ticks():
        x = xs(value)
        canvas.line(x, ys.start, x, ys.start + 5, stroke=SOFT)
        canvas.text(x, ys.start + 15, tick_text(value), size=_SIZE, fill=SOFT)
    canvas.line(xs.start, ys.start, xs.stop, ys.start, stroke=SOFT)
    canvas.text((xs.start + xs.stop) / 2, ys.start + 34, x_name, size=_LARGE, fill=INK)
    canvas.upright(11, (ys.start + ys.stop) / 2, y_name, size=_LARGE, fill=INK)


def _draw(canvas: Canvas, xs: Scale, ys: Scale, it: Curve, style: int) -> None:
    colour = PALETTE[style % COLOURS]
    if it.spread is not None:
        edge = [(xs(x), ys(y)) for x, y in zip(it.x, it.y + it.spread, strict=True)]
        other = [(xs(x), ys(y)) for x, y in zip(it.x, it.y - it.spread, strict=True)]
        canvas.area(edge + other[::-1], fill=colour, opacity=0.18)
        if len(it.x) == 1:
            canvas.line(*edge[0], *other[0], stroke=colour)
    points = [(xs(x), ys(y)) for x, y in zip(it.x, it.y, strict=True)]
    canvas.curve(points, stroke=colour, width=2, dashes=DASHES[style // COLOURS % len(DASHES)])
    if len(points) <= _MARKED:
        for x, y in points:
            canvas.circle(x, y, 2.6, fill=colour, stroke="none")


def _sample(canvas: Canvas, x: float, y: float, style: int) -> None:
    dashes = DASHES[style // COLOURS % len(DASHES)]
    colour = PALETTE[style % COLOURS]
    canvas.curve([(x, y), (x + _SAMPLE, y)], stroke=colour, width=2.5, dashes=dashes)
