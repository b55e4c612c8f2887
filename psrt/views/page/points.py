"""A chart of points, each with an interval, and with its name where there is room."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from psrt.views.page.lines import BOTTOM, HEIGHT, RIGHT, TOP, WIDTH, axes, colour, left_of
from psrt.views.page.parts import Figure
from psrt.views.page.scale import Scale
from psrt.views.svg import Canvas, text_width

#: Radius of a point, size of its name, and room between points and axes, in pixels.
_RADIUS, _SIZE, _ROOM = 3.5, 10, 12


@dataclass(frozen=True, slots=True)
class Point:
    """One point."""

    name: str
    x: float
    y: float
    #: The interval of y; both ends are y if it is known exactly.
    low: float
    high: float
    #: Its colour, from 0.
    style: int = 0
    #: What it is, which browsers show under the cursor.
    title: str = ""


def point_chart(
    title: str,
    x_name: str,
    y_name: str,
    points: Sequence[Point],
    *,
    legend: Sequence[tuple[str, int]] = (),
    zero: bool = False,
    caption: str = "",
) -> Figure | None:
    """Return a chart; None if there is no point to show.

    Args:
        title: of the chart.
        x_name: with its unit.
        y_name: with its unit.
        points: the most important first: it is named where two names would overlap.
        legend: name and colour of each kind of point.
        zero: whether x begins at 0; otherwise it is logarithmic if its values span a wide range.
        caption: how to read it.
    """
    shown = [it for it in points if all(map(math.isfinite, (it.x, it.low, it.y, it.high)))]
    if not shown:
        return None
    ends = [end for it in shown for end in (it.low, it.high)]
    ys = Scale.of(ends, HEIGHT - BOTTOM - _ROOM, TOP + _ROOM, log=True)
    left = left_of(ys) + _ROOM
    xs = Scale.of([it.x for it in shown], left, WIDTH - RIGHT - _ROOM, log=True, zero=zero)
    canvas = Canvas(WIDTH, HEIGHT, f"{title}: {y_name} by {x_name}")
    axes(canvas, xs, ys, x_name, y_name, room=_ROOM)
    for it in reversed(shown):  # the first is on top
        x, fill = xs(it.x), colour(it.style)
        canvas.line(x, ys(it.low), x, ys(it.high), stroke=fill)
        canvas.circle(x, ys(it.y), _RADIUS, fill=fill, stroke="var(--ground)", title=it.title)
    # Middle, half the width and half the height of each.
    taken = [(xs(it.x), ys(it.y), _RADIUS, _RADIUS) for it in shown]
    for it in shown:
        _name(canvas, it.name, xs(it.x), ys(it.y), left - _ROOM, taken)
    return Figure(title, canvas.inline(), legend, caption)


def _name(
    canvas: Canvas, name: str, x: float, y: float, left: float,
    taken: list[tuple[float, float, float, float]],
) -> None:  # fmt: skip
    """Write a name beside its point, where it covers nothing that is taken; or nowhere."""
    wide, high, gap = text_width(name, _SIZE) / 2 + 1, _SIZE / 2, _RADIUS + 2
    for right, down in ((gap + wide, 0), (-gap - wide, 0), (0, -gap - high), (0, gap + high)):
        u, v = x + right, y + down
        apart = (abs(u - a) >= wide + w or abs(v - b) >= high + h for a, b, w, h in taken)
        if left <= u - wide and u + wide <= WIDTH and all(apart):
            canvas.text(u, v, name, size=_SIZE, fill="var(--ink)")
            taken.append((u, v, wide, high))
            return
