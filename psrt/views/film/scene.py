"""Where a film shows what happens: ranks at places in the plane, or lanes along time. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


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

    def data(self) -> dict[str, Any]:
        """Return what the player reads, of what JSON knows."""
        return asdict(self)


class Lane(NamedTuple):
    """A line of bars; lanes that follow one another with the same name are of one rank."""

    name: str
    #: What its bars are, where a rank has several lanes.
    what: str = ""


class Bar(NamedTuple):
    """Something that takes time on a lane."""

    lane: int
    start: float
    stop: float
    text: str
    #: Number of a colour of the page, and how strong it is, from 0 to 1.
    style: int
    strength: float
    #: Of the lane's height, from 0 to 1.
    height: float = 1.0


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

    def data(self) -> dict[str, Any]:
        """Return what the player reads, of what JSON knows."""
        bars = [tuple(round(x, 3) if isinstance(x, float) else x for x in bar) for bar in self.bars]
        rest = ("lanes", "strip", "columns", "window", "end", "unit")
        return {"bars": bars, "laneOf": self.lane_of} | {it: getattr(self, it) for it in rest}
