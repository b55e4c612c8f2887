"""An exchange as text, as a drawing, and as JSON for programs.

=============  ===================================================================================
key            value
=============  ===================================================================================
format         ``"psrt explain exchange 1"``
mode, steps    the mode, and steps per worker; ``workers`` and ``servers`` count them
shards         shards of a server
slow           by worker, the factor by which its steps take longer
step, whole    mean time of a step, and with one shard a server; computing a gradient takes 1
hidden         share of the time of pushes and reads in which their worker computes
bars           in order of their start: ``{"start", "stop", "what"}``; ``what`` is ``forward`` or
               ``backward``, with ``worker`` and ``layer``; ``push`` or ``read``, with ``worker``,
               ``shard``, and ``since`` when it waited for the link; or ``update``, with ``server``
               and ``shard``
lesson         one line for people
=============  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from psrt.units import plural
from psrt.views.explain.exchange import (
    BACKWARD,
    FORWARD,
    PUSH,
    PUSHES,
    READ,
    UPDATE,
    UPDATES,
    Bar,
    Exchange,
    lesson,
    shards_text,
)
from psrt.views.explain.timeline_output import LETTERS
from psrt.views.svg import Canvas, text_width

_COMPUTING = FORWARD, BACKWARD
_FORWARD, _BACKWARD, _QUEUED = "░", "█", "·"
#: What costs what, in a sentence.
MODEL = (
    f"computing a gradient takes 1; the pushes of all workers keep a server's link busy for "
    f"{PUSHES:g}, so do its replies, and their updates the server for {UPDATES:g}"
)


class Row(NamedTuple):
    """One line of the picture."""

    #: Whose it is, where it is the first of several; and what it shows.
    who: str
    label: str
    bars: list[Bar]


def rows_of(exchange: Exchange) -> list[Row]:
    """Return the rows from top to bottom: of each worker three, of each server one."""

    def bars(number: int, *what: str) -> list[Bar]:
        return [bar for bar in exchange.bars if bar.what in what and bar.number == number]

    rows = []
    for worker in range(exchange.workers):
        rows += [
            Row(f"worker {worker}", "computes", bars(worker, *_COMPUTING)),
            Row("", "pushes", bars(worker, PUSH)),
            Row("", "reads", bars(worker, READ)),
        ]
    for server in range(exchange.servers):
        rows.append(Row(f"server {server}", "updates", bars(server, UPDATE)))
    return rows


def described(exchange: Exchange) -> Iterator[str]:
    """Yield a description of the job, in parts of a sentence."""
    config = exchange.config
    yield config.scheme.described(partial(getattr, config))
    yield f"{plural(exchange.workers, 'worker')}, {plural(exchange.servers, 'server')}"
    yield shards_text(exchange)
    yield f"{config.steps} steps each"
    for worker, factor in enumerate(exchange.slow):
        if factor != 1.0:
            yield f"worker {worker} takes {factor:g} × as long"


def as_text(exchange: Exchange, *, width: int = 100) -> str:
    """Return the drawing, its legend and its lesson.

    Args:
        exchange: what to draw.
        width: of the time axis, in characters.
    """
    rows, scale = rows_of(exchange), width / exchange.seconds
    who = max(len(row.who) for row in rows)
    lines = [
        f"{row.who:{who}}  {row.label:8}  {_text_of(row.bars, scale, width)}".rstrip()
        for row in rows
    ]
    axis = " " * width
    for mark in range(int(exchange.seconds) + 1):
        at, text = round(mark * scale), str(mark)
        axis = f"{axis[:at]}{text}{axis[at + len(text) :]}"
    digits = "–".join(LETTERS[shard] for shard in sorted({0, exchange.shards - 1}))
    legend = (
        f"{_FORWARD} forward   {_BACKWARD} backward   {digits} the shard whose bytes are on the "
        f"server's link, or that is updated   {_QUEUED} handed over, but the link is busy"
    )
    parts = [" · ".join(described(exchange)), *lines]
    parts += [f"{'':{who}}  {'':8}  {axis}".rstrip(), "", legend, MODEL, "", lesson(exchange)]
    return "\n".join(parts)


def _text_of(bars: list[Bar], scale: float, width: int) -> str:
    """Return a row: what lasts longest of a character's time; of bars at least one character."""
    cells = [" "] * (width + 1)
    for bar in bars:
        if bar.what in (PUSH, READ):
            for i in range(round(bar.since * scale), round(bar.start * scale)):
                cells[i] = _QUEUED
    for bar in bars:
        first = round(bar.start * scale)
        last = max(first + (bar.what not in _COMPUTING), round(bar.stop * scale))
        for i in range(first, min(last, width)):
            cells[i] = _character(bar)
    return "".join(cells)


