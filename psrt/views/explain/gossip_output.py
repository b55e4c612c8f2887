"""A topology as text, as JSON for programs, and as a drawing.

==================  ============================================================================
key                 value
==================  ============================================================================
format              ``"psrt explain gossip 1"``
topology, ranks     as they were given
hosts               ranks of each host, or an empty list
push_sum            whether only columns add up to 1
period              ``edges``, a list of [from, to], and ``matrix``, N lists of N, of each round
contraction         the factor by which a period shrinks disagreement at least
gap                 1 less that
rounds              ``share`` of the disagreement that is left after at most ``by_gap`` rounds, and
                    after ``simulated`` ones of random numbers; null for never
colours             of each rank, or host, 0 or 1, or null where two do not suffice
sent                bytes that each rank, or host, sends in a round
all_reduce          bytes that a rank, or host, sends in a ring all-reduce
==================  ============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final

from psrt.core.errors import ConfigError
from psrt.core.units import plural, size_text
from psrt.topology import Graph
from psrt.topology.mixing import Weights
from psrt.topology.names import row_of
from psrt.views.explain.gossip import Explained
from psrt.views.svg import Canvas, text_width

FORMAT: Final = "psrt explain gossip 1"
#: Ranks of a matrix that is printed, and of one that is drawn, at most.
_PRINTED, MOST_DRAWN = 16, 64
#: Rounds of a period that are printed and drawn, at most.
_ROUNDS = 8
#: Where it is used.
_REMARK = "psrt train --mode gossip averages like this; these figures describe only the graph."


_OF_RANKS = (
    "In a round each rank sends its parameters to its neighbours, and then holds a weighted mean",
    "of its own and the received ones: row i of M has the weights at rank i.",
)
_OF_SHARES = (
    "In a round each rank sends shares of its parameters to its neighbours, and adds the received",
    "shares to the share that it keeps: column j of M has the shares of rank j.",
)
_OF_HOSTS = (
    "In a round the ranks of a host average in shared memory. Each host sends this average to its",
    "neighbours and then holds a weighted mean: row i of M has the weights at rank i.",
)


def as_document(found: Explained) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    topology = found.topology
    return {
        "format": FORMAT,
        "topology": topology.name,
        "ranks": topology.size,
        "hosts": list(found.hosts),
        "push_sum": topology.push_sum,
        "period": [
            {"edges": [list(edge) for edge in sorted(graph.edges)], "matrix": matrix.tolist()}
            for graph, matrix in zip(topology.graphs, topology.matrices, strict=True)
        ],
        "contraction": topology.contraction,
        "gap": topology.gap,
        "rounds": [
            {"share": it.share, "by_gap": it.by_gap, "simulated": it.simulated}
            for it in found.rounds
        ],
        "colours": None if found.colours is None else list(found.colours),
        "sent": list(found.sent),
        "all_reduce": found.all_reduce,
    }


def as_text(found: Explained) -> str:
    """Return the text."""
    return "\n".join(
        [
            title(found),
            *_what_a_round_does(found),
            "",
            *_matrices(found),
            *(f"{name:<16}{text}" for name, text in facts(found)),
            "",
            _REMARK,
        ]
    )


def _what_a_round_does(found: Explained) -> tuple[str, ...]:
    if found.hosts:
        return _OF_HOSTS
    return _OF_SHARES if found.topology.push_sum else _OF_RANKS


def title(found: Explained) -> str:
    """Return the heading."""
    topology = found.topology
    row = row_of(topology.name)
    doc = row.summary if row is not None and not row.number else ""
    where = f", on hosts of {', '.join(map(str, found.hosts))}" if found.hosts else ""
    doc = doc.replace("rank", "host") if found.hosts else doc
    push = ", push-sum" if topology.push_sum else ""
    return (
        f"gossip on {topology.name}, {plural(topology.size, 'rank')}{where}{push}"
        f"{': ' if doc else ''}{doc}"
    )


def facts(found: Explained) -> Iterator[tuple[str, str]]:
    """Yield the properties of the graph and its weights, by name."""
    topology = found.topology
    yield "weights", _sums(found)
    span = "a round" if topology.period == 1 else f"a period of {topology.period} rounds"
    left = f"{topology.contraction:.3g}"
    if topology.push_sum:
        yield (
            "spectral gap",
            f"{topology.gap:.3g}: in the long run {span} leaves {left} of the disagreement",
        )
    elif found.is_exact:
        yield "spectral gap", f"1: after {span} all have the mean"
    else:
        gap = f"{topology.gap:.3g}"
        yield "spectral gap", f"{gap}: {span} leaves at most {left} of the disagreement"
    for it in found.rounds:
        name = "to halve it" if it.share == 0.5 else "to a millionth"
        by_gap = "never" if it.by_gap is None else f"{plural(it.by_gap, 'round')} by the gap"
        done = "never" if it.simulated is None else str(it.simulated)
        yield name, f"{by_gap}, {done} in a simulation of random numbers"
    least, most = min(found.sent), max(found.sent)
    each = _size(most) if least == most else f"{_size(least)} to {_size(most)}"
    who = "host" if found.hosts else "rank"
    yield (
        "bytes",
        f"a {who} sends {each} per round, for {_size(found.nbytes)} of parameters; in a ring "
        f"all-reduce of {who}s it sends {_size(found.all_reduce)}",
    )
    if found.colours is None:
        yield "two colours", f"do not suffice: {found.no_colours}"
    else:
        parts = [
            " ".join(str(rank) for rank, it in enumerate(found.colours) if it == colour)
            for colour in (0, 1)
        ]
        short = all(len(part) < 40 for part in parts)
        yield "two colours", " | ".join(filter(None, parts)) if short else "suffice"


def _sums(found: Explained) -> str:
    """Return the sums of rows and columns."""
    if found.topology.push_sum:
        return "columns add up to 1, rows need not: each rank divides by its mixed weight"
    symmetric = all(abs(it - it.T).max() < 1e-12 for it in found.topology.matrices)
    return f"rows and columns add up to 1{', symmetric' if symmetric else ''}; all ranks connected"


def _size(nbytes: float) -> str:
    return size_text(round(nbytes))


def _matrices(found: Explained) -> Iterator[str]:
    topology = found.topology
    if topology.size > _PRINTED:
        yield f"--json prints M of {topology.size} ranks."
        yield ""
        return
    for turn, matrix in enumerate(topology.matrices[:_ROUNDS]):
        if topology.period > 1:
            yield f"round {turn}"
        yield from _matrix(matrix)
        yield ""
    if topology.period > _ROUNDS:
        yield f"… and {topology.period - _ROUNDS} further rounds"
        yield ""


def _matrix(matrix: Weights) -> Iterator[str]:
    cells = [[weight_text(it) for it in row] for row in matrix.tolist()]
    width = max(2, *(len(cell) for row in cells for cell in row)) + 1
    size = len(cells)
    yield "M".rjust(4) + "".join(str(j).rjust(width) for j in range(size))
    for i, row in enumerate(cells):
        yield str(i).rjust(4) + "".join(cell.rjust(width) for cell in row)


def weight_text(value: float) -> str:
    """Return a weight as a fraction if that is short.

    >>> weight_text(1 / 3), weight_text(0.0), weight_text(0.123456)
    ('1/3', '.', '0.123')
    """
    if value == 0:
        return "."
    near = Fraction(value).limit_denominator(99)
    if abs(float(near) - value) < 1e-12:
        return str(near)
    return f"{value:.3g}"


# --- the drawing ----------------------------------------------------------------------------

_INK, _SOFT, _EDGE = "#222222", "#555555", "#0072B2"
#: Backgrounds of the first colour and the second, if two suffice.
_TINTS = ("#CFE4F5", "#FBE3B5")
_MARGIN, _TOP, _NODE, _LINE = 28.0, 80.0, 12.0, 20.0


def draw(found: Explained) -> Canvas:
    """Return the drawing: the graph and the matrix of each round, and their properties.

    Raises:
        ConfigError: if there are too many ranks.
    """
    topology = found.topology
    if topology.size > MOST_DRAWN:
        raise ConfigError(f"svg draws at most {MOST_DRAWN} ranks, got {topology.size}")
    turns = min(topology.period, _ROUNDS)
    side = max(220.0, 16.0 * found.graphs[0].size)
    cell = min(34.0, max(9.0, side / topology.size))
    table = cell * topology.size
    # The matrix is next to the graph, or below it if there are several rounds.
    beside = turns == 1
    pitch = max(side + 2 * _NODE, table + 22) + 44
    lines = [*facts(found), ("", _REMARK)]
    texts = [text_width(title(found), 16), *(110 + text_width(text, 12) for _, text in lines)]
    width = max(pitch + table + 40 if beside else turns * pitch, *texts)
    below = _TOP + side + 2 * _NODE + 44
    bottom = (max(below - 20, _TOP + table) if beside else below + table) + 34
    canvas = Canvas(2 * _MARGIN + width, bottom + _LINE * len(lines) + 10, title(found))
    canvas.text(_MARGIN, 30, title(found), size=16, anchor="start", bold=True, fill=_INK)
    for turn in range(turns):
        left = _MARGIN + turn * pitch
        if turns > 1:
            canvas.text(left, 58, f"round {turn}", anchor="start", fill=_SOFT)
        _graph(canvas, found, found.graphs[turn], left + _NODE, _TOP + _NODE, side)
        x, y = (left + pitch + 22, _TOP) if beside else (left + 22, below)
        _heat(canvas, topology.matrices[turn], x, y, cell)
    for name, text in lines:
        canvas.text(_MARGIN, bottom, name, anchor="start", fill=_SOFT)
        canvas.text(_MARGIN + (110 if name else 0), bottom, text, anchor="start", fill=_INK)
        bottom += _LINE
    return canvas


def _graph(
    canvas: Canvas, found: Explained, graph: Graph, left: float, top: float, side: float
) -> None:
    """Draw ranks, or hosts with their ranks, and edges into a square."""
    places = places_of(found, left, top, side)
    # In a grid, the longest distance between neighbours: the first two ranks are neighbours.
    step = math.dist(*places[:2]) if _is_grid(found) else side
    for i, j in sorted(graph.edges):
        both = (j, i) in graph.edges
        if both and j < i:
            continue
        for (x, y), (to_x, to_y) in _ways(places[i], places[j], most=1.5 * step):
            # From rim to rim, so that arrowheads are visible.
            length = math.hypot(to_x - x, to_y - y)
            dx, dy = (to_x - x) / length * (_NODE + 1), (to_y - y) / length * (_NODE + 1)
            if both:
                canvas.line(x + dx, y + dy, to_x - dx, to_y - dy, stroke=_EDGE, width=1.3)
            else:
                canvas.arrow(x + dx, y + dy, to_x - dx, to_y - dy, stroke=_EDGE, width=1.1)
    starts = [0, *accumulate(found.hosts)]
    for node, (x, y) in enumerate(places):
        tint = _TINTS[0 if found.colours is None else found.colours[node]]
        canvas.circle(x, y, _NODE, fill=tint, stroke=_INK)
        canvas.text(x, y, str(node), size=10, fill=_INK)
        if found.hosts:
            first, last = starts[node], starts[node + 1] - 1
            text = f"rank {first}" if first == last else f"ranks {first}–{last}"
            away = _NODE + 9 if y > top else -_NODE - 9  # the first is at the top
            canvas.tag(x, y + away, text, fill=_SOFT, size=9)


def _is_grid(found: Explained) -> bool:
    return found.drawn == "grid" and found.graphs[0].size > 1


def _ways(
    start: tuple[float, float], end: tuple[float, float], *, most: float
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return the lines of an edge; one that wraps around a grid is drawn as two stubs."""
    (x, y), (to_x, to_y) = start, end
    dx, dy = to_x - x, to_y - y
    if math.hypot(dx, dy) < most:
        return [(start, end)]
    length = 3 * _NODE / math.hypot(dx, dy)
    return [
        (start, (x - dx * length, y - dy * length)),
        (end, (to_x + dx * length, to_y + dy * length)),
    ]


