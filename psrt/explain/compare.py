"""Find the fastest all-reduce: predicted times by number of ranks and bytes. Pure.

Times are those of the closed forms for float32 where every message costs the same, as between
hosts of one rank each.

The document:

============  ====================================================================================
key           value
============  ====================================================================================
format        ``"psrt explain compare 1"``
itemsize      bytes of an element
costs         ``alpha``, ``beta`` and ``gamma``, in seconds per message and per byte
rows          a list of ``{"ranks", "bytes", "seconds", "best", "least"}``: predicted seconds by
              algorithm, the fastest one, and the lower bound in seconds
crossovers    a list of ``{"ranks", "algorithm", "from", "to"}``: the fastest in a range of bytes
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

#: Relative precision of a crossover: a 64th of its bytes.
_CLOSE = 64


class Stretch(NamedTuple):
    """The sizes for which one algorithm is the fastest."""

    algorithm: str
    #: Smallest and largest bytes of the vector: the ends of the comparison, or the crossovers to
    #: the neighbouring stretches.
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Row:
    """Predictions for one vector size on one number of ranks."""

    ranks: int
    nbytes: int
    #: Predicted time by algorithm, in seconds.
    seconds: dict[str, float]
    #: Lower bound of every all-reduce, in seconds.
    least: float

    @property
    def best(self) -> str:
        """The fastest algorithm; on a tie the first in the order of ``ALGORITHMS``."""
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
        """Return the fastest algorithm of each range of sizes, the shortest vector first.

        Between two compared sizes with different winners the crossover is found by bisection. An
        algorithm that wins only in between is found if bisection happens to probe its range.
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
    """Predict the time of every all-reduce for every size on every number of ranks.

    Args:
        ranks: numbers of ranks, ≥ 1, ascending, at least one.
        sizes: vector sizes in bytes, ≥ 1, ascending, at least one.
        costs: α, β and γ of every message.

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
    """Yield each winner from ``low`` to ``high`` bytes with the end of its range."""
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
#: Marks the best time of a row.
_BEST = "*"


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Return the document as objects for ``json.dumps``."""
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
    """Return a sentence with the fastest algorithms and the sizes up to which they are."""
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
    """Return the lines of the header: names broken at their hyphens, aligned at the bottom."""
    broken = [name.replace("-", "-\n").split("\n") for name in names]
    height = max(map(len, broken))
    columns = [[""] * (height - len(parts)) + parts for parts in broken]
    return [list(line) for line in zip(*columns, strict=True)]


def _cells(row: Row) -> Iterator[str]:
    best = row.best
    for name in ALGORITHMS:
        yield time_text(row.seconds[name]) + (_BEST if name == best else " ")
