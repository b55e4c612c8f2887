"""A topology as a film: one frame per round, of random numbers that neighbours average."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice

from psrt.core.errors import ConfigError
from psrt.core.units import size_text
from psrt.topology import Graph
from psrt.topology.mixing import Weights
from psrt.topology.spectrum import disagreement, simulated
from psrt.views.explain.gossip import Explained
from psrt.views.explain.gossip_output import MOST_DRAWN, facts, places_of, title, weight_text
from psrt.views.film.film import Cell, Change, Cost, Film, Frame, Message, Node, Plane, SoFar, Strip
from psrt.views.film.layout import RADIUS, circle, placed

#: It ends once this share of the disagreement remains, or after this number of rounds.
_ENDS, _ROUNDS = 0.01, 100
#: Most messages of a round that are listed, and most that have a label each.
_LISTED, _LABELLED = 160, 24
#: Colours of numbers above the mean and below it, of messages; and of a number at the mean.
_ABOVE, _BELOW, _SENT = 1, 0, 2
_STRIP = Strip(46.0, 22.0, 1)
#: Distance of ranks in a grid; and least radius of a circle, so that there is room for weights.
_PITCH, _RADIUS = 104.0, 165.0


def film_of(found: Explained) -> Film:
    """Return the film of a topology.

    Raises:
        ConfigError: if there are too many ranks.
    """
    if found.topology.size > MOST_DRAWN:
        raise ConfigError(f"html plays at most {MOST_DRAWN} ranks, got {found.topology.size}")
    values = _values(found)
    names = tuple(map(str, range(found.graphs[0].size)))
    heading, _, doc = title(found).partition(": ")
    edges = sorted({(min(edge), max(edge)) for graph in found.graphs for edge in graph.edges})
    who = "host" if found.hosts else "rank"
    notes = []
    most = max(len(graph.edges) for graph in found.graphs)
    if most > _LISTED:
        notes.append(f"A round has {most} messages, which are drawn as lines and not listed.")
    if len(values) > _ROUNDS:
        notes.append(f"Only the first {_ROUNDS} rounds are played.")
    return Film(
        title=heading,
        lead=doc,
        names=names,
        start=tuple((cell,) for cell in _cells(found, values[0], values[0])),
        frames=tuple(_frames(found, values, edges)),
        scene=replace(_plane(found, names), edges=tuple(edges)),
        costs=tuple(_costs(found, values)),
        legend=(
            (f"what a {who} holds, above the mean", _ABOVE, 0.45),
            ("below it", _BELOW, 0.45),
            ("message", _SENT, 1.0),
        ),
        facts=tuple(facts(found)),
        reading=(
            f"Each {who} starts with random numbers. Only the first one is shown, but the "
            "disagreement is that of all of them.",
        ),
        notes=tuple(notes),
    )


def _values(found: Explained) -> list[Weights]:
    """Return what ranks have at the start and after each round, (N, elements) each."""
    topology = found.topology
    rounds = simulated(topology.matrices, push_sum=topology.push_sum, seed=found.seed)
    values: list[Weights] = []
    for it in islice(rounds, _ROUNDS + 1):
        values.append(it)
        if disagreement(it) <= _ENDS * disagreement(values[0]):
            break
    return values


def _plane(found: Explained, names: Sequence[str]) -> Plane:
    """Return places as the drawing has them: a grid, a star with its hub inside, or a circle."""
    count = len(names)
    if found.drawn == "grid" and count > 1:
        places = places_of(found, 0.0, 0.0, 1000.0)
        step = math.dist(places[0], places[1]) / _PITCH
        spread = [(x / step, y / step) for x, y in places]
        return placed(spread, [(math.sqrt(0.5),) * 2] * count, names, _STRIP, [1] * count)
    if found.drawn == "hub" and count > 2:
        around = circle(names[1:], _STRIP, [1] * (count - 1), least=_RADIUS)
        x = sum(it.x for it in around.nodes) / (count - 1)
        y = sum(it.y for it in around.nodes) / (count - 1)
        # The hub's numbers are drawn between its first two edges.
        angle, away = math.pi / (count - 1), RADIUS + 0.7 * _STRIP.width
        left = x + away * math.sin(angle) - _STRIP.width / 2
        top = y - away * math.cos(angle) - _STRIP.height / 2
        hub = Node(names[0], round(x, 1), round(y, 1), round(left, 1), round(top, 1))
        return replace(around, nodes=(hub, *around.nodes))
    return circle(names, _STRIP, [1] * count, least=_RADIUS)


def _cells(found: Explained, values: Weights, start: Weights) -> list[Cell]:
    """Return the first number of each rank, or of a host the mean of its ranks."""
    mean = float(values[:, 0].mean())
    spread = float(abs(start[:, 0] - start[:, 0].mean()).max()) or 1.0
    cells = []
    first = 0
    for count in found.hosts or [1] * len(values):
        value = float(values[first : first + count, 0].mean())
        first += count
        strength = round(min(0.6, 0.6 * abs(value - mean) / spread), 2)
        cells.append(Cell(f"{value:+.2f}", _ABOVE if value > mean else _BELOW, strength))
    return cells


def _frames(
    found: Explained, values: Sequence[Weights], edges: Sequence[tuple[int, int]]
) -> Iterator[Frame]:
    start = values[0]
    whole = disagreement(start) or 1.0
    before = _cells(found, start, start)
    yield Frame("start", "Each has its own numbers.", costs=_so_far(found, 0, len(values) - 1, 1.0))
    number = {edge: i for i, edge in enumerate(edges)}
    rounds = zip(cycle(found.graphs), cycle(found.topology.matrices), values[1:], strict=False)
    for turn, (graph, matrix, after) in enumerate(rounds, 1):
        cells = _cells(found, after, start)
        left = disagreement(after) / whole
        yield Frame(
            label=f"round {turn}",
            caption=_caption(found, turn, left),
            messages=tuple(_messages(found, graph, matrix)),
            changes=tuple(
                Change(rank, 0, cell)
                for rank, cell in enumerate(cells)
                if cell != before[rank]
            ),
            costs=_so_far(found, turn, len(values) - 1, left),
            edges=tuple(sorted({number[min(it), max(it)] for it in graph.edges})),
        )  # fmt: skip
        before = cells


def _caption(found: Explained, turn: int, left: float) -> str:
    """Return how much disagreement remains, and the most that the gap allows."""
    text = f"{left:.1%} of the disagreement remains"
    topology = found.topology
    if not topology.push_sum and turn % topology.period == 0:
        most = topology.contraction ** (turn // topology.period)
        text += f"; the spectral gap allows at most {most:.1%}"
    return f"{text}."


def _messages(found: Explained, graph: Graph, matrix: Weights) -> Iterator[Message]:
    if len(graph.edges) > _LISTED:
        return
    shares = found.topology.push_sum
    for i, j in sorted(graph.edges):
        if found.hosts:
            yield Message(i, j, "", f"host {i} → host {j}: the mean of its ranks", _SENT)
            continue
        weight = weight_text(float(matrix[j, i]))
        what = f"a share of {weight}" if shares else f"its vector, which {j} takes with {weight}"
        label = weight if len(graph.edges) <= _LABELLED else ""
        yield Message(i, j, label, f"{i} → {j}: {what}", _SENT)


def _costs(found: Explained, values: Sequence[Weights]) -> Iterator[Cost]:
    rounds = len(values) - 1
    left = disagreement(values[-1]) / (disagreement(values[0]) or 1.0)
    sent = max(found.sent) * rounds
    yield Cost("rounds", str(rounds), "", 0.0)
    yield Cost("remaining disagreement", f"{left:.1%}", "", 0.0)
    who = "host" if found.hosts else "rank"
    yield Cost(
        f"bytes of the busiest {who}; at least: those of an all-reduce, which is exact",
        size_text(round(sent)), size_text(round(found.all_reduce)),
        min(1.0, found.all_reduce / sent) if sent else 0.0,
    )  # fmt: skip


def _so_far(found: Explained, turn: int, rounds: int, left: float) -> tuple[SoFar, ...]:
    share = turn / rounds if rounds else 0.0
    return (
        SoFar(str(turn), share),
        SoFar(f"{left:.1%}", left),
        SoFar(size_text(round(max(found.sent) * turn)), share),
    )