def places_of(found: Explained, left: float, top: float, side: float) -> list[tuple[float, float]]:
    """Return where each rank or host is: a grid, or a circle from its top; a star's hub inside."""
    size, radius = found.graphs[0].size, side / 2
    x, y = left + radius, top + radius
    if _is_grid(found):
        columns = min(c for c in range(1, size + 1) if size % c == 0 and c * c >= size)
        step = (side - 4 * _NODE) / (columns - 1)
        at = [divmod(node, columns) for node in range(size)]
        return [(left + 2 * _NODE + step * c, top + 2 * _NODE + step * r) for r, c in at]
    if size == 1:
        return [(x, y)]
    hub = found.drawn == "hub" and size > 2
    around = size - hub
    angles = [2 * math.pi * place / around for place in range(around)]
    ring = [(x + radius * math.sin(it), y - radius * math.cos(it)) for it in angles]
    return [(x, y), *ring] if hub else ring


def _heat(canvas: Canvas, matrix: Weights, left: float, top: float, cell: float) -> None:
    """Draw a matrix: the darker, the more weight."""
    size = len(matrix)
    most = float(matrix.max())
    canvas.text(left - 10, top - 10, "M", size=11, fill=_SOFT)
    for i in range(size):
        if cell >= 12 or i % 5 == 0:
            canvas.text(left - 10, top + cell * (i + 0.5), str(i), size=9, fill=_SOFT)
            canvas.text(left + cell * (i + 0.5), top - 10, str(i), size=9, fill=_SOFT)
        for j in range(size):
            value = float(matrix[i, j])
            canvas.rect(
                left + cell * j, top + cell * i, cell, cell,
                fill=_shade(value / most), stroke="#D5DAE0", line=0.6,
            )  # fmt: skip
            if value and cell >= 24:
                canvas.text(
                    left + cell * (j + 0.5), top + cell * (i + 0.5), weight_text(value),
                    size=9, fill="white" if value / most > 0.6 else _INK,
                )  # fmt: skip


def _shade(share: float) -> str:
    """Return a blue: white for 0, full for 1."""
    ends = zip((0xFF, 0xFF, 0xFF), (0x0B, 0x5C, 0x94), strict=True)
    return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in ends)
