"""A film as SVG: lanes with time to the right, or ranks side by side with time downwards.

Below each arrow that ends at a rank is what it then holds, with a solid edge where that is new.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from textwrap import wrap

from psrt.core.errors import ConfigError
from psrt.views.film.film import EMPTY, Bar, Cell, Film, Frame, Lanes, Message, Plane
from psrt.views.svg import INK, RULE, SOFT, Canvas, legend_entry, legend_width, text_width, tint

_MARGIN, _TOP, _LINE = 26.0, 64.0, 20.0
#: Height of a lane on which a rank computes, and of others; between lanes, and between ranks.
_TALL, _LOW, _GAP, _BETWEEN = 28.0, 18.0, 5.0, 11.0
#: Least width of the whole time, and width of a unit if each is shown.
_LENGTH, _UNIT = 1000.0, 24.0
#: A bar that is lower than this is a line.
_THIN = 0.1


_Legend = list[list[tuple[str, int, float]]]


def _in_rows(film: Film, width: float) -> _Legend:
    """Return a legend in as many rows as it takes."""
    rows: _Legend = [[]]
    room = width
    for it in film.legend:
        needed = legend_width(it[0])
        if rows[-1] and needed > room:
            rows.append([])
            room = width
        rows[-1].append(it)
        room -= needed
    return rows


def _draw_legend(canvas: Canvas, rows: _Legend, y: float) -> float:
    """Draw a legend from ``y`` on, and return what comes below."""
    for row in rows:
        x = _MARGIN
        for name, style, strength in row:
            x = legend_entry(canvas, x, y, name, tint(style, strength))
        y += _LINE
    return y


class _Chart:
    """Places lanes, and all around them."""

    def __init__(self, film: Film, scene: Lanes) -> None:
        self._film, self._scene = film, scene
        self._lanes, self._over = scene.busy, scene.over
        self._what = _MARGIN + max(text_width(it.name, 12) for _, it in self._lanes) * 1.1 + 12
        whats = max(text_width(it.what, 11) for _, it in self._lanes)
        self._left = self._what + (whats + 12 if whats else 0.0)
        unit = 0.0 if scene.across else _UNIT
        self._length = max(_LENGTH, unit * self._over, text_width(film.heading, 16) - self._left)
        self._tops = self._placed()
        last, _ = self._lanes[-1]
        self._bottom = self._tops[last] + self._height(last)
        width = self._left + self._length + _MARGIN
        names = [text_width(name, 12) + 12 for name, _ in film.facts]
        #: Pixels of the names of facts.
        self._room = max([90.0, *names]) if names else 0.0
        columns = int((width - 2 * _MARGIN - max(self._room, 90.0)) / text_width("x", 12))
        self._said = [
            (name if i == 0 else "", line)
            for name, text in [*(("", it) for it in film.reading), *film.facts]
            for i, line in enumerate(wrap(text, columns) or [""])
        ]
        self._lesson = wrap(film.lesson, columns)
        self._legend = _in_rows(film, width - 2 * _MARGIN)
        lines = len(self._legend) + len(self._said) + len(self._lesson)
        self.canvas = Canvas(width, self._bottom + 62 + _LINE * lines, film.heading)

    def draw(self) -> Canvas:
        """Draw everything, from the top down."""
        canvas, scene = self.canvas, self._scene
        canvas.text(_MARGIN, 30, self._film.heading, size=16, anchor="start", bold=True, fill=INK)
        self._axis()
        before = ""
        for i, lane in self._lanes:
            middle = self._tops[i] + self._height(i) / 2
            if lane.name != before:
                canvas.text(_MARGIN, middle, lane.name, anchor="start", bold=True, fill=INK)
            before = lane.name
            canvas.text(self._what, middle, lane.what, anchor="start", size=11, fill=SOFT)
            if not scene.across:  # gaps are idle time
                top, height = self._tops[i], self._height(i)
                canvas.rect(self._left, top, self._x(self._over) - self._left, height, fill=RULE)
        for it in scene.bars:
            if it.since is not None and self._x(it.start) - self._x(it.since) > 1:
                y = self._tops[it.lane] + self._height(it.lane) / 2
                canvas.line(self._x(it.since), y, self._x(it.start), y, stroke="#B0B6BF", width=1.5)
        for it in scene.bars:
            self._bar(it)
        self._words()
        return canvas

    def _placed(self) -> dict[int, float]:
        """Return the top of each lane."""
        tops, y, before = dict[int, float](), _TOP - _BETWEEN, ""
        for i, lane in self._lanes:
            y += _BETWEEN if lane.name != before else 0.0
            tops[i] = y
            y, before = y + self._height(i) + _GAP, lane.name
        return tops

    def _height(self, lane: int) -> float:
        return _LOW if self._scene.lanes[lane].what not in ("", "computes") else _TALL

    def _x(self, time: float) -> float:
        return self._left + self._length * time / self._over

    def _bar(self, it: Bar) -> None:
        x, end = self._x(it.start), self._x(it.stop)
        top, height = self._tops[it.lane], self._height(it.lane)
        middle, style, strength, share = top + height / 2, *it.look[:3]
        if share < _THIN:
            self.canvas.line(x, middle, end, middle, stroke=tint(style, strength), width=1.5)
            return
        thin = share < 0.5
        self.canvas.rect(
            x, middle - height * share / 2, max(end - x, 1.2), height * share,
            fill=tint(style, strength), stroke="none" if thin else "white", radius=0 if thin else 2,
        )  # fmt: skip
        size = 10 if end - x >= 14 else 8
        if it.text and end - x > text_width(it.text, size) + (10 if thin else 1):
            write = self.canvas.tag if thin else self.canvas.text
            write((x + end) / 2, middle, it.text, size=size, fill=tint(style) if thin else INK)

    def _axis(self) -> None:
        scene, y = self._scene, self._bottom + 12
        most = max(25.0, self._length / 60)
        apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, 10**9) if a * most >= self._over)
        for mark in range(0, int(self._over + 1e-9) + 1, apart):
            x = self._x(mark)
            self.canvas.line(x, _TOP - 6, x, self._bottom + 4, stroke=RULE)
            self.canvas.text(x, y, str(mark), size=10, fill=SOFT)
        self.canvas.text(_MARGIN, y, scene.unit, size=10, anchor="start", fill=SOFT)

    def _words(self) -> None:
        """Write the legend, how to read it, the facts and the lesson."""
        y = self._bottom + 40
        y = _draw_legend(self.canvas, self._legend, y) + 6
        for name, text in self._said:
            self.canvas.text(_MARGIN, y, name, anchor="start", fill=SOFT)
            self.canvas.text(_MARGIN + self._room, y, text, anchor="start", fill=INK)
            y += _LINE
        for text in self._lesson:
            self.canvas.text(_MARGIN, y, text, anchor="start", bold=True, fill=INK)
            y += _LINE


#: Boxes that a viewer opens in reasonable time.
_MOST_BOXES = 200_000
#: Most ranks → height of a row of arrows.
_BANDS = ((4, 50.0), (8, 62.0), (math.inf, 76.0))
#: Most local steps of a rank shown in one round; further ones are only counted.
_MOST_LOCAL = 8
_GUTTER, _BETWEEN_RANKS, _HEAD, _LOCAL_LINE = 92.0, 34.0, 132.0, 14.0
_LOCAL_INK = "#8A5A00"


class _Rounds:
    """Places ranks side by side, and frames below one another."""

    def __init__(self, film: Film, scene: Plane) -> None:
        self._film, self._scene = film, scene
        order = scene.order or range(len(film.names))
        columns = max(min(len(held), scene.strip.columns) for held in film.start)
        self._wide = scene.strip.width * columns
        self._high = scene.strip.height * -(-len(film.start[0]) // scene.strip.columns)
        name = max(text_width(name, 13) for name in film.names)
        self._pitch = max(self._wide, name + 12, 60.0) + _BETWEEN_RANKS
        left = _MARGIN + _GUTTER + self._pitch / 2
        #: Of each rank's column, its centre.
        self._x = {rank: left + self._pitch * place for place, rank in enumerate(order)}
        self._band = next(high for most, high in _BANDS if len(film.names) <= most)
        self._costs = " · ".join(
            f"{it.name} {it.whole}" + (f" ({film.bound} {it.least})" if it.least else "")
            for it in film.costs
        )
        inside = max(
            _GUTTER + self._pitch * len(film.names),
            text_width(self._costs, 12), text_width(film.title, 18),
        )  # fmt: skip
        # A frame that changes and sends nothing gets no row, such as a result that all hold.
        self._rows = [it for it in film.frames[1:] if it.messages or it.changes]
        self._legend = _in_rows(film, inside)
        self._bottom = _HEAD + self._high + sum(self._height(it) + self._high for it in self._rows)
        height = self._bottom + 30 + _LINE * len(self._legend)
        self.canvas = Canvas(2 * _MARGIN + inside, height, film.title)

    def draw(self) -> Canvas:
        """Draw everything, from the top down."""
        canvas, film = self.canvas, self._film
        canvas.text(_MARGIN, 30, film.title, size=18, anchor="start", bold=True)
        self._label(54, self._costs)
        for rank, name in enumerate(film.names):
            x = self._x[rank]
            canvas.line(x, _HEAD - 23, x, self._bottom - self._high, stroke=RULE, width=2)
            if len(name) <= 2:
                canvas.circle(x, 94, 15, fill="#F2F4F7", stroke=SOFT)
            canvas.text(x, 94, name, size=13, bold=True)
        held = [list(cells) for cells in film.start]
        self._label(_HEAD + self._high / 2, film.frames[0].label)
        for rank, cells in enumerate(held):
            self._paint(rank, cells, _HEAD, range(len(cells)))
            self._names(rank)
        y = _HEAD + self._high
        for frame in self._rows:
            y += self._height(frame)
            self._frame(frame, held, y)
            y += self._high
        _draw_legend(canvas, self._legend, self._bottom + 28)
        return canvas

    def _names(self, rank: int) -> None:
        """Write the names of cells above those of the start, where they are one row."""
        names, (width, _, columns) = self._scene.cells, self._scene.strip
        for i, name in enumerate(names if 1 < len(names) <= columns else ()):
            x = self._x[rank] - self._wide / 2 + width * (i + 0.5)
            self.canvas.text(x, _HEAD - 6, name, size=7, fill=SOFT)

    def _label(self, y: float, text: str) -> None:
        self.canvas.text(_MARGIN, y, text, anchor="start", fill=SOFT)

    def _height(self, frame: Frame) -> float:
        """Return the room for a frame's arrows, and for lines of what ranks do by themselves."""
        lines = [len(self._own(frame, rank)) for rank in range(len(self._film.names))]
        sends = any(it.source != it.target for it in frame.messages)
        return self._band * sends + _LOCAL_LINE * (max(lines) + (not sends))

    def _own(self, frame: Frame, rank: int) -> list[str]:
        """Return what a rank does within its own memory, a line each."""
        lines = [it.label for it in frame.messages if it.source == it.target == rank]
        if len(lines) > _MOST_LOCAL:
            lines = [*lines[: _MOST_LOCAL - 1], f"… {len(lines) - _MOST_LOCAL + 1} more"]
        return lines

    def _frame(self, frame: Frame, held: list[list[Cell]], y: float) -> None:
        """Draw the events of a frame above ``y``, and below it what has changed."""
        own = _LOCAL_LINE * max(len(self._own(frame, rank)) for rank in range(len(held)))
        top = y - self._height(frame)
        self._label((top + y) / 2, frame.label)
        for it in frame.messages:
            if it.source != it.target:
                self._arrow(it, top + 9, y - own - 3)
        changed: dict[int, set[int]] = {}
        for rank, at, cell in frame.changes:
            held[rank][at] = cell
            changed.setdefault(rank, set()).add(at)
        for rank, cells in changed.items():
            for i, line in enumerate(reversed(self._own(frame, rank))):
                self.canvas.tag(self._x[rank], y - _LOCAL_LINE * (i + 0.6), line, fill=_LOCAL_INK)
            self._paint(rank, held[rank], y, cells)

    def _arrow(self, it: Message, top: float, bottom: float) -> None:
        x, to_x = self._x[it.source], self._x[it.target]
        side = 7 if to_x > x else -7
        x, to_x = x + side, to_x - side
        self.canvas.arrow(x, top, to_x, bottom, stroke=tint(it.style))
        several = len(self._film.start[0]) > 1
        if several and it.label and text_width(it.label, 10) < self._pitch * 0.8:
            # Near the sender, before lines cross.
            share = min(0.36, 0.36 * self._pitch / abs(to_x - x))
            place = x + share * (to_x - x), top + share * (bottom - top)
            self.canvas.tag(*place, it.label, fill=tint(it.style))

    def _paint(self, rank: int, held: Sequence[Cell], y: float, changed: Collection[int]) -> None:
        """Draw what a rank holds below ``y``; changed cells get a solid edge and are drawn last."""
        left = self._x[rank] - self._wide / 2
        self.canvas.rect(left, y, self._wide, self._high, fill="white")
        firm = [i in changed and it.style != EMPTY for i, it in enumerate(held)]
        for i in sorted(range(len(held)), key=firm.__getitem__):
            self._box(left, y, i, held[i], firm=firm[i])

    def _box(self, left: float, y: float, i: int, cell: Cell, *, firm: bool) -> None:
        width, height, columns = self._scene.strip
        x, y = left + width * (i % columns), y + height * (i // columns)
        empty = cell.style == EMPTY
        self.canvas.rect(
            x, y, width, height, fill="white" if empty else tint(cell.style, cell.strength),
            stroke="#444444" if firm else "#B8BEC6", line=1.3 if firm else 0.7, dashed=empty,
        )  # fmt: skip
        if cell.text:
            self.canvas.text(
                x + width / 2, y + height / 2, cell.text, size=11, bold=firm,
                fill="#111111" if firm else "#777777",
            )  # fmt: skip


def draw(film: Film) -> Canvas:
    """Return the drawing of a film: its lanes, or a row for each frame of what ranks hold.

    Raises:
        ConfigError: if there are too many frames or cells.
    """
    if isinstance(film.scene, Lanes):
        return _Chart(film, film.scene).draw()
    boxes = len(film.frames) * sum(map(len, film.start))
    if boxes > _MOST_BOXES:
        raise ConfigError(f"svg would have {boxes} boxes, give fewer ranks or fewer --bytes")
    return _Rounds(film, film.scene).draw()
