"""A film: ranks, what each holds, and frames of who sends what to whom. Pure.

It is drawn in one of two ways. Where it has ``nodes``, ranks have places in the plane, and messages
are arrows between them. Where it has ``lanes``, time runs to the right: each lane has bars, and a
frame is a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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


class Node(NamedTuple):
    """The place of a rank, and of the upper left corner of what it holds."""

    name: str
    x: float
    y: float
    left: float
    top: float


class Strip(NamedTuple):
    """The size of one cell, and the number of them in a row."""

    width: float
    height: float
    columns: int


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
    style: int
    strength: float = 1.0
    #: Of the lane's height, from 0 to 1.
    height: float = 1.0


#: Cells that are wide enough for a number.
_STRIP = Strip(26.0, 24.0, 1)


@dataclass(frozen=True, slots=True)
class Film:
    """What a page plays."""

    title: str
    #: What it shows, in a sentence or two.
    lead: str
    #: Names of the ranks, which messages and changes count.
    names: tuple[str, ...]
    #: By rank, what it holds before the first frame.
    start: tuple[tuple[Cell, ...], ...]
    #: The first one is the start.
    frames: tuple[Frame, ...]
    costs: tuple[Cost, ...] = ()
    #: What they are beside.
    bound: str = "at least"
    #: (name, number of a colour, strength) of what colours stand for.
    legend: tuple[tuple[str, int, float], ...] = ()
    #: Further sentences below: figures of the whole.
    facts: tuple[tuple[str, str], ...] = ()
    #: How to read it, in sentences.
    reading: tuple[str, ...] = ()
    #: What was left out, if anything was.
    notes: tuple[str, ...] = ()
    #: In the plane.
    nodes: tuple[Node, ...] = ()
    radius: float = 17.0
    strip: Strip = _STRIP
    #: Width and height of the plane.
    size: tuple[float, float] = (0.0, 0.0)
    #: Lines between nodes, along which messages may go.
    edges: tuple[tuple[int, int], ...] = ()
    #: In time: the lanes, the lane of each rank's messages, the bars, and the names of its cells.
    lanes: tuple[Lane, ...] = ()
    lane_of: tuple[int, ...] = ()
    bars: tuple[Bar, ...] = ()
    columns: tuple[str, ...] = ()
    #: Units of time that are seen at once, the time at the end, and what a unit is.
    window: float = 0.0
    end: float = 0.0
    unit: str = ""

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
            "nodes": self.nodes,
            "radius": self.radius,
            "strip": self.strip,
            "size": self.size,
            "edges": self.edges,
            "lanes": self.lanes,
            "laneOf": self.lane_of,
            "bars": [_short(it) for it in self.bars],
            "columns": self.columns,
            "window": self.window,
            "end": self.end,
            "unit": self.unit,
        }


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


def thinned(film: Film, most: int) -> Film:
    """Return a film of so many frames at most, which says so.

    Of frames that are left out, the next one that is kept has the changes; the first and the last
    one stay.

    Args:
        film: of any length.
        most: frames, at least 2.
    """
    count = len(film.frames)
    if count <= most:
        return film
    every = -(-(count - 1) // (most - 1))
    kept: list[Frame] = []
    pending: tuple[Change, ...] = ()
    for i, it in enumerate(film.frames):
        pending += it.changes
        if i % every == 0 or i == count - 1:
            kept.append(replace(it, changes=_last(pending)))
            pending = ()
    note = (
        f"Of {count} steps {len(kept)} are shown, one in {every}; what the others change is in the "
        "next one that is."
    )
    return replace(film, frames=tuple(kept), notes=(*film.notes, note))


def _last(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the last change of each cell."""
    found = {(it.rank, it.at): it for it in changes}
    return tuple(found.values())


def coarse(film: Film, most: int) -> Film:
    """Return a film of about so many bars at most, all of them seen at once, which says so.

    Each lane is cut into as many pieces of the same length, and a piece shows what lasts longest in
    it; pieces that follow each other and show the same are one bar.

    Args:
        film: of any number of bars.
        most: bars.
    """
    if len(film.bars) <= most:
        return film
    pieces = max(1, most // len(film.lanes))
    length = film.end / pieces
    longest: dict[tuple[int, int], tuple[float, Bar]] = {}
    for bar in film.bars:
        first, last = int(bar.start / length), min(int(bar.stop / length), pieces - 1)
        for piece in range(first, last + 1):
            share = min(bar.stop, (piece + 1) * length) - max(bar.start, piece * length)
            if share > longest.get((bar.lane, piece), (0.0, bar))[0]:
                longest[bar.lane, piece] = share, bar
    bars: list[Bar] = []
    for (lane, piece), (_, bar) in sorted(longest.items(), key=lambda it: it[0]):
        start = piece * length
        found = Bar(lane, start, start + length, "", bar.style, bar.strength, bar.height)
        before = bars[-1] if bars else found
        if before._replace(start=0, stop=0) == found._replace(start=0, stop=0) and (
            start - length / 2 < before.stop < start + length / 2
        ):
            bars[-1] = before._replace(stop=found.stop)
        else:
            bars.append(found)
    note = (
        f"Of {len(film.bars)} bars each piece of {length:.3g} {film.unit} shows the one that lasts "
        "longest in it."
    )
    return replace(film, bars=tuple(bars), window=film.end, notes=(*film.notes, note))
