"""Shortens a film that is too long or too dense for a page; its notes say so. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psrt.views.film.film import Bar, Change, Film, Frame, Lanes


def thinned(film: Film, most: int) -> Film:
    """Return a film with a limited number of frames, and a note about it.

    The changes of a frame that is left out move into the next one that is kept. The first and the
    last frame stay.

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
        f"Only {len(kept)} of {count} steps are shown, one in {every}. Each also shows the changes "
        "of the steps left out before it."
    )
    return replace(film, frames=tuple(kept), notes=(*film.notes, note))


def _last(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the last change of each cell."""
    found = {(it.rank, it.at): it for it in changes}
    return tuple(found.values())


def coarse(film: Film, most: int) -> Film:
    """Return a film with a limited number of bars, all visible at once, and a note about it.

    Each lane is split into pieces of the same length, and a piece shows what lasts longest in it.
    Consecutive pieces that show the same form one bar.

    Args:
        film: a film with any number of bars, or none.
        most: bars.
    """
    scene = film.scene
    if not isinstance(scene, Lanes) or len(scene.bars) <= most:
        return film
    pieces = max(1, most // len(scene.lanes))
    length = scene.end / pieces
    bars = tuple(_joined(_longest(scene.bars, pieces, length), length))
    note = (
        f"There are {len(scene.bars)} bars: each piece of {length:.3g} {scene.unit} shows only the "
        "one that lasts longest in it."
    )
    seen = replace(scene, bars=bars, window=scene.end)
    return replace(film, scene=seen, notes=(*film.notes, note))


def _longest(bars: Sequence[Bar], pieces: int, length: float) -> dict[tuple[int, int], Bar]:
    """Return by lane and piece the bar that lasts longest in it, if any."""
    found: dict[tuple[int, int], tuple[float, Bar]] = {}
    for bar in bars:
        first, last = int(bar.start / length), min(int(bar.stop / length), pieces - 1)
        for piece in range(first, last + 1):
            share = min(bar.stop, (piece + 1) * length) - max(bar.start, piece * length)
            if share > found.get((bar.lane, piece), (0.0, bar))[0]:
                found[bar.lane, piece] = share, bar
    return {place: bar for place, (_, bar) in sorted(found.items(), key=lambda it: it[0])}


def _joined(longest: dict[tuple[int, int], Bar], length: float) -> list[Bar]:
    """Return a bar for each run of pieces of a lane that show the same."""
    bars: list[Bar] = []
    before = None
    for (lane, piece), bar in longest.items():
        look = (lane, bar.look)
        stop = (piece + 1) * length
        if before == (look, piece - 1):
            bars[-1] = bars[-1]._replace(stop=stop)
        else:
            bars.append(bar._replace(start=piece * length, stop=stop, text="", since=None))
        before = look, piece
    return bars
