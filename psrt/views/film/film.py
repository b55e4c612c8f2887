"""A film: ranks, what each holds or does, and frames of messages. Pure.

It is drawn as text (``text``), as SVG (``drawing``) and as a page that plays it (``page``). It
happens in a scene: places in the plane, or lanes along time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

#: Number of the colour of an empty cell.
EMPTY = -1


class Cell(NamedTuple):
    """One piece of what a rank holds."""

    text: str
    #: Number of a colour of the page, or ``EMPTY``.
    style: int = EMPTY
    #: How strong the colour is, from 0 to 1.
    strength: float = 0.3


class Change(NamedTuple):
    """A cell that a rank holds from one frame on."""

    rank: int
    #: Number of the cell.
    at: int
    cell: Cell


class Message(NamedTuple):
    """What one rank sends to another, or does by itself if both are the same."""

    source: int
    target: int
    #: A few characters next to the arrow.
    label: str
    #: The whole text, in a line.
    line: str
    #: Number of a colour of the page.
    style: int
    #: With lanes, when it is sent and when it arrives.
    start: float = 0.0
    stop: float = 0.0


class SoFar(NamedTuple):
    """What a film has cost up to a frame."""

    text: str
    #: Share of the whole, from 0 to 1.
    share: float


class Cost(NamedTuple):
    """One row of the costs: the cost of the whole film, next to its ``Film.bound``."""

    name: str
    whole: str
    #: The bound, and the bound as a share of the whole; 0 if there is none.
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
    #: The ranks in order, if that is not the order of their numbers.
    order: tuple[int, ...] = ()

    def data(self) -> dict[str, Any]:
        """Return the data for the player, as JSON types."""
        return asdict(self)


class Lane(NamedTuple):
    """A line of bars; consecutive lanes with the same name belong to one rank."""

    name: str
    #: What its bars are, if a rank has several lanes.
    what: str = ""


class Look(NamedTuple):
    """How bars of a kind are drawn."""

    #: Number of a colour of the page, and how strong it is, from 0 to 1.
    style: int
    strength: float
    #: Share of the lane's height, from 0 to 1; below a half, the text of a bar is next to it.
    height: float = 1.0
    #: In a text, what fills a bar; ``{}`` is the bar's own text, other characters surround it.
    glyph: str = "{}"
    #: In a text, its first and last character; a bar that has any is always visible.
    ends: tuple[str, str] = ("", "")
    #: In a text, its last character if another such bar follows at once.
    joint: str = ""


class Bar(NamedTuple):
    """Something that takes time on a lane: a span."""

    lane: int
    start: float
    stop: float
    text: str
    look: Look
    #: Start of the wait before it, if it had to wait for its turn.
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
    #: Time that is visible, the time at the end, and the unit of time.
    window: float
    end: float
    unit: str
    #: In a text, what its characters mean.
    key: str = ""
    #: In a text, characters for the whole time; 0: each unit of time has its own cell.
    across: int = 0

    @property
    def busy(self) -> list[tuple[int, Lane]]:
        """Number and name of the lanes of ranks that have any bars."""
        names = {self.lanes[it.lane].name for it in self.bars}
        return [(i, it) for i, it in enumerate(self.lanes) if it.name in names]

    @property
    def over(self) -> float:
        """When the last bar ends; messages may still be in flight."""
        return max(it.stop for it in self.bars)

    def data(self) -> dict[str, Any]:
        """Return the data for the player, as JSON types."""
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
    #: With lanes, the moment; the frame shows what happened since the frame before.
    time: float = 0.0
    #: Numbers of the edges that messages may use in this frame; empty: all.
    edges: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Film:
    """What is drawn."""

    title: str
    #: What it shows, in a sentence or two.
    lead: str
    #: Names of the ranks; messages and changes refer to them by number.
    names: tuple[str, ...]
    #: By rank, what it holds before the first frame.
    start: tuple[tuple[Cell, ...], ...]
    #: The first one is the start.
    frames: tuple[Frame, ...]
    #: The scene.
    scene: Plane | Lanes
    #: Heading of a text and a drawing, instead of title and lead.
    heading: str = ""
    costs: tuple[Cost, ...] = ()
    #: Name of the bound next to the costs.
    bound: str = "at least"
    #: (name, number of a colour, strength): what colours mean.
    legend: tuple[tuple[str, int, float], ...] = ()
    #: Figures of the whole film, by name; and the lesson below them.
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
        """Return the data for the player, as JSON types."""
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
