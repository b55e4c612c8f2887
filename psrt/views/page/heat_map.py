"""A table as shades of one colour: the darker, the more. Its numbers are written where they fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from psrt.views.page.parts import Figure
from psrt.views.page.thin import Floats
from psrt.views.svg import Canvas, text_width

#: Width of the drawing, height of a row, and room around the cells, in pixels.
_WIDTH, _ROW, _TOP, _BOTTOM = 480, 18, 4, 40
#: Least height of all rows: the name of the row axis stands next to them.
_LEAST = 84
#: Shades.
_LEVELS = 12
#: Columns up to which numbers are written into cells.
_WRITTEN = 9


def heat_map(
    title: str,
    values: Floats,
    rows: Sequence[str],
    columns: Sequence[str],
    row_name: str,
    column_name: str,
    text_of: Callable[[float], str],
    *,
    caption: str = "",
) -> Figure | None:
    """Return a chart; None if there is nothing to show.

    Args:
        title: title of the chart.
        values: (r, c), none negative; nan for no data.
        rows: names of the rows.
        columns: names of the columns; some are left out if they do not fit.
        row_name: what a row is.
        column_name: what a column is.
        text_of: formats a value.
        caption: how to read it.
    """
    if not values.size or not np.isfinite(values).any():
        return None
    count, across = values.shape
    row = max(_ROW, _LEAST / count)
    height = _TOP + row * count + _BOTTOM
    canvas = Canvas(_WIDTH, height, f"{title}: {row_name} by {column_name}")
    left = 22 + max(text_width(name, 11) for name in rows)
    width = (_WIDTH - left - 6) / across
    _cells(canvas, values, left, width, row)
    _numbers(canvas, values, left, width, row, text_of)
    for i, name in enumerate(rows):
        canvas.text(
            left - 5, _TOP + row * (i + 0.5), name, size=11, fill="var(--soft)", anchor="end"
        )
    _column_names(canvas, columns, left, width, _TOP + row * count + 9)
    canvas.text(left + width * across / 2, height - 9, column_name, size=11, fill="var(--soft)")
    canvas.upright(8, _TOP + row * count / 2, row_name, size=11, fill="var(--soft)")
    darkest = f"{caption} The darkest is {text_of(float(np.nanmax(values)))}."
    if np.isnan(values).any():
        darkest += " Grey: no data."
    return Figure(title, canvas.inline(), (), darkest.strip())


def grouped(count: int, most: int) -> list[tuple[int, int]]:
    """Return [start, stop) of the groups into which a number of things is divided.

    >>> grouped(3, 8), grouped(10, 4)
    ([(0, 1), (1, 2), (2, 3)], [(0, 3), (3, 6), (6, 9), (9, 10)])
    """
    size = max(1, -(-count // most))
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def group_names(groups: Sequence[tuple[int, int]]) -> list[str]:
    """Return what groups of numbered things are called.

    >>> group_names([(0, 1), (4, 8)])
    ['0', '4–7']
    """
    return [f"{start}" if stop == start + 1 else f"{start}–{stop - 1}" for start, stop in groups]


def _cells(canvas: Canvas, values: Floats, left: float, width: float, row: float) -> None:
    largest = float(np.nanmax(values)) or 1.0
    known = np.isfinite(values) & (values > 0)
    share = np.where(known, values, 0.0) / largest
    level = np.where(known, np.clip(np.ceil(share * _LEVELS), 1, _LEVELS), 0).astype(int)
    canvas.rect(
        left, _TOP, width * values.shape[1], row * values.shape[0], fill="var(--panel)",
        stroke="var(--rule)",
    )  # fmt: skip
    unknown = [(left + j * width, _TOP + i * row) for i, j in np.argwhere(~np.isfinite(values))]
    if unknown:  # otherwise it would look like 0
        canvas.tiles(unknown, width, row, fill="var(--rule)", opacity=1.0)
    for number in range(1, _LEVELS + 1):
        corners = [(left + j * width, _TOP + i * row) for i, j in np.argwhere(level == number)]
        if corners:
            canvas.tiles(corners, width, row, fill="var(--heat)", opacity=number / _LEVELS)


def _numbers(
    canvas: Canvas,
    values: Floats,
    left: float,
    width: float,
    row: float,
    text_of: Callable[[float], str],
) -> None:
    if values.shape[1] > _WRITTEN:
        return
    largest = float(np.nanmax(values)) or 1.0
    for i, j in np.argwhere(np.isfinite(values)):
        text = text_of(float(values[i, j]))
        if text_width(text, 10) < width:
            fill = "var(--ground)" if values[i, j] > 0.55 * largest else "var(--ink)"
            canvas.text(
                left + (j + 0.5) * width, _TOP + row * (i + 0.5), text, size=10, fill=fill
            )  # fmt: skip


def _column_names(
    canvas: Canvas, names: Sequence[str], left: float, width: float, y: float
) -> None:
    widest = max(text_width(name, 11) for name in names) + 6
    every = max(1, int(-(-widest // width)))
    for j in range(0, len(names), every):
        x = min(left + (j + 0.5) * width, _WIDTH - text_width(names[j], 11) / 2)
        canvas.text(x, y, names[j], size=11, fill="var(--soft)")
