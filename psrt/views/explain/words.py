"""Names of ranks, sums, chunks and steps in printed texts. Pure: numbers in, texts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.collective import OPS
from psrt.core.partition import Span
from psrt.views.explain.explanation import Explanation
from psrt.views.explain.trace import Content, Hop

#: The complete sum of all ranks' numbers.
COMPLETE = "Σ"
#: Most ranks named in the sum that completes a chunk; with more it is only Σ.
_SPELT = 8


def members(mask: int) -> Iterator[int]:
    """Yield the ranks of a bit mask, lowest first.

    >>> list(members(0b1101))
    [0, 2, 3]
    """
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def sum_of(mask: int, names: Sequence[str]) -> str:
    """Return the sum of some ranks' numbers as text; three or more neighbours become a range.

    >>> sum_of(0b1011, "ABCD"), sum_of(0b11101111, "ABCDEFGH")
    ('A+B+D', 'A…D+F…H')
    """
    runs: list[list[int]] = []
    for rank in members(mask):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shortens = mask.bit_count() > 4
    parts: list[str] = []
    for run in runs:
        if shortens and len(run) > 2:
            parts.append(f"{names[run[0]]}…{names[run[-1]]}")
        else:
            parts += [names[rank] for rank in run]
    return "+".join(parts)


def spelt(mask: int, names: Sequence[str]) -> str:
    """Return the result of a combination: ``A+B``, or ``A+B+C = Σ`` if it is complete."""
    size = len(names)
    if mask.bit_count() < size:
        return sum_of(mask, names)
    if size > _SPELT:
        return COMPLETE
    return f"{'+'.join(names)} = {COMPLETE}"


def cell_name(index: int, vector_cells: int) -> str:
    """Return the name of a cell: its number, or ``w`` and a number in the workspace.

    >>> cell_name(3, 4), cell_name(5, 4)
    ('3', 'w1')
    """
    return str(index) if index < vector_cells else f"w{index - vector_cells}"


def ranges(indices: Sequence[int], vector_cells: int) -> str:
    """Return cell numbers as text, neighbours joined to a range.

    >>> ranges([0, 1, 2, 5, 7, 8], 20)
    '0–2 5 7–8'
    """
    texts: list[str] = []
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1 and index != vector_cells:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    for first, last in runs:
        start = cell_name(first, vector_cells)
        texts.append(start if first == last else f"{start}–{cell_name(last, vector_cells)}")
    return " ".join(texts)


def number(value: float) -> str:
    """Format a number of an example: integers in full, others with six digits.

    >>> number(37), number(9.25), number(1 / 3), number(1e300)
    ('37', '9.25', '0.333333', '1e+300')
    """
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def numbers(values: Sequence[float], most: int = 8) -> str:
    """Format a cell's numbers: one alone, several in parentheses, only the first of many.

    >>> numbers([17]), numbers([1, 2]), numbers([1, 2, 3], most=2)
    ('17', '(1, 2)', '(1, 2, … 3 in all)')
    """
    if len(values) == 1:
        return number(values[0])
    shown = ", ".join(map(number, values[:most]))
    return f"({shown}, … {len(values)} in all)" if len(values) > most else f"({shown})"


def sizes(cells: Sequence[Span]) -> str:
    """Return the number of elements of the cells, or its range.

    >>> sizes([Span(0, 4), Span(4, 7)])
    '3 or 4 elements'
    """
    found = sorted({cell.size for cell in cells})
    if len(found) == 1:
        return f"{found[0]} element{'' if found[0] == 1 else 's'}"
    return f"{found[0]} {'or' if len(found) == 2 else 'to'} {found[-1]} elements"


def hop_text(explanation: Explanation, hop: Hop) -> tuple[str, str]:
    """Return a hop, and the target's content after it, as text.

    For instance ``A → B: chunk 0 (A)`` and ``B holds A+B``.
    """
    source, target = explanation.names[hop.source], explanation.names[hop.target]
    place, into = place_text(explanation, hop.send), place_text(explanation, hop.receive)
    if hop.local:
        left = f"{source} {'combines' if hop.combine else 'copies'} {place} into {into}"
    else:
        if hop.send != hop.receive:
            place += f" into {into}"
        what = _bracketed(_contents(explanation, hop.send, hop.carried))
        left = f"{source} → {target}: {place} {what}"
    if explanation.numbered:
        return left, f"{target}: {_sums(explanation, hop)}"
    right = f"{target} holds {_contents(explanation, hop.receive, hop.after, new=hop.combine)}"
    return left, right if hop.send == hop.receive else f"{right} in {into}"


def place_text(explanation: Explanation, cells: Sequence[int]) -> str:
    """Return the name of some cells: ``chunks 0–3``, ``vector``, or ``w1`` in the workspace."""
    vector = explanation.trace.cells.in_vector
    if cells[0] >= vector:
        return ranges(cells, vector)
    if vector == 1:
        return "vector"
    return f"chunk{'s' if len(cells) > 1 else ''} {ranges(cells, vector)}"


def symbol_text(explanation: Explanation, content: Content | None, *, new: bool) -> str:
    """Return the ranks that a content sums, as text; ``new`` if this hop made it."""
    if content is None:
        return "–"
    full = explanation.trace.folds and content.whose == (1 << explanation.size) - 1
    if not full or explanation.size == 1:
        return sum_of(content.whose, explanation.names)
    return spelt(content.whose, explanation.names) if new else COMPLETE


def _contents(
    explanation: Explanation,
    cells: Sequence[int],
    held: Sequence[Content | None],
    *,
    new: bool = False,
) -> str:
    """Return the contents of some cells; a sum common to all of them only once."""
    if explanation.numbered:
        return " ".join(numbers(one.numbers) if one else "–" for one in held)
    groups: dict[Content | None, list[int]] = {}
    for cell, one in zip(cells, held, strict=True):
        groups.setdefault(one, []).append(cell)
    texts = {one: symbol_text(explanation, one, new=new) for one in groups}
    if len(groups) == 1:
        return next(iter(texts.values()))
    vector = explanation.trace.cells.in_vector
    return ", ".join(f"{ranges(found, vector)}: {texts[one]}" for one, found in groups.items())


def _sums(explanation: Explanation, hop: Hop) -> str:
    """Return the arithmetic of a hop: ``17 + 5 = 22``, or the numbers copied."""
    after = _contents(explanation, hop.receive, hop.after)
    if not hop.combine:
        return after
    # The received number first, as a person would add it; the operations commute.
    came, had = (_contents(explanation, hop.receive, held) for held in (hop.carried, hop.before))
    if sign := OPS[explanation.op].sign:
        return f"{came} {sign} {had} = {after}"
    return f"{explanation.op} of {came} and {had} = {after}"


def _bracketed(text: str) -> str:
    return text if text.startswith("(") and text.endswith(")") else f"({text})"
