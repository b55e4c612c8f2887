"""A collective as a film: one frame per round, with its messages and what ranks hold afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.core.units import plural, size_text, time_text
from psrt.views.explain.explanation import Explanation
from psrt.views.explain.output import costs_text, ending_text
from psrt.views.explain.trace import Content, Hop
from psrt.views.explain.words import COMPLETE, cell_name, hop_text, members, numbers, ranges
from psrt.views.film.film import Cell, Change, Cost, Film, Frame, Message, Plane, SoFar, Strip
from psrt.views.film.layout import circle, levels
from psrt.views.film.trees import spots_of, trees_of
from psrt.views.svg import text_width

#: Most ranks that can be distinguished.
MOST_RANKS = 32
#: Most cells in a row, and most that are wide enough for text.
_ABREAST, _WRITTEN = 16, 8
#: Colours of messages that are combined and copied, of a part of a sum, and of a complete sum.
_COMBINED, _COPIED, _PART, _WHOLE = 0, 2, 4, 2
#: Strength of the colour of one rank's numbers, and what the whole sum adds to it.
_WEAK, _MORE = 0.12, 0.4


def film_of(explanation: Explanation) -> Film:
    """Return the film of a collective.

    Raises:
        ConfigError: if there are too many ranks to be seen.
    """
    if explanation.size > MOST_RANKS:
        raise ConfigError(f"html and svg show at most {MOST_RANKS} ranks, got {explanation.size}")
    boxes = _Boxes(explanation)
    counts = [len(explanation.trace.cells.spans)] * explanation.size
    schedule, totals = explanation.schedule, explanation.totals
    kind = f", {_article(schedule.kind)}" if schedule.kind != schedule.name else ""
    return Film(
        title=f"{schedule.name}{kind} of {plural(explanation.size, 'rank')}",
        lead=schedule.summary,
        names=explanation.names,
        start=tuple(
            tuple(_cell(explanation, boxes, it) for it in held) for held in explanation.trace.start
        ),
        frames=tuple(_frames(explanation, boxes)),
        scene=replace(
            _plane(explanation, boxes.strip, counts),
            cells=tuple(cell_name(i, explanation.trace.cells.in_vector) for i in range(counts[0])),
        ),
        costs=tuple(_costs(explanation)),
        legend=tuple(_legend(explanation)),
        facts=(
            ("vector", _vector(explanation)),
            ("messages", f"{totals.price.messages}"),
            ("time", f"in the α-β-γ model: {costs_text(totals.costs)}"),
        ),
    )  # fmt: skip


def _plane(explanation: Explanation, strip: Strip, counts: Sequence[int]) -> Plane:
    """Return places on the levels of one tree or two, if messages follow such, else a circle."""
    names, trees = explanation.names, trees_of(explanation)
    if not (trees and (spots := spots_of(explanation, trees))):
        return circle(names, strip, counts, order=explanation.order or ())
    places = [(it.column, it.level) for it in spots]
    plane = levels(places, [it.free for it in spots], names, strip, counts)
    return replace(plane, edges=tuple(sorted(set().union(*trees))))


class _Boxes:
    """Size and labels of cells, the same for all ranks at all times."""

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        count = len(explanation.trace.cells.spans)
        #: Whether there is text in them.
        self.writes = count <= _WRITTEN
        labels = [self.label(held) for held in _ever(explanation)] if self.writes else []
        # Bold letters are wider by a ninth.
        widest = 1.12 * max((text_width(text, 11) for text in labels), default=0.0)
        width = max(26.0, widest + 10) if self.writes else 10.0
        height = 24.0 if self.writes else 13.0 if count <= _ABREAST else 10.0
        self.strip = Strip(width, height, self._columns(count))

    def _columns(self, count: int) -> int:
        """Return the number of cells in a row: many cells form roughly a square."""
        size = self._explanation.size
        if self._explanation.schedule.kind == "all-to-all" and count == size * size:
            return size  # the vector is a table of blocks: rows are sent, columns are received
        return max(count, 1) if self.writes else math.isqrt(count - 1) + 1

    def label(self, held: Content) -> str:
        """Return the text of a cell: its numbers, or the ranks that the sum contains."""
        explanation = self._explanation
        if explanation.numbered:
            text = numbers(held.numbers, most=4)
            return text if len(text) <= 16 else f"{len(held.numbers)} numbers"
        ranks = list(members(held.whose))
        if explanation.trace.folds and len(ranks) == explanation.size > 1:
            return COMPLETE
        if len(ranks) > 3 and ranks[-1] - ranks[0] == len(ranks) - 1:
            return f"{explanation.names[ranks[0]]}…{explanation.names[ranks[-1]]}"
        joined = "".join(explanation.names[rank] for rank in ranks)
        return joined if len(joined) <= 4 else f"{len(ranks)} of {explanation.size}"


def _ever(explanation: Explanation) -> set[Content]:
    """Return the contents of every rank at every time."""
    trace = explanation.trace
    found = {held for rank in trace.start for held in rank if held is not None}
    found |= {held for hop in trace.hops for held in hop.after if held is not None}
    return found | {
        held for rank in range(explanation.size) for _, held in explanation.result(rank)
    }


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _vector(explanation: Explanation) -> str:
    chunks = explanation.trace.cells.in_vector
    cut = "in one piece" if chunks == 1 else f"in {chunks} chunks"
    return f"{explanation.n} numbers, {size_text(explanation.n * ITEMSIZE)}, {cut}"


def _frames(explanation: Explanation, boxes: _Boxes) -> Iterator[Frame]:
    """Yield the start, a frame for each round, and the result."""
    trace, size = explanation.trace, explanation.size
    moved, combined = [[0] * size, [0] * size], [0] * size
    own = f"{plural(size, 'rank')}, each with its own numbers."
    first = own if trace.folds else "Nothing has been sent."
    yield Frame("start", first, costs=_so_far(explanation, 0, moved, combined))
    for number, hops in trace.by_round():
        for hop in hops:
            _count(explanation, hop, moved, combined)
        yield Frame(
            label=f"round {number}" if number else "before round 1",
            caption=_caption(hops),
            messages=tuple(_message(explanation, boxes, hop) for hop in hops),
            changes=tuple(
                Change(hop.target, index, _cell(explanation, boxes, held))
                for hop in hops
                for index, held in zip(hop.receive, hop.after, strict=True)
            ),
            costs=_so_far(explanation, number, moved, combined),
        )
    if explanation.n:
        yield _result(explanation, boxes, _so_far(explanation, trace.rounds, moved, combined))


def _result(explanation: Explanation, boxes: _Boxes, costs: tuple[SoFar, ...]) -> Frame:
    """Return the last frame, in which ranks hold only their results."""
    changes = []
    for rank in range(explanation.size):
        found = dict(explanation.result(rank))
        for index, held in enumerate(explanation.trace.end[rank]):
            if found.get(index) != held:
                cell = _cell(explanation, boxes, found.get(index))
                changes.append(Change(rank, index, cell))
    last = ending_text(explanation).splitlines()[-1]
    alike = explanation.size == 1 or last.startswith("all ranks")
    return Frame(
        "result",
        last if alike else "Each rank has its result.",
        changes=tuple(changes),
        costs=costs,
    )


def _caption(hops: Sequence[Hop]) -> str:
    """Return what happens in a round, in a sentence."""
    messages = [hop for hop in hops if not hop.local]
    local = len(hops) - len(messages)
    combined = sum(hop.combine for hop in messages)
    parts = []
    if messages:
        what = f"{combined} combined, {len(messages) - combined} copied"
        if combined in (0, len(messages)):
            what = "combined with the receiver's data" if combined else "copied"
            what = f"each {what}" if len(messages) > 1 else what
        parts.append(f"{plural(len(messages), 'message')}, {what}")
    if local:
        parts.append(f"{plural(local, 'step')} within a rank's memory")
    return "; ".join(parts) + "."


def _message(explanation: Explanation, boxes: _Boxes, hop: Hop) -> Message:
    left, right = hop_text(explanation, hop)
    vector = explanation.trace.cells.in_vector
    label = ranges(hop.send, vector)
    if hop.local:
        label = f"{ranges(hop.receive, vector)} {'+=' if hop.combine else '='} {label}"
    elif len(hop.send) == 1 and (held := hop.carried[0]) is not None:
        text = boxes.label(held)
        label = text if vector == 1 else f"{label}: {text}"
    return Message(
        hop.source, hop.target, label if len(label) <= 14 else f"{len(hop.send)} chunks",
        f"{left}   {right}", _COMBINED if hop.combine else _COPIED,
    )  # fmt: skip


def _cell(explanation: Explanation, boxes: _Boxes, held: Content | None) -> Cell:
    """Return a piece of what a rank holds; the more ranks' numbers, the stronger the colour."""
    if held is None:
        return Cell("")
    text = boxes.label(held) if boxes.writes else ""
    if not explanation.trace.folds:
        return Cell(text, next(members(held.whose)) % 7)
    size, count = explanation.size, held.whose.bit_count()
    if count == size:
        return Cell(text, _WHOLE, 0.42)
    return Cell(text, _PART, round(_WEAK + _MORE * (count - 1) / (size - 1), 2))


