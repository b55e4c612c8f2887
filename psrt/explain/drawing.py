"""A collective as a drawing: ranks are columns, time runs down, rounds are rows of arrows.

Under each arrow that ends at a rank stands what the rank then holds, a box per chunk: the fuller
the colour, the more ranks' numbers are in it; green is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psrt.errors import ConfigError
from psrt.explain.boxes import Boxes
from psrt.explain.names import COMPLETE, ranges
from psrt.explain.story import Holding, Holdings, Hop
from psrt.explain.svg import Canvas, text_width
from psrt.explain.telling import Telling
from psrt.units import size_text, time_text

#: More columns than this are no drawing.
MOST_RANKS = 32
#: More boxes than this are no drawing either.
_MOST_BOXES = 200_000
#: Local steps of a rank in one round that are told; the rest is counted.
_MOST_LOCAL = 8

_MARGIN, _GUTTER, _GAP, _TOP, _LINE, _BOTTOM = 26.0, 74.0, 34.0, 132.0, 14.0, 54.0
_COMBINE, _COPY, _LOCAL = "#0072B2", "#00805E", "#8A5A00"
_SOFT, _PALE = "#555555", "#E3E6EA"


def draw(telling: Telling) -> Canvas:
    """Return the drawing.

    Raises:
        ConfigError: if there are too many ranks, rounds or chunks for one.
    """
    if telling.size > MOST_RANKS:
        raise ConfigError(f"svg draws at most {MOST_RANKS} ranks, got {telling.size}")
    boxes = (telling.story.rounds + 2) * telling.size * len(telling.story.cells.spans)
    if boxes > _MOST_BOXES:
        raise ConfigError(f"svg would have {boxes} boxes, give fewer ranks or fewer --bytes")
    return _Drawing(telling).canvas


@dataclass(frozen=True, slots=True)
class _Row:
    """What happens between two rows of strips: messages, or steps within ranks."""

    label: str
    hops: tuple[Hop, ...]
    #: Room for arrows or for lines of text, in pixels.
    height: float


class _Drawing:
    """Places everything, row by row from the top."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._boxes = boxes = Boxes(telling)
        name = max(text_width(name, 13) for name in telling.names)
        self._pitch = max(boxes.width, name + 12, 60.0) + _GAP
        rows = _rows(telling)
        # Where a rank is owed less than it holds, a last row shows what counts.
        cells = len(telling.story.cells.spans)
        sifts = any(len(telling.story.owed(rank)) < cells for rank in range(telling.size))
        height = _TOP + boxes.height + sum(row.height + boxes.height for row in rows) + _BOTTOM
        height += (30 + boxes.height) * sifts
        title, facts = _title(telling), _facts(telling)
        width = max(_GUTTER + self._pitch * telling.size, text_width(facts, 12))
        self.canvas = Canvas(2 * _MARGIN + width, height, title)
        self._state = [list(held) for held in telling.story.start]
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
        """Return the middle of a rank's column; columns stand in the order of the ring."""
        order = self._telling.order
        place = rank if order is None else order.index(rank)
        return _MARGIN + _GUTTER + self._pitch * (place + 0.5)

    def _label(self, y: float, text: str) -> None:
        self.canvas.text(_MARGIN, y, text, anchor="start", fill=_SOFT)

    def _heading(self, title: str, facts: str, bottom: float) -> None:
        """Write what it is, and draw the ranks with their lifelines."""
        self.canvas.text(_MARGIN, 30, title, size=18, anchor="start", bold=True)
        self._label(54, facts)
        for rank, name in enumerate(self._telling.names):
            x = self._x(rank)
            self.canvas.line(x, _TOP - 23, x, bottom, stroke=_PALE, width=2)
            if len(name) <= 2:
                fill = "#FFF2CC" if rank == self._telling.root else "#F2F4F7"
                self.canvas.circle(x, 94, 15, fill=fill, stroke=_SOFT)
            self.canvas.text(x, 94, name, size=13, bold=True)

    def _start(self) -> None:
        self._label(_TOP + self._boxes.height / 2, "start")
        for rank, held in enumerate(self._state):
            self._boxes.paint(self.canvas, self._x(rank), _TOP, held, range(len(held)))
            self._boxes.number(self.canvas, self._x(rank), _TOP)

    def _row(self, row: _Row, y: float) -> None:
        """Draw what happens, and below it the boxes of those who got something."""
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
        """Return which chunks travel, shortened to what fits between two columns."""
        cells = self._telling.story.cells
        if len(cells.spans) == 1:
            return ""
        text = ranges(hop.send, cells.in_vector)
        return text if text_width(text, 10) < self._pitch * 0.7 else f"{len(hop.send)} chunks"

    def _local(self, hops: Sequence[Hop], y: float) -> None:
        """Write what a rank does within its own memory, line by line."""
        vector = self._telling.story.cells.in_vector
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
        """Draw what each rank was owed; the rest of what it has is of no use."""
        self._label(y + self._boxes.height / 2, "result")
        for rank in range(self._telling.size):
            found: Holdings = [None] * len(self._telling.story.cells.spans)
            for cell, held in self._telling.result(rank):
                found[cell] = held
            self._boxes.paint(self.canvas, self._x(rank), y, found, range(len(found)))

    def _legend(self, y: float) -> None:
        story, x = self._telling.story, _MARGIN
        messages = [hop for hop in story.hops if not hop.local]
        for colour, text, combine in (
            (_COMBINE, "is combined", True),
            (_COPY, "is copied", False),
        ):
            if any(hop.combine == combine for hop in messages):
                self.canvas.arrow(x, y, x + 30, y, stroke=colour)
                x = self._entry(x + 38, y, text)
        if story.folds and self._telling.size > 1:
            everyone = Holding((1 << self._telling.size) - 1)
            for held, text in (
                (Holding(1), "one rank's"),
                (everyone, f"{COMPLETE}: the {self._telling.op} of all"),
            ):
                self.canvas.rect(x, y - 7, 14, 14, fill=self._boxes.fill(held), stroke="#B8BEC6")
                x = self._entry(x + 22, y, text)

    def _entry(self, x: float, y: float, text: str) -> float:
        """Write a text of the legend and return where the next entry begins."""
        self.canvas.text(x, y, text, size=11, anchor="start", fill=_SOFT)
        return x + text_width(text, 11) + 18


