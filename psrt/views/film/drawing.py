"""A film of lanes as SVG: a row a lane, time runs to the right, and below it what is said of it."""

from __future__ import annotations

from textwrap import wrap

from psrt.views.film.film import Bar, Film, Lanes
from psrt.views.svg import INK, RULE, SOFT, Canvas, legend_entry, legend_width, text_width, tint

_MARGIN, _TOP, _LINE = 26.0, 64.0, 20.0
#: Height of a lane on which a rank computes, and of others; between lanes, and between ranks.
_TALL, _LOW, _GAP, _BETWEEN = 28.0, 18.0, 5.0, 11.0
#: Width of all of the time at least, and of a unit where each is told apart.
_LENGTH, _UNIT = 1000.0, 24.0
#: A bar that is lower than this is a line.
_THIN = 0.1


class _Chart:
    """Places everything."""

    def __init__(self, film: Film, scene: Lanes) -> None:
        self._film, self._scene = film, scene
        self._lanes = scene.busy
        self._what = _MARGIN + max(text_width(it.name, 12) for _, it in self._lanes) * 1.1 + 12
        whats = max(text_width(it.what, 11) for _, it in self._lanes)
        self._left = self._what + (whats + 12 if whats else 0.0)
        unit = 0.0 if scene.across else _UNIT
        self._length = max(_LENGTH, unit * scene.over, text_width(film.heading, 16) - self._left)
        self._tops = self._placed()
        last, _ = self._lanes[-1]
        self._bottom = self._tops[last] + self._height(last)
        width = self._left + self._length + _MARGIN
        columns = int((width - 2 * _MARGIN - 90) / text_width("x", 12))
        self._said = [
            (name if i == 0 else "", line)
            for name, text in [*(("", it) for it in film.reading), *film.facts]
            for i, line in enumerate(wrap(text, columns) or [""])
        ]
        self._lesson = wrap(film.lesson, columns)
        self._legend = self._in_rows(width)
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
            if not scene.across:  # where it does nothing it is idle
                top, height = self._tops[i], self._height(i)
                canvas.rect(self._left, top, self._x(scene.over) - self._left, height, fill=RULE)
        for it in scene.bars:
            if it.since is not None and self._x(it.start) - self._x(it.since) > 1:
                y = self._tops[it.lane] + self._height(it.lane) / 2
                canvas.line(self._x(it.since), y, self._x(it.start), y, stroke="#B0B6BF", width=1.5)
        for it in scene.bars:
            self._bar(it)
        self._words()
        return canvas

    def _in_rows(self, width: float) -> list[list[tuple[str, int, float]]]:
        """Return the legend in as many rows as it takes."""
        rows: list[list[tuple[str, int, float]]] = [[]]
        room = width - 2 * _MARGIN
        for it in self._film.legend:
            needed = legend_width(it[0])
            if rows[-1] and needed > room:
                rows.append([])
                room = width - 2 * _MARGIN
            rows[-1].append(it)
            room -= needed
        return rows

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
        return self._left + self._length * time / self._scene.over

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
        apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, 10**9) if a * most >= scene.over)
        for mark in range(0, int(scene.over + 1e-9) + 1, apart):
            x = self._x(mark)
            self.canvas.line(x, _TOP - 6, x, self._bottom + 4, stroke=RULE)
            self.canvas.text(x, y, str(mark), size=10, fill=SOFT)
        self.canvas.text(_MARGIN, y, scene.unit, size=10, anchor="start", fill=SOFT)

    def _words(self) -> None:
        """Write the legend, how to read it, the facts and the lesson."""
        y = self._bottom + 40
        for row in self._legend:
            x = _MARGIN
            for name, style, strength in row:
                x = legend_entry(self.canvas, x, y, name, tint(style, strength))
            y += _LINE
        y += 6
        for name, text in self._said:
            self.canvas.text(_MARGIN, y, name, anchor="start", fill=SOFT)
            self.canvas.text(
                _MARGIN + 90 * bool(self._film.facts), y, text, anchor="start", fill=INK
            )
            y += _LINE
        for text in self._lesson:
            self.canvas.text(_MARGIN, y, text, anchor="start", bold=True, fill=INK)
            y += _LINE


def draw_lanes(film: Film) -> Canvas:
    """Return the drawing of a film of lanes."""
    assert isinstance(film.scene, Lanes), "there are lanes"
    return _Chart(film, film.scene).draw()
