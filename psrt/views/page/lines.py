"""A line chart: a drawing that prints, and the same numbers for the script that enlarges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from psrt.views.page.parts import Figure
from psrt.views.page.scale import Scale, tick_text
from psrt.views.page.thin import Floats, thin
from psrt.views.svg import Canvas, text_width

#: Colours of lines, and dashes where there are more.
COLOURS, DASHES = 7, ("", "6 3", "2 2")
#: Most runs that can be distinguished.
STYLES = COLOURS * len(DASHES)
#: Size of the drawing and of the room around it, in pixels.
_WIDTH, _HEIGHT = 480, 270
_TOP, _BOTTOM, _RIGHT = 10, 44, 14
#: Points up to which each is marked.
_MARKED = 40


@dataclass(frozen=True, slots=True)
class Line:
    """One line."""

    name: str
    x: Floats
    y: Floats
    #: Its colour and dashes, from 0.
    style: int = 0
    #: What its points are, which browsers show under the cursor.
    title: str = ""


def colour(style: int) -> str:
    """Return a colour as the style of pages names it."""
    return f"var(--s{style % COLOURS})"


def line_chart(
    title: str,
    x_name: str,
    y_name: str,
    lines: Sequence[Line],
    *,
    most: int,
    log: bool = False,
    zero: bool = False,
    log_x: bool = False,
    caption: str = "",
) -> Figure | None:
    """Return a chart; None if there is no point to show.

    Args:
        title: of the chart.
        x_name: with its unit; charts with the same name share a cursor.
        y_name: with its unit.
        lines: lines; missing values are nan.
        most: most points of each.
        log: whether y is logarithmic if its values span a wide range.
        zero: whether y begins at 0.
        log_x: whether x is logarithmic if its values span a wide range.
        caption: how to read it.
    """
    thinned = [(line, *thin(line.x, line.y, most)) for line in lines]
    shown = [replace(line, x=x, y=y) for line, x, y in thinned if len(x)]
    if not shown:
        return None
    ys = Scale.of(
        np.concatenate([it.y for it in shown]), _HEIGHT - _BOTTOM, _TOP, log=log, zero=zero
    )
    if log and ys.log and len(ys.ticks()) < 2:
        ys = Scale.of(np.concatenate([it.y for it in shown]), _HEIGHT - _BOTTOM, _TOP)
    widest = max(text_width(tick_text(it), 11) for it in ys.ticks())
    left = 24 + widest
    xs = Scale.of(np.concatenate([it.x for it in shown]), left, _WIDTH - _RIGHT, log=log_x)
    canvas = Canvas(_WIDTH, _HEIGHT, f"{title}: {y_name} by {x_name}")
    _axes(canvas, xs, ys, x_name, y_name)
    for line in shown:
        _line(canvas, xs, ys, line)
    legend = [*dict.fromkeys((it.name, it.style) for it in shown if it.name)]
    data = {"x_name": x_name, "y_name": y_name, "log": ys.log, "zero": zero}
    return Figure(title, canvas.inline(), legend, caption, data | {"series": _series(shown)})


def _axes(canvas: Canvas, xs: Scale, ys: Scale, x_name: str, y_name: str) -> None:
    for value in ys.ticks():
        y = ys(value)
        canvas.line(xs.start, y, xs.stop, y, stroke="var(--rule)")
        canvas.text(xs.start - 6, y, tick_text(value), size=11, fill="var(--soft)", anchor="end")
    for value in xs.ticks():
        x = xs(value)
        canvas.line(x, ys.start, x, ys.start + 4, stroke="var(--soft)")
        canvas.text(x, ys.start + 14, tick_text(value), size=11, fill="var(--soft)")
    canvas.line(xs.start, ys.start, xs.stop, ys.start, stroke="var(--soft)")
    middle = (xs.start + xs.stop) / 2
    canvas.text(middle, _HEIGHT - 10, x_name, size=11, fill="var(--soft)")
    canvas.upright(9, (ys.start + ys.stop) / 2, y_name, size=11, fill="var(--soft)")


def _line(canvas: Canvas, xs: Scale, ys: Scale, line: Line) -> None:
    points = [(xs(x), ys(y)) for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)]
    stroke = colour(line.style)
    if len(points) > 1:
        canvas.curve(points, stroke=stroke, dashes=DASHES[line.style // COLOURS % len(DASHES)])
    if len(points) <= _MARKED:
        for x, y in points:
            canvas.circle(x, y, 2.2, fill=stroke, stroke="none", title=line.title)


def _series(lines: Sequence[Line]) -> list[dict[str, object]]:
    """Return the points of lines for JSON, with eight digits."""
    return [
        {
            "name": line.name,
            "style": line.style,
            "x": [float(f"{it:.8g}") for it in line.x.tolist()],
            "y": [float(f"{it:.8g}") for it in line.y.tolist()],
        }
        for line in lines
    ]
