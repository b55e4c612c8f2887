"""Which all-reduce is the fastest where: predicted times over numbers of ranks and bytes. Pure.

The times are those of the closed forms for float32, every message
costing the same, as between hosts of one rank each.

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

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from psrt.arrays import ITEMSIZE
from psrt.collective.analysis.choose import fastest
from psrt.collective.analysis.cost import lower_bounds
from psrt.collective.costs import LinkCosts
from psrt.collective.registry import ALGORITHMS
from psrt.units import size_text, time_text

#: How closely a crossover is found: to the 64th part of its bytes.
_CLOSE = 64


class Stretch(NamedTuple):
    """The sizes for which one algorithm is the fastest."""

    algorithm: str
    #: Bytes of the vector, the smallest and the largest: of what was compared, or where it meets
    #: the next stretch.
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Row:
    """One vector on one number of ranks."""

    ranks: int
    nbytes: int
    #: Predicted time by algorithm, in seconds.
    seconds: dict[str, float]
    #: No all-reduce can undercut this, in seconds.
    least: float

    @property
    def best(self) -> str:
        """The fastest algorithm; of several the first in the order of ``ALGORITHMS``."""
        return fastest(self.seconds)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predicted times of all all-reduces."""

    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    costs: LinkCosts
    #: In the order of ``ranks``, then of ``sizes``.
    rows: tuple[Row, ...]

    def of(self, ranks: int) -> list[Row]:
        """Return the rows of one number of ranks, the shortest vector first."""
        return [row for row in self.rows if row.ranks == ranks]

    def stretches(self, ranks: int) -> list[Stretch]:
        """Return who is the fastest, from the shortest vector on.

        Between two compared sizes with different winners the crossover is found by halving; what
        wins neither here nor there, but in between, is found too where halving meets it.
        """
        found = [Stretch(fastest(_times(ranks, self.sizes[0], self.costs)), *self.sizes[:1] * 2)]
        for low, high in pairwise(self.sizes):
            for name, until in _winners(ranks, low, high, self.costs):
                last = found[-1]
                if name == last.algorithm:
                    found[-1] = last._replace(last=until)
                else:
                    found.append(Stretch(name, last.last, until))
        return found


def compare(ranks: Sequence[int], sizes: Sequence[int], costs: LinkCosts) -> Comparison:
    """Predict all times.

    Args:
        ranks: numbers of ranks, ≥ 1, rising.
        sizes: bytes of the vector, ≥ 1, rising; at least one of each.
        costs: of a message.

    >>> found = compare([16], [1 << 10, 1 << 30], LinkCosts(alpha=25e-6, beta=1e-9, gamma=1e-10))
    >>> [row.best for row in found.rows]
    ['butterfly', 'halving-doubling']
    """
    rows = tuple(
        Row(p, nbytes, _times(p, nbytes, costs), lower_bounds(p, nbytes, costs).seconds)
        for p in ranks
        for nbytes in sizes
    )
    return Comparison(tuple(ranks), tuple(sizes), costs, rows)


def _times(ranks: int, nbytes: int, costs: LinkCosts) -> dict[str, float]:
    return {
        name: row.seconds(ranks, nbytes, costs, itemsize=ITEMSIZE)
        for name, row in ALGORITHMS.items()
    }


def _winners(ranks: int, low: int, high: int, costs: LinkCosts) -> Iterator[tuple[str, int]]:
    """Yield who wins from ``low`` on, and until where, up to ``high``."""
    first, last = (fastest(_times(ranks, nbytes, costs)) for nbytes in (low, high))
    if first == last:
        yield first, high
    elif high - low <= max(1, low // _CLOSE):
        yield first, low
        yield last, high
    else:
        middle = (low + high) // 2
        yield from _winners(ranks, low, middle, costs)
        yield from _winners(ranks, middle, high, costs)


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
