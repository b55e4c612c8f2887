"""How one step of a collective reads: who hands over what, and what comes of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from psrt.collective import OPS
from psrt.explain.names import COMPLETE, numbers, ranges, spelt, sum_of
from psrt.explain.story import Holding, Hop
from psrt.explain.telling import Telling


def hop_text(telling: Telling, hop: Hop) -> tuple[str, str]:
    """Return what happens, and what the target has after it.

    For instance ``A → B: chunk 0 (A)`` and ``B holds A+B``.
    """
    source, target = telling.names[hop.source], telling.names[hop.target]
    place, into = place_text(telling, hop.send), place_text(telling, hop.receive)
    if hop.local:
        left = f"{source} {'folds' if hop.combine else 'copies'} {place} into {into}"
    else:
        if hop.send != hop.receive:
            place += f" into {into}"
        left = (
            f"{source} → {target}: {place} {_bracketed(_contents(telling, hop.send, hop.carried))}"
        )
    if telling.numbered:
        return left, f"{target}: {_sums(telling, hop)}"
    right = f"{target} holds {_contents(telling, hop.receive, hop.after, new=hop.combine)}"
    return left, right if hop.send == hop.receive else f"{right} in {into}"


def place_text(telling: Telling, cells: Sequence[int]) -> str:
    """Return what some cells are called: ``chunks 0–3``, ``vector``, or ``w1`` behind it."""
    vector = telling.story.cells.in_vector
    if cells[0] >= vector:
        return ranges(cells, vector)
    if vector == 1:
        return "vector"
    return f"chunk{'s' if len(cells) > 1 else ''} {ranges(cells, vector)}"


def symbol_text(telling: Telling, holding: Holding | None, *, new: bool) -> str:
    """Return whose numbers a holding is made of; ``new``: it has just been made."""
    if holding is None:
        return "–"
    full = telling.story.folds and holding.whose == (1 << telling.size) - 1
    if not full or telling.size == 1:
        return sum_of(holding.whose, telling.names)
    return spelt(holding.whose, telling.names) if new else COMPLETE


def _contents(
    telling: Telling, cells: Sequence[int], held: Sequence[Holding | None], *, new: bool = False
) -> str:
    """Return what some cells hold: once, if it is the same sum in all of them."""
    if telling.numbered:
        return " ".join(numbers(one.numbers) if one else "–" for one in held)
    groups: dict[Holding | None, list[int]] = {}
    for cell, one in zip(cells, held, strict=True):
        groups.setdefault(one, []).append(cell)
    texts = {one: symbol_text(telling, one, new=new) for one in groups}
    if len(groups) == 1:
        return next(iter(texts.values()))
    vector = telling.story.cells.in_vector
    return ", ".join(f"{ranges(found, vector)}: {texts[one]}" for one, found in groups.items())


def _sums(telling: Telling, hop: Hop) -> str:
    """Return the arithmetic of a hop: ``17 + 5 = 22``, or what was copied."""
    after = _contents(telling, hop.receive, hop.after)
    if not hop.combine:
        return after
    # What came stands first, as a person adds it up; the operations commute.
    came, had = (_contents(telling, hop.receive, held) for held in (hop.carried, hop.before))
    if sign := OPS[telling.op].sign:
        return f"{came} {sign} {had} = {after}"
    return f"{telling.op} of {came} and {had} = {after}"


def _bracketed(text: str) -> str:
    return text if text.startswith("(") and text.endswith(")") else f"({text})"
