"""A comparison as text for people, and as JSON for programs. Pure.

The document:

============  ====================================================================================
key           value
============  ====================================================================================
format        ``"psrt explain compare 1"``
itemsize      bytes of an element
costs         ``alpha``, ``beta`` and ``gamma``, in seconds per message and per byte
rows          a list of ``{"ranks", "bytes", "seconds", "best", "least"}``: predicted seconds by
              algorithm, the fastest one, and the seconds that none can undercut
crossovers    a list of ``{"ranks", "algorithm", "from", "to"}``: the fastest, and in which bytes
============  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from psrt.collective.registry import ALGORITHMS
from psrt.explain.compare import Comparison, Row
from psrt.explain.telling import ITEMSIZE
from psrt.units import size_text, time_text

FORMAT = "psrt explain compare 1"
#: Stands behind the best time of a row.
_BEST = "*"


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Return what ``json.dumps`` takes."""
    return {
        "format": FORMAT,
        "itemsize": ITEMSIZE,
        "costs": asdict(comparison.costs),
        "rows": [
            {
                "ranks": row.ranks,
                "bytes": row.nbytes,
                "seconds": row.seconds,
                "best": row.best,
                "least": row.least,
            }
            for row in comparison.rows
        ],
        "crossovers": [
            {"ranks": ranks, "algorithm": name, "from": first, "to": last}
            for ranks in comparison.ranks
            if ranks > 1
            for name, first, last in comparison.stretches(ranks)
        ],
    }


def as_text(comparison: Comparison) -> str:
    """Return a table per number of ranks, then the crossovers."""
    costs = comparison.costs
    lines = [
        f"predicted time of an all-reduce, α = {time_text(costs.alpha)} a message, "
        f"β = {costs.beta * 1e9:.3g} ns and γ = {costs.gamma * 1e9:.3g} ns a byte",
        f"{_BEST} marks the fastest; least: the lower bound",
    ]
    for ranks in comparison.ranks:
        lines += ["", f"{_ranks(ranks)}"]
        lines += _table(comparison.of(ranks)) if ranks > 1 else ["nothing to sum"]
    lines += ["", "fastest:"]
    lines += [f"  {crossovers(comparison, ranks)}" for ranks in comparison.ranks if ranks > 1]
    return "\n".join(lines)


def crossovers(comparison: Comparison, ranks: int) -> str:
    """Return the sentence that says which algorithm is the fastest, and up to which size."""
    *before, last = comparison.stretches(ranks)
    if not before:
        return f"for {_ranks(ranks)}: {last.algorithm} throughout"
    parts = [f"{stretch.algorithm} up to {size_text(stretch.last)}" for stretch in before]
    return f"for {_ranks(ranks)}: {', '.join(parts)}, {last.algorithm} beyond"


def _ranks(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _table(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of a table: a row per size, a column per algorithm, the bound last."""
    header = _header(["bytes", *(f"{name} " for name in ALGORITHMS), "least "])
    body = [[size_text(row.nbytes), *_cells(row), f"{time_text(row.least)} "] for row in rows]
    widths = [max(map(len, column)) for column in zip(*header, *body, strict=True)]
    for cells in (*header, *body):
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield " ".join(padded).rstrip()


def _header(names: list[str]) -> list[list[str]]:
    """Return the lines of the header: names broken at their hyphens, standing at the bottom."""
    broken = [name.replace("-", "-\n").split("\n") for name in names]
    height = max(map(len, broken))
    columns = [[""] * (height - len(parts)) + parts for parts in broken]
    return [list(line) for line in zip(*columns, strict=True)]


def _cells(row: Row) -> Iterator[str]:
    best = row.best
    for name in ALGORITHMS:
        yield time_text(row.seconds[name]) + (_BEST if name == best else " ")
