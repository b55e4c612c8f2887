"""The parts of a section of a page. Plain text: the frame escapes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

#: How a note looks: like any text, as good news, as something missing or incomplete, as bad news.
Tone: TypeAlias = Literal["plain", "good", "missing", "bad"]


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence or two."""

    text: str
    tone: Tone = "plain"
    kind: str = field(default="note", init=False)


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of what follows, within a section."""

    text: str
    #: Number of its colour in charts; None if it has none.
    style: int | None = None
    kind: str = field(default="heading", init=False)


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to be copied, or to be read as they are."""

    text: str
    label: str = ""
    kind: str = field(default="code", init=False)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first cell of each says what it is about."""

    rows: Sequence[Sequence[str]]
    #: Above the columns; empty for a list of names and values.
    head: Sequence[str] = ()
    caption: str = ""
    #: Whether all columns but the first are numbers.
    numbers: bool = False
    #: By column after the first, the number of its colour in charts.
    styles: Sequence[int] = ()
    #: Whether only its caption is visible until it is clicked.
    folded: bool = False
    kind: str = field(default="table", init=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart."""

    title: str
    #: Inline SVG, whose texts are escaped already.
    svg: str
    #: (name, colour) of each thing in it; empty if there is only one.
    legend: Sequence[tuple[str, int]] = ()
    #: A sentence below it: how to read it.
    caption: str = ""
    #: Data for the script that enlarges it, as JSON types; empty for a fixed chart.
    data: Mapping[str, Any] = field(default_factory=dict)
    #: Whether it takes the whole width.
    wide: bool = False
    kind: str = field(default="figure", init=False)


Part: TypeAlias = Note | Heading | Code | Table | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page with a title."""

    #: In the address, behind #.
    name: str
    title: str
    parts: Sequence[Part]
