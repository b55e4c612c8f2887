"""Horizontal bars of stacked parts, such as the time that each worker spent on what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psrt.views.page.lines import colour
from psrt.views.page.parts import Figure
from psrt.views.page.scale import Scale
from psrt.views.svg import Canvas, text_width

#: Width of the drawing, height of a row, and room below them, in pixels.
_WIDTH, _ROW, _BOTTOM = 480, 19, 24
#: Characters of a row's name that are shown.
_NAME = 28


def bar_chart(
    title: str,
    rows: Sequence[tuple[str, Sequence[float]]],
    parts: Sequence[str],
    text_of: Callable[[float], str],
    *,
    caption: str = "",
    highest: float | None = None,
    axis: bool = True,
) -> Figure:
    """Return a chart.

    Args:
        title: of the chart.
        rows: name and the values of its parts, none negative.
        parts: their names, for the legend; those that are 0 everywhere are left out.
        text_of: formats a value.
        caption: how to read it.
        highest: end of the axis; None: the longest bar.
        axis: whether there are numbers below; each bar has its own number next to it.
    """
    longest = max((sum(values) for _, values in rows), default=0.0)
    names = [_short(name) for name, _ in rows]
    left = max((text_width(name, 11) for name in names), default=0.0) + 8
    right = max(text_width(text_of(sum(values)), 11) for _, values in rows) + 8 if rows else 0
    below = _BOTTOM if axis else 0
    height = _ROW * len(rows) + below
    canvas = Canvas(_WIDTH, height, title)
    xs = Scale.of([highest or longest or 1.0], left, _WIDTH - right, zero=True)
    for value in xs.ticks(4) if axis else ():
        x = xs(value)
        canvas.line(x, 0, x, height - below, stroke="var(--rule)")
        canvas.text(x, height - below + 12, text_of(value), size=11, fill="var(--soft)")
    shown = [i for i in range(len(parts)) if any(values[i] for _, values in rows)]
    for row, (name, (_, values)) in enumerate(zip(names, rows, strict=True)):
        _row(canvas, xs, row * _ROW, name, values, text_of)
    legend = [(parts[i], i) for i in shown] if len(parts) > 1 else []
    return Figure(title, canvas.inline(), legend, caption)


def _row(
    canvas: Canvas,
    xs: Scale,
    y: float,
    name: str,
    values: Sequence[float],
    text_of: Callable[[float], str],
) -> None:
    canvas.text(xs.start - 6, y + _ROW / 2, name, size=11, fill="var(--ink)", anchor="end")
    x, whole = xs.start, 0.0
    for style, value in enumerate(values):
        whole += value
        if value > 0:
            canvas.rect(x, y + 3, xs(whole) - x, _ROW - 6, fill=colour(style))
            x = xs(whole)
    canvas.text(x + 5, y + _ROW / 2, text_of(whole), size=11, fill="var(--soft)", anchor="start")


def _short(name: str) -> str:
    return name if len(name) <= _NAME else name[: _NAME - 1] + "…"
