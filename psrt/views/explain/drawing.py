"""A collective as a drawing: ranks are columns, time runs down, rounds are rows of arrows.

Below each arrow that ends at a rank are the rank's new contents, a box per chunk: the stronger the
colour, the more ranks' numbers the box contains; green is the complete sum.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from psrt.errors import ConfigError
from psrt.units import plural, size_text, time_text
from psrt.views.explain.explanation import Explanation
from psrt.views.explain.trace import Content, Contents, Hop
from psrt.views.explain.words import COMPLETE, cell_name, members, numbers, ranges
from psrt.views.svg import Canvas, text_width

#: Most boxes of a rank in a row; more go into further rows.
_ABREAST = 16
#: Most boxes in a row that are wide enough for text.
_WRITTEN = 8
#: Colours of complete sums, and of the edges of unchanged boxes.
_GREEN, _GREY = "#BFE8D0", "#B8BEC6"
#: Red, green and blue of a single rank's numbers, and of an almost complete sum.
_SHADES = ((0xF1, 0x9B), (0xF6, 0xC6), (0xFC, 0xEA))
#: By source, in collectives without sums: Okabe and Ito's colours, light.
_TINTS = ("#CFE4F5", "#FBE3B5", "#C8EBDD", "#F3D6E6", "#D9F0FA", "#F7D3BF", "#E2E2E2", "#FBF7BF")


class Boxes:
    """Size and look of the boxes, the same for all ranks at all times."""

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        self._count = len(explanation.trace.cells.spans)
        #: Boxes in a row, and whether there is text in them.
        self.columns = self._columns()
        self.writes = self._count <= _WRITTEN
        self._rows = max(1, -(-self._count // self.columns))
        labels = [self.label(held) for held in _ever(explanation)] if self.writes else []
        # Bold letters are wider by a ninth.
        widest = 1.12 * max((text_width(text, 11) for text in labels), default=0.0)
        #: Of a box, in pixels.
        self.box_width = max(26.0, widest + 10) if self.writes else 10.0
        self.box_height = 24.0 if self.writes else 13.0 if self._rows == 1 else 10.0
        #: Of a strip, in pixels.
        self.width = self.box_width * self.columns
        self.height = self.box_height * self._rows

    def _columns(self) -> int:
        """Return the number of boxes in a row."""
        size = self._explanation.size
        if self._explanation.schedule.kind == "all-to-all" and self._count == size * size:
            return size  # the vector is a table of blocks: rows are sent, columns are received
        return min(max(self._count, 1), _ABREAST)

    def paint(
        self, canvas: Canvas, middle: float, y: float, held: Contents, changed: Container[int]
    ) -> None:
        """Draw a rank's contents; changed boxes get a firm edge.

        Args:
            canvas: to draw on.
            middle: centre of the strip from the left, in pixels.
            y: upper edge of the strip, in pixels.
            held: the rank's contents, by cell.
            changed: cells that have changed.
        """
        left = middle - self.width / 2
        canvas.rect(left, y, self.width, self.height, fill="white")
        firm = [i for i, one in enumerate(held) if one is not None and i in changed]
        for i in (*(i for i in range(len(held)) if i not in firm), *firm):  # firm edges on top
            self._box(canvas, left, y, i, held[i], firm=i in firm)

    def number(self, canvas: Canvas, middle: float, y: float) -> None:
        """Write the chunks' numbers above a strip of a single row."""
        cells = self._explanation.trace.cells
        if self._rows > 1 or self._count == 1:
            return
        for i in range(self._count):
            x = middle - self.width / 2 + self.box_width * (i + 0.5)
            canvas.text(x, y - 6, cell_name(i, cells.in_vector), size=7, fill="#888888")

    def fill(self, held: Content | None) -> str:
        """Return the colour of a box."""
        if held is None:
            return "white"
        if not self._explanation.trace.folds:
            return _TINTS[next(members(held.whose)) % len(_TINTS)]
        size, count = self._explanation.size, held.whose.bit_count()
        if count == size:
            return _GREEN
        share = (count - 1) / (size - 1)
        return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in _SHADES)

    def _box(
        self, canvas: Canvas, left: float, y: float, i: int, held: Content | None, *, firm: bool
    ) -> None:
        x = left + self.box_width * (i % self.columns)
        y += self.box_height * (i // self.columns)
        canvas.rect(
            x, y, self.box_width, self.box_height, fill=self.fill(held),
            stroke="#444444" if firm else _GREY, line=1.3 if firm else 0.7, dashed=held is None,
        )  # fmt: skip
        if self.writes and held is not None:
            canvas.text(
                x + self.box_width / 2, y + self.box_height / 2, self.label(held),
                size=11, fill="#111111" if firm else "#777777", bold=firm,
            )  # fmt: skip

    def label(self, held: Content) -> str:
        """Return the text of a box: its numbers, or the ranks that the sum contains."""
        explanation = self._explanation
        if explanation.numbered:
            text = numbers(held.numbers, most=4)
            return text if len(text) <= 16 else f"{len(held.numbers)} numbers"
        ranks = list(members(held.whose))
        if explanation.trace.folds and len(ranks) == explanation.size > 1:
            return COMPLETE
        if len(ranks) > 3 and ranks[-1] - ranks[0] == len(ranks) - 1:
            return f"{explanation.names[ranks[0]]}…{explanation.names[ranks[-1]]}"
        joined = "".join(explanation.names[rank] for rank in ranks)
        return joined if len(joined) <= 4 else f"{len(ranks)} of {explanation.size}"


def _ever(explanation: Explanation) -> set[Content]:
    """Return the contents of every rank at every time."""
    trace = explanation.trace
    found = {held for rank in trace.start for held in rank if held is not None}
    found |= {held for hop in trace.hops for held in hop.after if held is not None}
    return found | {
        held for rank in range(explanation.size) for _, held in explanation.result(rank)
    }


#: Most columns that are readable.
MOST_RANKS = 32
#: Most boxes that a viewer opens in reasonable time.
_MOST_BOXES = 200_000
#: Most local steps of a rank shown in one round; further ones are only counted.
_MOST_LOCAL = 8

_MARGIN, _GUTTER, _GAP, _TOP, _LINE, _BOTTOM = 26.0, 74.0, 34.0, 132.0, 14.0, 54.0
_COMBINE, _COPY, _LOCAL = "#0072B2", "#00805E", "#8A5A00"
_SOFT, _PALE = "#555555", "#E3E6EA"


def draw(explanation: Explanation) -> Canvas:
    """Return the drawing.

    Raises:
        ConfigError: if there are too many ranks, rounds or chunks.
    """
    if explanation.size > MOST_RANKS:
        raise ConfigError(f"svg draws at most {MOST_RANKS} ranks, got {explanation.size}")
    boxes = (explanation.trace.rounds + 2) * explanation.size * len(explanation.trace.cells.spans)
    if boxes > _MOST_BOXES:
        raise ConfigError(f"svg would have {boxes} boxes, give fewer ranks or fewer --bytes")
    return _Drawing(explanation).canvas


@dataclass(frozen=True, slots=True)
class _Row:
    """The events between two rows of strips: messages, or steps within ranks."""

    label: str
    hops: tuple[Hop, ...]
    #: Room for arrows or for lines of text, in pixels.
    height: float


class _Drawing:
    """Places everything, row by row from the top."""

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        self._boxes = boxes = Boxes(explanation)
        name = max(text_width(name, 13) for name in explanation.names)
        self._pitch = max(boxes.width, name + 12, 60.0) + _GAP
        rows = _rows(explanation)
        # A last row shows the result where that is only a part of what a rank holds, or is still
        # to be divided.
        cells = len(explanation.trace.cells.spans)
        sifts = any(len(explanation.trace.owed(rank)) < cells for rank in range(explanation.size))
        sifts |= explanation.numbered and explanation.divides
        height = _TOP + boxes.height + sum(row.height + boxes.height for row in rows) + _BOTTOM
        height += (30 + boxes.height) * sifts
        title, facts = _title(explanation), _facts(explanation)
        width = max(_GUTTER + self._pitch * explanation.size, text_width(facts, 12))
        self.canvas = Canvas(2 * _MARGIN + width, height, title)
        self._state = [list(held) for held in explanation.trace.start]
        self._heading(title, facts, height - _BOTTOM - boxes.height)
        self._start()
        y = _TOP + boxes.height
        for row in rows:
            self._row(row, y)
            y += row.height + boxes.height
        if sifts:
            self._result(y + 30)
        self._legend(height - 24)

    def _x(self, rank: int) -> float:
        """Return the centre of a rank's column; columns are in the order of the ring."""
        order = self._explanation.order
        place = rank if order is None else order.index(rank)
        return _MARGIN + _GUTTER + self._pitch * (place + 0.5)

    def _label(self, y: float, text: str) -> None:
        self.canvas.text(_MARGIN, y, text, anchor="start", fill=_SOFT)

    def _heading(self, title: str, facts: str, bottom: float) -> None:
        """Write the title, and draw the ranks with their lifelines."""
        self.canvas.text(_MARGIN, 30, title, size=18, anchor="start", bold=True)
        self._label(54, facts)
        for rank, name in enumerate(self._explanation.names):
            x = self._x(rank)
            self.canvas.line(x, _TOP - 23, x, bottom, stroke=_PALE, width=2)
            if len(name) <= 2:
                fill = "#FFF2CC" if rank == self._explanation.root else "#F2F4F7"
                self.canvas.circle(x, 94, 15, fill=fill, stroke=_SOFT)
            self.canvas.text(x, 94, name, size=13, bold=True)

    def _start(self) -> None:
        self._label(_TOP + self._boxes.height / 2, "start")
        for rank, held in enumerate(self._state):
            self._boxes.paint(self.canvas, self._x(rank), _TOP, held, range(len(held)))
            self._boxes.number(self.canvas, self._x(rank), _TOP)

    def _row(self, row: _Row, y: float) -> None:
        """Draw the events, and below them the boxes of the ranks that received something."""
        self._label(y + row.height / 2, row.label)
        changed: dict[int, set[int]] = {}
        for hop in row.hops:
            if not hop.local:
                self._arrow(hop, y, row.height)
            for cell, held in zip(hop.receive, hop.after, strict=True):
                self._state[hop.target][cell] = held
            changed.setdefault(hop.target, set()).update(hop.receive)
        if row.hops[0].local:
            for rank in changed:
                self._local([hop for hop in row.hops if hop.target == rank], y)
        for rank, cells in changed.items():
            self._boxes.paint(self.canvas, self._x(rank), y + row.height, self._state[rank], cells)

    def _arrow(self, hop: Hop, y: float, height: float) -> None:
        colour = _COMBINE if hop.combine else _COPY
        x, to_x = self._x(hop.source), self._x(hop.target)
        side = 7 if to_x > x else -7
        x, to_x = x + side, to_x - side
        top, bottom = y + 9, y + height - 3  # a tag at the start clears the boxes above
        self.canvas.arrow(x, top, to_x, bottom, stroke=colour)
        # Near the sender, where lines that cross have not met yet.
        share = min(0.36, 0.36 * self._pitch / abs(to_x - x))
        text = self._what(hop)
        if text:
            self.canvas.tag(x + share * (to_x - x), top + share * (bottom - top), text, fill=colour)

    def _what(self, hop: Hop) -> str:
        """Return the chunks of a message as text short enough to fit between two columns."""
        cells = self._explanation.trace.cells
        if len(cells.spans) == 1:
            return ""
        text = ranges(hop.send, cells.in_vector)
        return text if text_width(text, 10) < self._pitch * 0.7 else f"{len(hop.send)} chunks"

    def _local(self, hops: Sequence[Hop], y: float) -> None:
        """Write the steps of a rank within its own memory, a line each."""
        vector = self._explanation.trace.cells.in_vector
        lines = [
            f"{ranges(hop.receive, vector)} {'+=' if hop.combine else '='} "
            f"{ranges(hop.send, vector)}"
            for hop in hops
        ]
        if len(lines) > _MOST_LOCAL:
            lines = [*lines[: _MOST_LOCAL - 1], f"… {len(lines) - _MOST_LOCAL + 1} more"]
        x = self._x(hops[0].target)
        for i, line in enumerate(lines):
            self.canvas.tag(x, y + _LINE * (i + 1), line, fill=_LOCAL)

    def _result(self, y: float) -> None:
        """Draw each rank's result, without scratch contents."""
        self._label(y + self._boxes.height / 2, "result")
        for rank in range(self._explanation.size):
            found: Contents = [None] * len(self._explanation.trace.cells.spans)
            for cell, held in self._explanation.result(rank):
                found[cell] = held
            self._boxes.paint(self.canvas, self._x(rank), y, found, range(len(found)))

    def _legend(self, y: float) -> None:
        trace, x = self._explanation.trace, _MARGIN
        messages = [hop for hop in trace.hops if not hop.local]
        for colour, text, combine in (
            (_COMBINE, "is combined", True),
            (_COPY, "is copied", False),
        ):
            if any(hop.combine == combine for hop in messages):
                self.canvas.arrow(x, y, x + 30, y, stroke=colour)
                x = self._entry(x + 38, y, text)
        if trace.folds and self._explanation.size > 1:
            everyone = Content((1 << self._explanation.size) - 1)
            for held, text in (
                (Content(1), "one rank's"),
                (everyone, f"{COMPLETE}: the {self._explanation.fold_name} of all"),
            ):
                self.canvas.rect(x, y - 7, 14, 14, fill=self._boxes.fill(held), stroke="#B8BEC6")
                x = self._entry(x + 22, y, text)

    def _entry(self, x: float, y: float, text: str) -> float:
        """Write an entry of the legend and return the position of the next one."""
        self.canvas.text(x, y, text, size=11, anchor="start", fill=_SOFT)
        return x + text_width(text, 11) + 18


def _rows(explanation: Explanation) -> list[_Row]:
    """Return the rows from top to bottom: the messages of a round, then the local steps."""
    band = 50.0 if explanation.size <= 4 else 62.0 if explanation.size <= 8 else 76.0
    rows = []
    for number, hops in explanation.trace.by_round():
        messages = tuple(hop for hop in hops if not hop.local)
        local = tuple(hop for hop in hops if hop.local)
        if messages:
            rows.append(_Row(f"round {number}", messages, band))
        if local:
            most = max(sum(hop.target == rank for hop in local) for rank in range(explanation.size))
            rows.append(_Row("locally", local, _LINE * (min(most, _MOST_LOCAL) + 1)))
    return rows


def _title(explanation: Explanation) -> str:
    kind = explanation.schedule.kind
    of = "" if kind == explanation.schedule.name else f" ({kind}, {explanation.op})"
    return f"{explanation.schedule.name} of {plural(explanation.size, 'rank')}{of}"


def _facts(explanation: Explanation) -> str:
    """Return the line below the title."""
    totals, price = explanation.totals, explanation.totals.price
    facts = [
        f"{price.rounds} round{'' if price.rounds == 1 else 's'}",
        f"{price.messages} messages on {price.wires} wires",
        f"{size_text(totals.moved)} through the busiest rank",
        f"{time_text(price.seconds)} predicted, {totals.ratio:.2f} × the bound",
    ]
    return " · ".join(facts)