def _character(bar: Bar) -> str:
    if bar.what in _COMPUTING:
        return _FORWARD if bar.what == FORWARD else _BACKWARD
    return LETTERS[bar.part]


_MARGIN, _NAMES, _LABELS, _LENGTH, _TOP = 26.0, 78.0, 74.0, 1040.0, 64.0
_TALL, _LOW, _GAP, _BETWEEN = 26.0, 20.0, 5.0, 16.0
_INK, _SOFT, _GRID = "#222222", "#555555", "#E3E6EA"
_FORWARD_FILL, _BACKWARD_FILL = "#C9CED6", "#8A93A0"
#: From the first shard to the last: viridis, without its brightest end.
_RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (233, 216, 60))


def draw(exchange: Exchange) -> Canvas:
    """Return the drawing."""
    rows, title, text = rows_of(exchange), " · ".join(described(exchange)), lesson(exchange)
    height = _TOP + sum(map(_height, rows)) + 122
    left = _MARGIN + _NAMES + _LABELS
    width = max(left + _LENGTH, *(text_width(line, 12) for line in (MODEL, text))) + _MARGIN
    canvas = Canvas(width, height, title)
    canvas.text(_MARGIN, 30, title, size=16, anchor="start", bold=True)
    bottom = _TOP + sum(map(_height, rows))
    _draw_axis(canvas, exchange, bottom)
    y = _TOP
    for row in rows:
        y += _BETWEEN if row.who else 0.0
        middle = y + _bar_height(row) / 2
        canvas.text(_MARGIN, middle, row.who, anchor="start", bold=True, fill=_INK)
        canvas.text(_MARGIN + _NAMES, middle, row.label, anchor="start", size=11, fill=_SOFT)
        for bar in row.bars:
            _draw_queue(canvas, exchange, bar, middle)
        for bar in row.bars:
            _draw_bar(canvas, exchange, bar, y, _bar_height(row))
        y += _bar_height(row) + _GAP
    _legend(canvas, exchange, bottom + 48)
    canvas.text(_MARGIN, bottom + 76, MODEL, anchor="start", size=11, fill=_SOFT)
    canvas.text(_MARGIN, bottom + 100, text, anchor="start", bold=True, fill=_INK)
    return canvas


def _bar_height(row: Row) -> float:
    return _TALL if row.label == "computes" else _LOW


def _height(row: Row) -> float:
    return _bar_height(row) + _GAP + (_BETWEEN if row.who else 0.0)


def _x(exchange: Exchange, time: float) -> float:
    return _MARGIN + _NAMES + _LABELS + _LENGTH * time / exchange.seconds


def _draw_axis(canvas: Canvas, exchange: Exchange, bottom: float) -> None:
    apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, 10**9) if a * 25 >= exchange.seconds)
    for mark in range(0, int(exchange.seconds) + 1, apart):
        x = _x(exchange, mark)
        canvas.line(x, _TOP, x, bottom + 4, stroke=_GRID)
        canvas.text(x, bottom + 14, str(mark), size=10, fill=_SOFT)
    canvas.text(_MARGIN, bottom + 14, "gradients", size=10, anchor="start", fill=_SOFT)


