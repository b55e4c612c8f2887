"""Places of ranks on a circle or on levels, with what each of them holds outside it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from psrt.views.film.film import Node, Plane, Strip
from psrt.views.svg import text_width

#: Radius of a rank, and the most for one with a long name.
RADIUS, _LARGEST = 17.0, 44.0
#: Room between a rank and what it holds, and around everything.
_GAP, _MARGIN = 8.0, 14.0
#: Least width and height of a picture; a smaller one would be enlarged.
_SMALLEST = 330.0
#: Least radius of the circle, and the factor by which it grows until nothing overlaps.
_LEAST, _GROWS = 112.0, 1.06
#: Height between levels, beside ranks and what they hold; and what a picture of them is as wide
#: as, in heights, where that needs no more room: a page is wider than it is high.
_BETWEEN, _ASPECT = 20.0, 1.4


def radius_of(names: Sequence[str]) -> float:
    """Return the radius of ranks with these names inside; longer names are cut.

    >>> radius_of(["A", "B"]), radius_of(["first", "second"])
    (17.0, 30.2)
    """
    widest = max(text_width(name, 13) for name in names)
    return round(min(_LARGEST, max(RADIUS, widest / 2 + 6)), 1)


def circle(
    names: Sequence[str],
    strip: Strip,
    counts: Sequence[int],
    *,
    order: Sequence[int] = (),
    least: float = _LEAST,
) -> Plane:
    """Return ranks on a circle, clockwise from its top.

    The circle is just large enough that ranks and what they hold do not overlap.

    Args:
        names: by rank.
        strip: of what ranks hold.
        counts: by rank, the number of its cells.
        order: the ranks in the order of the circle; empty: by number.
        least: radius of the circle.
    """
    size, room = len(names), radius_of(names)
    order = order or range(size)
    if size == 1:
        return placed([(0.0, 0.0)], [(0.0, -1.0)], names, strip, counts)
    angles = {rank: 2 * math.pi * place / size for place, rank in enumerate(order)}
    ways = [(math.sin(angles[rank]), -math.cos(angles[rank])) for rank in range(size)]
    radius = max(least, 2.6 * room * size / math.pi)

    def at(radius: float) -> list[tuple[float, float]]:
        return [(radius * x, radius * y) for x, y in ways]

    return replace(_grown(at, radius, ways, names, strip, counts), order=tuple(order))


def levels(
    spots: Sequence[tuple[float, float]],
    ways: Sequence[tuple[float, float]],
    names: Sequence[str],
    strip: Strip,
    counts: Sequence[int],
) -> Plane:
    """Return ranks on levels below one another, as wide as they must be not to overlap.

    Args:
        spots: by rank, its column from the left and its level from the top.
        ways: as in ``placed``.
        names: by rank.
        strip: of what ranks hold.
        counts: by rank, the number of its cells.
    """
    room = radius_of(names)
    rows = max(-(-count // strip.columns) for count in counts)
    down = 2 * room + strip.height * rows + _BETWEEN
    columns, rungs = (1 + max(spot[i] for spot in spots) for i in (0, 1))
    across = max(2 * room + _GAP, _ASPECT * down * rungs / columns)

    def at(across: float) -> list[tuple[float, float]]:
        return [(across * column, down * level) for column, level in spots]

    return _grown(at, across, ways, names, strip, counts)


def _grown(
    at: Callable[[float], list[tuple[float, float]]],
    size: float,
    ways: Sequence[tuple[float, float]],
    names: Sequence[str],
    strip: Strip,
    counts: Sequence[int],
) -> Plane:
    """Return ranks at the places of the least size, from a given one up, without overlaps."""
    room = radius_of(names)
    while True:
        places = at(size)
        if _free(places, _boxes(places, ways, strip, counts, room), room):
            return placed(places, ways, names, strip, counts)
        size *= _GROWS


def placed(
    places: Sequence[tuple[float, float]],
    ways: Sequence[tuple[float, float]],
    names: Sequence[str],
    strip: Strip,
    counts: Sequence[int],
) -> Plane:
    """Return ranks at some places, each with what it holds beside it.

    Args:
        places: by rank.
        ways: by rank, the direction of its cells from there, of length 1.
        names: by rank.
        strip: of what ranks hold.
        counts: by rank, the number of its cells.
    """
    room = radius_of(names)
    boxes = _boxes(places, ways, strip, counts, room)
    boxes += [(x - room, y - room, x + room, y + room) for x, y in places]
    left, top = (min(box[i] for box in boxes) - _MARGIN for i in (0, 1))
    right, bottom = (max(box[i] for box in boxes) + _MARGIN for i in (2, 3))
    across, down = max(0.0, _SMALLEST - right + left) / 2, max(0.0, _SMALLEST - bottom + top) / 2
    left, right, top, bottom = left - across, right + across, top - down, bottom + down
    nodes = tuple(
        Node(name, *(round(it, 1) for it in (x - left, y - top, box[0] - left, box[1] - top)))
        for name, (x, y), box in zip(names, places, boxes, strict=False)
    )
    return Plane(nodes, room, strip, round(right - left, 1), round(bottom - top, 1))


_Box = tuple[float, float, float, float]


def _boxes(
    places: Sequence[tuple[float, float]],
    ways: Sequence[tuple[float, float]],
    strip: Strip,
    counts: Sequence[int],
    room: float,
) -> list[_Box]:
    return [
        _box(place, way, strip, count, room)
        for place, way, count in zip(places, ways, counts, strict=True)
    ]


def _box(
    place: tuple[float, float], way: tuple[float, float], strip: Strip, count: int, room: float
) -> _Box:
    """Return left, top, right and bottom of what a rank holds, just outside of it."""
    width = strip.width * min(count, strip.columns)
    height = strip.height * -(-count // strip.columns)
    away = room
    while True:
        x, y = place[0] + way[0] * away, place[1] + way[1] * away
        box = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        if _apart(place, box) >= room + _GAP:
            return box
        away += 2


def _free(places: Sequence[tuple[float, float]], boxes: Sequence[_Box], room: float) -> bool:
    """Return whether ranks and what they hold are apart."""
    near = min(
        _apart(place, box)
        for i, place in enumerate(places)
        for j, box in enumerate(boxes)
        if i != j
    )
    return near > room + _GAP / 2 and not _overlap(boxes)


def _apart(place: tuple[float, float], box: _Box) -> float:
    """Return the distance of a point from a box."""
    x, y = place
    return math.hypot(max(box[0] - x, 0, x - box[2]), max(box[1] - y, 0, y - box[3]))


def _overlap(boxes: Sequence[_Box]) -> bool:
    """Return whether two boxes, or their close surroundings, overlap."""
    return any(
        one[0] < other[2] + _GAP
        and other[0] < one[2] + _GAP
        and one[1] < other[3] + _GAP
        and other[1] < one[3] + _GAP
        for i, one in enumerate(boxes)
        for other in boxes[:i]
        if one[0] < one[2] and other[0] < other[2]
    )
