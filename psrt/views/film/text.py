"""A film as text: lanes as rows of characters along time, and the figures below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from psrt.views.film.film import Bar, Film, Lanes

#: Characters of a line, except for the rows of lanes.
WIDTH = 118
#: A unit of time in which nothing is done, and waiting for a turn.
_IDLE, _QUEUED = ".", "·"
#: Where both ends of a bar are one character.
_BOTH = "┼"


def lanes_text(film: Film, *, across: int | None = None) -> str:
    """Return a film of lanes.

    Args:
        film: whose scene is lanes.
        across: characters of all of the time; None: as the scene has it.
    """
    scene = film.scene
    assert isinstance(scene, Lanes), "there are lanes"
    across = scene.across if across is None else across
    if across:
        parts = [film.heading, *_continuous(scene, across), ""]
    else:
        parts = [*wrap(film.heading, WIDTH), "", *_in_units(scene)]
    parts += [*filter(None, [scene.key]), *film.reading, ""]
    parts += facts_text(film.facts)
    if film.lesson:
        parts += ["", film.lesson]
    return "\n".join(parts)


def facts_text(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield lines of names and aligned values."""
    room = max((len(name) for name, _ in facts), default=0) + 2
    for name, text in facts:
        yield from wrap(f"{name:<{room}}{text}", WIDTH, subsequent_indent=" " * room) or [name]


def _continuous(scene: Lanes, across: int) -> Iterator[str]:
    """Yield a row for each lane, and the axis."""
    room = max(len(it.name) for _, it in scene.busy)
    beside = max(len(it.what) for _, it in scene.busy)
    scale, before = across / scene.over, ""
    for i, (name, what) in scene.busy:
        row = _row([it for it in scene.bars if it.lane == i], scale, across)
        label = [name if name != before else "", what] if beside else [name]
        yield _labelled(label, (room, beside), row)
        before = name
    unit = scene.unit if len(scene.unit) <= room + beside else scene.unit.split()[-1]
    label_room = room + (2 + beside if beside else 0)
    yield f"{unit:{label_room}}  {_axis(scene.over, across)}".rstrip()


def _labelled(label: Sequence[str], room: Sequence[int], row: str) -> str:
    cells = [f"{it:{size}}" for it, size in zip(label, room, strict=False)]
    return "  ".join([*cells, row]).rstrip()


def _row(bars: Sequence[Bar], scale: float, across: int) -> str:
    """Return a lane: a character shows what happens in the middle of its time.

    >>> from psrt.views.film.film import Look
    >>> step, wait = Look(0, 0.5, glyph="█", joint="▌"), Look(1, 0.4, 0.3, "·{}")
    >>> _row([Bar(0, 0, 2, "1", step), Bar(0, 2, 4, "2", step), Bar(0, 4, 7, "1", wait)], 1, 8)
    '█▌██·1· '
    >>> late, whole = Look(0, 0.4, glyph="·", ends=("├", "")), Look(0, 0.4, glyph="─", ends="├┤")
    >>> _row([Bar(0, 0, 3, "", late), Bar(0, 3, 5, "", whole._replace(ends=("", "┤")))], 1, 6)
    '├··─┤ '
    >>> _row([Bar(0, 3, 3.1, "", whole)], 1, 6)
    '   ┼  '
    """
    cells = [" "] * across
    #: By column, the bar that is visible there.
    seen: list[Bar | None] = [None] * across
    for it in bars:
        if it.since is not None:
            for i in range(round(it.since * scale), min(round(it.start * scale), across)):
                cells[i] = _QUEUED
    for it in bars:
        first, stop = _columns(it, scale, across)
        if first == stop:
            continue
        drawn, before = _drawn(it, stop - first), seen[first]
        if before is not None and before.look.ends[0] and it.look.ends[1] and stop == first + 1:
            drawn = _BOTH if cells[first] == before.look.ends[0] else drawn
        seen[first:stop] = [it] * (stop - first)
        cells[first:stop] = drawn
    for it in bars:
        first, stop = _columns(it, scale, across)
        after = seen[stop] if stop < across else None
        if it.look.joint and stop > first and after is not None and after.look.joint:
            cells[stop - 1] = it.look.joint
    return "".join(cells)


def _columns(it: Bar, scale: float, across: int) -> tuple[int, int]:
    """Return the first column of a bar and the one after its last; a mark has at least one."""
    least = it.look.glyph == "{}" or any(it.look.ends)
    first = min(round(it.start * scale), across - least)
    return first, min(max(first + least, round(it.stop * scale)), across)


def _drawn(it: Bar, columns: int) -> str:
    fill, text = it.look.glyph.replace("{}", ""), it.text if "{}" in it.look.glyph else ""
    drawn = text.center(columns, fill)[:columns] if fill else text * columns
    first, last = it.look.ends
    if first and last and columns == 1:
        return _BOTH
    if first:
        drawn = first + drawn[1:]
    return drawn[:-1] + last if last else drawn


def _axis(end: float, across: int) -> str:
    """Return numbers along time, far enough apart to be read."""
    apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, 10**9) if a * across / end >= 6)
    text, mark = "", 0
    while (column := round(mark * across / end)) < across:
        text = f"{text:{column}}{mark}"
        mark += apart
    return text


def _in_units(scene: Lanes) -> Iterator[str]:
    """Yield rows in which each unit of time has a cell; long rows are split into bands."""
    total = round(scene.end)
    rows = [[_IDLE] * total for _ in scene.lanes]
    for it in scene.bars:
        units = range(round(it.start), round(it.stop))
        rows[it.lane][units.start : units.stop] = [it.text] * len(units)
    label = max(len(it.name) for it in scene.lanes) + 1
    cell = 1 + max(len(it) for row in rows for it in row)
    columns = (WIDTH - label) // cell
    for start in range(0, total, columns):
        stop = min(start + columns, total)
        if total > columns:
            yield f"{scene.unit} {start} to {stop - 1}"
        for lane, row in zip(scene.lanes, rows, strict=True):
            yield f"{lane.name:<{label}}" + "".join(it.rjust(cell) for it in row[start:stop])
        yield ""
