"""A codec at work as text, and as JSON for programs.

=================  =================================================================================
key                value
=================  =================================================================================
format             ``"psrt explain codec 1"``
codec, summary     its name, and in a few words
knobs              by name
error_feedback     whether the error is added to the next vector
steps              ``given``, ``encoded``, ``decoded`` and ``residual`` (or null) are lists of n
                   numbers, null for nan and inf; ``nbytes`` are those of the frame; ``fields`` are
                   ``{"at", "size", "bits", "meaning"}``, with the first bit and the number of bits
=================  =================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from psrt.codec.fields import Field
from psrt.codec.frame import HEADER_BYTES
from psrt.config.checks import flag
from psrt.core.arrays import ITEMSIZE, Vector
from psrt.views.explain.codec import CodedVectors, Step

FORMAT = "psrt explain codec 1"
#: Bits in a line.
_WIDTH = 36


def as_document(found: CodedVectors) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "format": FORMAT,
        "codec": found.row.name,
        "summary": found.row.summary,
        "knobs": found.row.knobs,
        "error_feedback": found.error_feedback,
        "steps": [
            {
                "given": _numbers(step.given),
                "encoded": _numbers(step.encoded),
                "decoded": _numbers(step.decoded),
                "residual": None if step.residual is None else _numbers(step.residual),
                "nbytes": step.nbytes,
                "fields": [field._asdict() for field in step.fields],
            }
            for step in found.steps
        ],
    }


def _numbers(vector: Vector) -> list[float | None]:
    return [float(it) if math.isfinite(it) else None for it in vector]


def as_text(found: CodedVectors) -> str:
    """Return the text."""
    lines = [f"{found.row.name}: {found.row.summary}"]
    lines.append(f"settings: {words_of(found)}")
    for i, step in enumerate(found.steps):
        if len(found.steps) > 1:
            lines += ["", f"step {i}"]
        lines += ["", *_table(step, fed_back=found.error_feedback), "", *_wire(step)]
    return "\n".join(lines)


def words_of(found: CodedVectors) -> str:
    """Return the words of ``psrt explain codec`` that give the same again."""
    row, is_fed_back = found.row, found.error_feedback
    told = [flag("error_feedback", is_fed_back)] if is_fed_back or row.is_fed_back else []
    return " ".join([row.text, *told])


def _table(step: Step, *, fed_back: bool) -> Iterator[str]:
    columns = [("", [f"[{i}]" for i in range(step.given.size)]), ("before", _texts(step.given))]
    if fed_back:
        columns.append(("plus kept back", _texts(step.encoded)))
    columns.append(("after", _texts(step.decoded)))
    if step.residual is not None:
        columns.append(("kept back", _texts(step.residual)))
    widths = [max(len(head), *map(len, texts)) for head, texts in columns]
    yield _row([head for head, _ in columns], widths)
    for i in range(step.given.size):
        yield _row([texts[i] for _, texts in columns], widths)


def _texts(vector: Vector) -> list[str]:
    return [f"{it:.6g}" for it in vector]


def _row(cells: list[str], widths: list[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _wire(step: Step) -> Iterator[str]:
    n = step.given.size
    yield (
        f"on the wire: {HEADER_BYTES} bytes of header and {step.nbytes - HEADER_BYTES} of payload, "
        f"instead of {ITEMSIZE * n}"
    )
    for field in step.fields:
        where, bits, meaning = place_of(field), field.bits, field.meaning
        lines = [bits[i : i + _WIDTH].rstrip() for i in range(0, len(bits), _WIDTH)]
        yield f"  {where:>7}  {lines[0]:<{_WIDTH}}  {meaning}"
        yield from (f"  {'':>7}  {line}" for line in lines[1:])


def place_of(field: Field) -> str:
    """Return the bytes of a field, and its first bit unless it fills whole bytes.

    >>> place_of(Field(32, 32, "", "")), place_of(Field(35, 3, "", ""))
    ('4-7', '4.3')
    """
    first, last = field.at // 8, (field.at + field.size - 1) // 8
    where = f"{first}" if first == last else f"{first}-{last}"
    return f"{where}.{field.at % 8}" if field.size % 8 or field.at % 8 else where