def _legend(explanation: Explanation) -> Iterator[tuple[str, int, float]]:
    messages = [hop for hop in explanation.trace.hops if not hop.local]
    if any(hop.combine for hop in messages):
        yield "message, combined", _COMBINED, 1.0
    if any(not hop.combine for hop in messages):
        yield "message, copied", _COPIED, 1.0
    if explanation.trace.folds and explanation.size > 1:
        yield "holds one rank's numbers", _PART, _WEAK
        yield "of several", _PART, _WEAK + _MORE
        name = explanation.fold_name
        whole = f"the {name} of all" if explanation.numbered else f"{COMPLETE}, the {name} of all"
        yield whole, _WHOLE, 0.42


def _count(
    explanation: Explanation, hop: Hop, moved: Sequence[list[int]], combined: list[int]
) -> None:
    """Add the bytes of a hop to those that each rank has sent, received and combined."""
    nbytes = ITEMSIZE * sum(explanation.trace.cells.spans[i].size for i in hop.send)
    if not hop.local:
        moved[0][hop.source] += nbytes
        moved[1][hop.target] += nbytes
    if hop.combine:
        combined[hop.target] += nbytes


def _costs(explanation: Explanation) -> Iterator[Cost]:
    totals = explanation.totals
    price, least = totals.price, totals.least

    def row(name: str, whole: float, bound: float, texts: tuple[str, str]) -> Cost:
        return Cost(name, *texts, bound / whole if whole else 1.0)

    yield row("rounds", price.rounds, least.rounds, (str(price.rounds), str(least.rounds)))
    yield row(
        "bytes of the busiest rank", totals.moved, least.moved,
        (size_text(totals.moved), size_text(least.moved)),
    )  # fmt: skip
    yield row(
        "bytes it combines", price.combined_max, least.combined,
        (size_text(price.combined_max), size_text(least.combined)),
    )  # fmt: skip
    yield row(
        "time", price.seconds, totals.bounds.seconds,
        (time_text(price.seconds), time_text(totals.bounds.seconds)),
    )  # fmt: skip


def _so_far(
    explanation: Explanation, number: int, moved: Sequence[list[int]], combined: list[int]
) -> tuple[SoFar, ...]:
    """Return the costs up to a round."""
    totals = explanation.totals
    price = totals.price

    def share(part: float, whole: float) -> float:
        return part / whole if whole else 0.0

    most = max(max(moved[0]), max(moved[1]))
    ended = number >= price.rounds
    seconds = price.seconds if ended else totals.arrivals[number - 1] if number else 0.0
    return (
        SoFar(str(number), share(number, price.rounds)),
        SoFar(size_text(most), share(most, totals.moved)),
        SoFar(size_text(max(combined)), share(max(combined), price.combined_max)),
        SoFar(time_text(seconds), share(seconds, price.seconds)),
    )
