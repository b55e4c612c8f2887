"""A film: ranks, what each holds, and frames of who sends what to whom. Pure.

Where that is drawn is its scene: places in the plane, or lanes along time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psrt.views.film.scene import Lanes, Plane

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
    #: Where it happens.
    scene: Plane | Lanes
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
