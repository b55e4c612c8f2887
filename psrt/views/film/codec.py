"""A codec as a film: the vector, the encoded one, each field on the wire, and the decoded one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from psrt.codec.fields import Field
from psrt.core.arrays import ITEMSIZE, Vector
from psrt.core.units import plural, size_text
from psrt.views.explain.codec import CodedVectors, Step
from psrt.views.explain.codec_output import place_of, words_of
from psrt.views.film.film import Cell, Change, Cost, Film, Frame, Message, SoFar, Strip
from psrt.views.film.layout import RADIUS, placed

#: Colours of numbers from 0 up and below 0; of what is sent, and of the error.
_UP, _DOWN, _WIRE, _FEEDBACK = 0, 1, 2, 3
#: Fields of a frame on the wire that are shown one by one: more are put together.
_FIELDS = 24
#: Characters of a label, and numbers that are written into their cells, at most.
_LABEL, _WRITTEN = 14, 36


class _Ranks(NamedTuple):
    """Rows of the film, by number; None for a row that is not there."""

    vector: int
    encoded: int
    decoded: int
    kept: int | None

    @classmethod
    def of(cls, found: CodedVectors) -> _Ranks:
        """Return those of a codec: without error feedback the vector itself is encoded."""
        if found.error_feedback:
            return cls(0, 1, 2, 3)
        return cls(0, 0, 1, None)


def film_of(found: CodedVectors) -> Film:
    """Return the film of a codec."""
    ranks, n = _Ranks.of(found), found.steps[0].given.size
    strip = _strip(found)
    names = ["x", "x+e", "x̂", "e"] if found.error_feedback else ["x", "x̂"]
    wide = strip.width * min(n, strip.columns) + 70
    high = strip.height * -(-n // strip.columns) + 2 * RADIUS + 60
    across = wide if found.error_feedback else max(wide, 240.0)
    places = [(across * i, 0.0) for i in range(len(names) - found.error_feedback)]
    ways = [(0.0, -1.0)] * len(places)
    if found.error_feedback:
        places.append((across, max(high * 0.6, 110.0)))
        ways.append((0.0, 1.0))
    plain = ITEMSIZE * n * len(found.steps)
    sent = sum(step.nbytes for step in found.steps)
    return Film(
        title=f"codec {found.row.name}",
        lead=found.row.summary,
        names=tuple(names),
        start=tuple((Cell(""),) * n for _ in names),
        frames=tuple(_frames(found, ranks)),
        scene=placed(places, ways, names, strip, [n] * len(names)),
        costs=(Cost("bytes of frames", size_text(sent), size_text(plain), plain / sent),),
        bound="uncompressed",
        legend=tuple(_legend(found)),
        facts=(
            ("codec", words_of(found)),
            ("x", f"the vector, {plural(n, 'number')}, {size_text(ITEMSIZE * n)} uncompressed"),
            *((("x+e", "plus the error kept back from the vector before"),) * found.error_feedback),
            ("x̂", "what the receiver decodes"),
            *((("e", "the error that is kept back: x + e − x̂"),) * found.error_feedback),
        ),
    )


def _strip(found: CodedVectors) -> Strip:
    """Return cells that are wide enough for the longest number, or small ones if there are many."""
    n = found.steps[0].given.size
    columns = math.isqrt(n - 1) + 1
    if n > _WRITTEN:
        return Strip(11.0, 11.0, columns)
    vectors = [it for step in found.steps for it in (step.given, step.encoded, step.decoded)]
    vectors += [step.residual for step in found.steps if step.residual is not None]
    longest = max(len(_number(it)) for vector in vectors for it in vector.tolist())
    return Strip(max(32.0, 7.6 * longest + 10), 22.0, max(columns, min(n, 4)))


def _number(value: float) -> str:
    return f"{value:.4g}"


def _legend(found: CodedVectors) -> Iterator[tuple[str, int, float]]:
    yield "number, 0 or more", _UP, 0.4
    yield "below 0", _DOWN, 0.4
    yield "on the wire", _WIRE, 1.0
    if found.error_feedback:
        yield "added, kept back", _FEEDBACK, 1.0


def _changes(rank: int, vector: Vector, largest: float) -> Iterator[Change]:
    written = vector.size <= _WRITTEN
    for i, value in enumerate(vector.tolist()):
        share = abs(value) / largest if math.isfinite(value) and largest else 0.0
        strength = round(min(0.6, 0.08 + 0.5 * share), 2)
        text = _number(value) if written else ""
        yield Change(rank, i, Cell(text, _UP if value >= 0 else _DOWN, strength))


def _frames(found: CodedVectors, ranks: _Ranks) -> Iterator[Frame]:
    whole = sum(step.nbytes for step in found.steps)
    before = 0
    for number, step in enumerate(found.steps):
        name = f"step {number}: " if len(found.steps) > 1 else ""
        yield from _of_step(found, step, ranks, name, before, whole)
        before += step.nbytes


def _of_step(
    found: CodedVectors, step: Step, ranks: _Ranks, name: str, before: int, whole: int
) -> Iterator[Frame]:
    """Yield the frames of one vector."""
    finite = step.encoded[np.isfinite(step.encoded)]
    largest = float(abs(finite).max()) if finite.size else 0.0

    def costs(nbytes: float) -> tuple[SoFar, ...]:
        done = before + nbytes
        return (SoFar(size_text(round(done)), done / whole),)

    cleared = [
        Change(rank, i, Cell("")) for rank in {ranks.encoded, ranks.decoded} - {ranks.vector}
        for i in range(step.given.size)
    ]  # fmt: skip
    yield Frame(
        f"{name}the vector", "The sender has a vector.",
        changes=(*_changes(ranks.vector, step.given, largest), *cleared), costs=costs(0),
    )  # fmt: skip
    if ranks.kept is not None:
        add = [
            Message(ranks.vector, ranks.encoded, "", "the vector", _FEEDBACK),
            Message(ranks.kept, ranks.encoded, "+", "the kept error is added", _FEEDBACK),
        ]
        yield Frame(
            f"{name}plus kept back", "The error kept back from the vector before is added.",
            tuple(add), tuple(_changes(ranks.encoded, step.encoded, largest)), costs(0),
        )  # fmt: skip
    for group in _groups(step.fields):
        at = group[-1].at + group[-1].size
        yield Frame(
            f"{name}on the wire", _said(group), tuple(_sent(group, ranks)), costs=costs(at / 8)
        )
    yield Frame(
        f"{name}decoded", f"The receiver decodes {size_text(step.nbytes)}.{_lost(step)}",
        changes=tuple(_changes(ranks.decoded, step.decoded, largest)), costs=costs(step.nbytes),
    )  # fmt: skip
    if ranks.kept is not None and step.residual is not None:
        yield Frame(
            f"{name}kept back", "The error is kept back for the next vector.",
            (Message(ranks.encoded, ranks.kept, "−", "the error is kept back", _FEEDBACK),),
            tuple(_changes(ranks.kept, step.residual, largest)), costs(step.nbytes),
        )  # fmt: skip


def _groups(fields: Sequence[Field]) -> Iterator[Sequence[Field]]:
    """Yield fields one by one, or in groups if there are too many."""
    size = -(-len(fields) // _FIELDS)
    for start in range(0, len(fields), size):
        yield fields[start : start + size]


def _said(group: Sequence[Field]) -> str:
    first = group[0].meaning
    return f"{first[:1].upper()}{first[1:]}." if len(group) == 1 else f"{len(group)} fields."


def _sent(group: Sequence[Field], ranks: _Ranks) -> Iterator[Message]:
    for i, field in enumerate(group):
        label = field.bits if len(field.bits) <= _LABEL else f"{plural(field.size, 'bit')}"
        line = f"bytes {place_of(field)}: {field.bits}   {field.meaning}"
        yield Message(ranks.encoded, ranks.decoded, "" if i else label, line, _WIRE)


def _lost(step: Step) -> str:
    """Return the norm of the error relative to that of the encoded vector."""
    length = float(np.linalg.norm(step.encoded))
    lost = float(np.linalg.norm(step.encoded - step.decoded))
    if not (length and math.isfinite(length) and math.isfinite(lost)):
        return ""
    return f" The error has {lost / length:.1%} of the norm of the encoded vector."