def _draw_queue(canvas: Canvas, exchange: Exchange, bar: Bar, middle: float) -> None:
    """Draw a thin line for what waits until the link is free."""
    x, end = _x(exchange, bar.since), _x(exchange, bar.start)
    if bar.what in (PUSH, READ) and end - x > 1.0:
        canvas.line(x, middle, end, middle, stroke="#B0B6BF", width=1.5)


def _draw_bar(canvas: Canvas, exchange: Exchange, bar: Bar, y: float, height: float) -> None:
    x, end = _x(exchange, bar.start), _x(exchange, bar.stop)
    if bar.what in _COMPUTING:
        fill = _FORWARD_FILL if bar.what == FORWARD else _BACKWARD_FILL
        canvas.rect(x, y, end - x, height, fill=fill, stroke="white", line=0.8)
        return
    red, green, blue = _colour(exchange, bar.part)
    fill = f"#{red:02X}{green:02X}{blue:02X}"
    canvas.rect(x, y, max(end - x, 1.5), height, fill=fill, stroke="white", line=0.6)
    size = 10 if end - x >= 14 else 8
    if end - x >= text_width(LETTERS[bar.part], size) + 1:
        bright = 0.3 * red + 0.59 * green + 0.11 * blue > 140
        ink = _INK if bright else "white"
        canvas.text((x + end) / 2, y + height / 2, LETTERS[bar.part], size=size, fill=ink)


def _colour(exchange: Exchange, shard: int) -> tuple[int, int, int]:
    """Return red, green and blue of a shard, each up to 255."""
    shards = exchange.shards
    at = shard / max(1, shards - 1) * (len(_RAMP) - 1)
    low = min(int(at), len(_RAMP) - 2)
    red, green, blue = (
        round(a + (b - a) * (at - low)) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True)
    )
    return red, green, blue


def _legend(canvas: Canvas, exchange: Exchange, y: float) -> None:
    x = _MARGIN
    for fill, text in (
        (_FORWARD_FILL, "forward, layer by layer"),
        (_BACKWARD_FILL, "backward, the last layer first"),
    ):
        canvas.rect(x, y - 8, 24, 16, fill=fill, stroke="white", line=0.8)
        x = _entry(canvas, x + 31, y, text)
    for shard in sorted({0, exchange.shards - 1}):
        colour = "#{:02X}{:02X}{:02X}".format(*_colour(exchange, shard))
        canvas.rect(x, y - 8, 24, 16, fill=colour)
        name = "the only shard" if exchange.shards == 1 else f"shard {LETTERS[shard]}"
        where = {0: " (first layers)", exchange.shards - 1: " (last layers)"}
        x = _entry(canvas, x + 31, y, name + (where[shard] if exchange.shards > 1 else ""))
    canvas.line(x, y, x + 24, y, stroke="#B0B6BF", width=1.5)
    _entry(canvas, x + 31, y, "handed over, but the link is busy")


def _entry(canvas: Canvas, x: float, y: float, text: str) -> float:
    """Write an entry of the legend and return the position of the next one."""
    canvas.text(x, y, text, size=11, anchor="start", fill=_SOFT)
    return x + text_width(text, 11) + 22


FORMAT = "psrt explain exchange 1"


def as_document(exchange: Exchange) -> dict[str, Any]:
    """Return the document as objects for ``json.dumps``."""
    config = exchange.config
    return {
        "format": FORMAT,
        "mode": config.mode,
        "workers": exchange.workers,
        "servers": exchange.servers,
        "shards": config.shards_per_server,
        "steps": config.steps,
        "slow": list(exchange.slow),
        "step": exchange.step,
        "whole": exchange.whole,
        "hidden": exchange.hidden(),
        "bars": [_document_of(bar) for bar in exchange.bars],
        "lesson": lesson(exchange),
    }


def _document_of(bar: Bar) -> dict[str, Any]:
    found: dict[str, Any] = {"start": bar.start, "stop": bar.stop, "what": bar.what}
    found["server" if bar.what == UPDATE else "worker"] = bar.number
    found["layer" if bar.what in _COMPUTING else "shard"] = bar.part
    if bar.what in (PUSH, READ):
        found["since"] = bar.since
    return found