def _rows(telling: Telling) -> list[_Row]:
    """Return what is drawn from top to bottom: messages by round, then what ranks do alone."""
    band = 50.0 if telling.size <= 4 else 62.0 if telling.size <= 8 else 76.0
    rows = []
    for number, hops in telling.story.by_round():
        messages = tuple(hop for hop in hops if not hop.local)
        local = tuple(hop for hop in hops if hop.local)
        if messages:
            rows.append(_Row(f"round {number}", messages, band))
        if local:
            most = max(sum(hop.target == rank for hop in local) for rank in range(telling.size))
            rows.append(_Row("locally", local, _LINE * (min(most, _MOST_LOCAL) + 1)))
    return rows


def _title(telling: Telling) -> str:
    kind = telling.schedule.kind
    of = "" if kind == telling.schedule.name else f" ({kind}, {telling.op})"
    return f"{telling.schedule.name} of {telling.size} rank{'s' if telling.size > 1 else ''}{of}"


def _facts(telling: Telling) -> str:
    """Return the line below the title."""
    totals, price = telling.totals, telling.totals.price
    facts = [
        f"{price.rounds} round{'' if price.rounds == 1 else 's'}",
        f"{price.messages} messages on {price.wires} wires",
        f"{size_text(totals.moved)} through the busiest rank",
        f"{time_text(price.seconds)} predicted, {totals.ratio:.2f} × the bound",
    ]
    return " · ".join(facts)
