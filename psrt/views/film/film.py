"""A film: ranks, what each holds or does, and frames of who sends what to whom. Pure.

It is the one thing that is drawn: as text (``text``), as SVG (``drawing``) and as a page that plays
it (``page``). Where it happens is its scene: places in the plane, or lanes along time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

#: Number of a colour that stands for nothing: an empty cell.
EMPTY = -1


class Cell(NamedTuple):
    """One piece of what a rank holds."""

    text: str
    #: Number of a colour of the page, or ``EMPTY``.
    style: int = EMPTY
    #: How strong the colour is, from 0 to 1.
    strength: float = 0.3


class Change(NamedTuple):
    """A cell that a rank holds from a frame on."""

    rank: int
    #: Number of the cell.
    at: int
    cell: Cell


class Message(NamedTuple):
    """What one rank sends to another; or does by itself, if they are the same."""

    source: int
    target: int
    #: Beside the arrow, a few characters.
    label: str
    #: All of it, as a line.
    line: str
    #: Number of a colour of the page.
    style: int
    #: Where there are lanes, when it is sent and when it arrives.
    start: float = 0.0
    stop: float = 0.0


class SoFar(NamedTuple):
    """What a film has cost up to a frame."""

    text: str
    #: Of the whole, from 0 to 1.
    share: float


class Cost(NamedTuple):
    """One row of the costs: what the whole film costs, beside ``Film.bound`` of it."""

    name: str
    whole: str
    #: The bound, and as a share of the whole, 0 where there is none.
    least: str
    share: float


class Strip(NamedTuple):
    """Size of one of the cells that a rank holds, in pixels, and the number of them in a row."""

    width: float
    height: float
    columns: int


class Node(NamedTuple):
    """The place of a rank, and of the upper left corner of what it holds, in pixels."""

    name: str
    x: float
    y: float
    left: float
    top: float


@dataclass(frozen=True, slots=True)
class Plane:
    """Ranks at places; messages are arrows between them."""

    #: By rank.
    nodes: tuple[Node, ...]
    #: Of a rank, in pixels.
    radius: float
    strip: Strip
    #: Of the picture, in pixels.
    width: float
    height: float
    #: Lines between ranks, along which messages may go.
    edges: tuple[tuple[int, int], ...] = ()
    #: Names of the cells that each rank holds; empty: they have none.
    cells: tuple[str, ...] = ()
    #: The ranks in their order, where that is not that of their numbers.
    order: tuple[int, ...] = ()

    def data(self) -> dict[str, Any]:
        """Return what the player reads, of what JSON knows."""
        return asdict(self)


class Lane(NamedTuple):
    """A line of bars; lanes that follow one another with the same name are of one rank."""

    name: str
    #: What its bars are, where a rank has several lanes.
    what: str = ""


class Look(NamedTuple):
    """How bars of a kind are drawn."""

    #: Number of a colour of the page, and how strong it is, from 0 to 1.
    style: int
    strength: float
    #: Of the lane's height, from 0 to 1; below a half the text of a bar is beside it.
    height: float = 1.0
    #: Of a text, what fills a bar: ``{}`` the bar's own text, with another character once amid it.
    glyph: str = "{}"
    #: Of a text, its first character and its last one; where it has any it is always seen.
    ends: tuple[str, str] = ("", "")
    #: Of a text, its last character where such a bar follows at once.
    joint: str = ""


class Bar(NamedTuple):
    """Something that takes time on a lane: a span."""

    lane: int
    start: float
    stop: float
    text: str
    look: Look
    #: Where it had to wait for its turn, from when on.
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Lanes:
    """Ranks along time, which runs to the right; a frame is a moment."""

    lanes: tuple[Lane, ...]
    #: By rank, the lane at which its messages begin and end.
    lane_of: tuple[int, ...]
    bars: tuple[Bar, ...]
    strip: Strip
    #: Names of the cells that ranks hold.
    columns: tuple[str, ...]
    #: Time that is seen at once, the time at the end, and what time is counted in.
    window: float
    end: float
    unit: str
    #: Of a text, what its characters mean.
    key: str = ""
    #: Of a text, the characters of all of the time; 0: each unit of it has its own.
    across: int = 0

    @property
    def busy(self) -> list[tuple[int, Lane]]:
        """Number and name of the lanes of ranks that have any bars."""
        names = {self.lanes[it.lane].name for it in self.bars}
        return [(i, it) for i, it in enumerate(self.lanes) if it.name in names]

    @property
    def over(self) -> float:
        """When the last bar ends: messages may still be on their way."""
        return max(it.stop for it in self.bars)

    def data(self) -> dict[str, Any]:
        """Return what the player reads, of what JSON knows."""
        rest = ("lanes", "strip", "columns", "window", "end", "unit")
        return {"bars": [*map(_bar, self.bars)], "laneOf": self.lane_of} | {
            it: getattr(self, it) for it in rest
        }


@dataclass(frozen=True, slots=True)
class Frame:
    """One step."""

    #: Its name, such as ``round 2``.
    label: str
    #: A sentence.
    caption: str
    messages: tuple[Message, ...] = ()
    changes: tuple[Change, ...] = ()
    #: By row of the costs.
    costs: tuple[SoFar, ...] = ()
    #: Where there are lanes, the moment; what is shown has happened since that of the frame before.
    time: float = 0.0
    #: Edges that messages may take in this frame, by their numbers; empty: all.
    edges: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Film:
    """What is drawn."""

    title: str
    #: What it shows, in a sentence or two.
    lead: str
    #: Names of the ranks, which messages and changes count.
    names: tuple[str, ...]
    #: By rank, what it holds before the first frame.
    start: tuple[tuple[Cell, ...], ...]
    #: The first one is the start.
    frames: tuple[Frame, ...]
    #: Where it happens.
    scene: Plane | Lanes
    #: Above a text and a drawing, in place of title and lead.
    heading: str = ""
    costs: tuple[Cost, ...] = ()
    #: What they are beside.
    bound: str = "at least"
    #: (name, number of a colour, strength) of what colours stand for.
    legend: tuple[tuple[str, int, float], ...] = ()
    #: Further sentences below: figures of the whole, by name, and what to remember of it.
    facts: tuple[tuple[str, str], ...] = ()
    lesson: str = ""
    #: How to read it, in sentences.
    reading: tuple[str, ...] = ()
    #: What was left out, if anything was.
    notes: tuple[str, ...] = ()

    def holds(self, frame: int) -> list[list[Cell]]:
        """Return by rank what it holds after a frame; −1 is the last one."""
        held = [list(cells) for cells in self.start]
        for it in self.frames[: frame + 1 or None]:
            for rank, at, cell in it.changes:
                held[rank][at] = cell
        return held

    def data(self) -> dict[str, Any]:
        """Return what the player reads, of what JSON knows."""
        return {
            "names": self.names,
            "start": self.start,
            "frames": [_frame(it) for it in self.frames],
            "costs": self.costs,
            "bound": self.bound,
            "legend": self.legend,
            "scene": self.scene.data(),
        }


def _bar(it: Bar) -> tuple[Any, ...]:
    text = it.text if it.look.height >= 0.5 else ""
    return _short((it.lane, it.start, it.stop, text, *it.look[:3]))


def _frame(frame: Frame) -> dict[str, Any]:
    found: dict[str, Any] = {"label": frame.label, "caption": frame.caption}
    rest = {
        "messages": [_short(it) for it in frame.messages],
        "changes": [(rank, at, *_short(cell)) for rank, at, cell in frame.changes],
        "costs": [(text, round(share, 4)) for text, share in frame.costs],
        "time": round(frame.time, 4),
        "edges": frame.edges,
    }
    return found | {name: value for name, value in rest.items() if value}


def _short(parts: Sequence[Any]) -> tuple[Any, ...]:
    """Return a tuple whose numbers have few digits."""
    return tuple(round(it, 3) if isinstance(it, float) else it for it in parts)
