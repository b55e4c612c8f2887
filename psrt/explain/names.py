"""What ranks, their sums and their chunks are called in print. Pure: numbers in, texts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.partition import Span

#: The fold of everybody's numbers, once it is complete.
COMPLETE = "Σ"
#: Ranks whose names are written out, in the sum that completes a chunk; more are just Σ.
_SPELT = 8


def default_names(size: int) -> tuple[str, ...]:
    """Return A, B, C, … as long as the alphabet lasts, else 0, 1, 2, ….

    >>> default_names(3), default_names(27)[-1]
    (('A', 'B', 'C'), '26')
    """
    if size <= 26:
        return tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:size])
    return tuple(map(str, range(size)))


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
    """Return the sum of some ranks' numbers as text; three neighbours and more are a range.

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
    """Return a sum that a fold has just made: ``A+B``, or ``A+B+C = Σ`` if it is complete."""
    size = len(names)
    if mask.bit_count() < size:
        return sum_of(mask, names)
    if size > _SPELT:
        return COMPLETE
    return f"{'+'.join(names)} = {COMPLETE}"


def cell_name(index: int, vector_cells: int) -> str:
    """Return what a cell is called: its number, or ``w`` and a number in the workspace.

    >>> cell_name(3, 4), cell_name(5, 4)
    ('3', 'w1')
    """
    return str(index) if index < vector_cells else f"w{index - vector_cells}"


def ranges(indices: Sequence[int], vector_cells: int) -> str:
    """Return cell numbers as text, neighbours as a range.

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
    """Return a number of an example: whole ones as they are, others to six digits.

    >>> number(37), number(9.25), number(1 / 3), number(1e300)
    ('37', '9.25', '0.333333', '1e+300')
    """
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def numbers(values: Sequence[float], most: int = 8) -> str:
    """Return a cell's numbers: bare if it is one, else in brackets, the first of many.

    >>> numbers([17]), numbers([1, 2]), numbers([1, 2, 3], most=2)
    ('17', '(1, 2)', '(1, 2, … 3 in all)')
    """
    if len(values) == 1:
        return number(values[0])
    shown = ", ".join(map(number, values[:most]))
    return f"({shown}, … {len(values)} in all)" if len(values) > most else f"({shown})"


def sizes(cells: Sequence[Span]) -> str:
    """Return how many elements the cells have.

    >>> sizes([Span(0, 4), Span(4, 7)])
    '3 or 4 elements'
    """
    found = sorted({cell.size for cell in cells})
    if len(found) == 1:
        return f"{found[0]} element{'' if found[0] == 1 else 's'}"
    return f"{found[0]} {'or' if len(found) == 2 else 'to'} {found[-1]} elements"
