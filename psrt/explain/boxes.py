"""What a rank holds as a strip of boxes, one per chunk: part of the drawing of a collective."""

from __future__ import annotations

from collections.abc import Container

from psrt.explain.names import COMPLETE, cell_name, members, numbers
from psrt.explain.story import Holding, Holdings
from psrt.explain.svg import Canvas, text_width
from psrt.explain.telling import Telling

#: Boxes of a rank side by side; more go into further rows.
_ABREAST = 16
#: Boxes up to which they are wide enough to be written into.
_WRITTEN = 8
#: Complete sums; edges of boxes in which nothing happens.
_GREEN, _GREY = "#BFE8D0", "#B8BEC6"
#: Red, green, blue of one rank's numbers, and of a sum that is all but complete.
_SHADES = ((0xF1, 0x9B), (0xF6, 0xC6), (0xFC, 0xEA))
#: By source, where numbers are only moved about: Okabe and Ito's colours, light.
_TINTS = ("#CFE4F5", "#FBE3B5", "#C8EBDD", "#F3D6E6", "#D9F0FA", "#F7D3BF", "#E2E2E2", "#FBF7BF")


class Boxes:
    """Size and look of the boxes, the same for all ranks at all times."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._count = len(telling.story.cells.spans)
        self._abreast = self._columns()
        self._rows = max(1, -(-self._count // self._abreast))
        self._writes = self._count <= _WRITTEN
        labels = [self._label(held) for held in _ever(telling)] if self._writes else []
        # Bold letters are wider by a ninth.
        widest = 1.12 * max((text_width(text, 11) for text in labels), default=0.0)
        self._width = max(26.0, widest + 10) if self._writes else 10.0
        self._height = 24.0 if self._writes else 13.0 if self._rows == 1 else 10.0
        #: Of a strip, in pixels.
        self.width = self._width * self._abreast
        self.height = self._height * self._rows

    def _columns(self) -> int:
        """Return how many boxes stand side by side."""
        size = self._telling.size
        if self._telling.schedule.kind == "all-to-all" and self._count == size * size:
            return size  # the vector is a table of blocks: rows are sent, columns are received
        return min(max(self._count, 1), _ABREAST)

    def paint(
        self, canvas: Canvas, middle: float, y: float, held: Holdings, changed: Container[int]
    ) -> None:
        """Draw what a rank holds; boxes that have changed get a firm edge.

        Args:
            canvas: what to draw on.
            middle: of the strip, from the left.
            y: its upper edge.
            held: by cell.
            changed: cells.
        """
        left = middle - self.width / 2
        canvas.rect(left, y, self.width, self.height, fill="white")
        firm = [i for i, one in enumerate(held) if one is not None and i in changed]
        for i in (*(i for i in range(len(held)) if i not in firm), *firm):  # firm edges on top
            self._box(canvas, left, y, i, held[i], firm=i in firm)

    def number(self, canvas: Canvas, middle: float, y: float) -> None:
        """Write the chunks' numbers above a strip, where they stand in one row."""
        cells = self._telling.story.cells
        if self._rows > 1 or self._count == 1:
            return
        for i in range(self._count):
            x = middle - self.width / 2 + self._width * (i + 0.5)
            canvas.text(x, y - 6, cell_name(i, cells.in_vector), size=7, fill="#888888")

    def fill(self, held: Holding | None) -> str:
        """Return the colour of a box."""
        if held is None:
            return "white"
        if not self._telling.story.folds:
            return _TINTS[next(members(held.whose)) % len(_TINTS)]
        size, count = self._telling.size, held.whose.bit_count()
        if count == size:
            return _GREEN
        share = (count - 1) / (size - 1)
        return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in _SHADES)

    def _box(
        self, canvas: Canvas, left: float, y: float, i: int, held: Holding | None, *, firm: bool
    ) -> None:
        x = left + self._width * (i % self._abreast)
        y += self._height * (i // self._abreast)
        canvas.rect(
            x, y, self._width, self._height, fill=self.fill(held),
            stroke="#444444" if firm else _GREY, line=1.3 if firm else 0.7, dashed=held is None,
        )  # fmt: skip
        if self._writes and held is not None:
            canvas.text(
                x + self._width / 2, y + self._height / 2, self._label(held),
                size=11, fill="#111111" if firm else "#777777", bold=firm,
            )  # fmt: skip

    def _label(self, held: Holding) -> str:
        """Return what stands in a box: the numbers, or whose numbers are in the sum."""
        telling = self._telling
        if telling.numbered:
            text = numbers(held.numbers, most=4)
            return text if len(text) <= 16 else f"{len(held.numbers)} numbers"
        ranks = list(members(held.whose))
        if telling.story.folds and len(ranks) == telling.size > 1:
            return COMPLETE
        if len(ranks) > 3 and ranks[-1] - ranks[0] == len(ranks) - 1:
            return f"{telling.names[ranks[0]]}…{telling.names[ranks[-1]]}"
        joined = "".join(telling.names[rank] for rank in ranks)
        return joined if len(joined) <= 4 else f"{len(ranks)} of {telling.size}"


def _ever(telling: Telling) -> set[Holding]:
    """Return everything that any rank ever holds."""
    story = telling.story
    found = {held for rank in story.start for held in rank if held is not None}
    found |= {held for hop in story.hops for held in hop.after if held is not None}
    return found | {held for rank in range(telling.size) for _, held in telling.result(rank)}
