"""Find the fastest all-reduce: predicted times by number of ranks and bytes; text, JSON, plot.

Times come from the closed forms for float32. Every message costs the same, as between hosts with
one rank each.

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

Matplotlib is imported only when a plot is drawn. Colours are those of Okabe and Ito, which
colour-blind readers can distinguish; variants of an algorithm are dashed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

from psrt.collective.analysis.choose import fastest
from psrt.collective.analysis.cost import lower_bounds
from psrt.collective.costs import LinkCosts
from psrt.collective.registry import ALGORITHMS
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.core.units import size_text, time_text
from psrt.report.figure import blank, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Relative precision of a crossover: a 64th of its bytes.
_CLOSE = 64


class Stretch(NamedTuple):
    """A range of sizes for which one algorithm is the fastest."""

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

        If two compared sizes have different winners, the crossover between them is found by
        bisection. An algorithm that wins only in between is found if bisection probes its range.
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
        f"predicted time of an all-reduce, α = {time_text(costs.alpha)} per message, "
        f"β = {costs.beta * 1e9:.3g} ns and γ = {costs.gamma * 1e9:.3g} ns per byte",
        f"{_BEST} marks the fastest; least: the lower bound",
    ]
    for ranks in comparison.ranks:
        lines += ["", f"{_ranks(ranks)}"]
        lines += _table(comparison.of(ranks)) if ranks > 1 else ["nothing to sum"]
    lines += ["", "fastest:"]
    lines += [f"  {crossovers(comparison, ranks)}" for ranks in comparison.ranks if ranks > 1]
    return "\n".join(lines)


def crossovers(comparison: Comparison, ranks: int) -> str:
    """Return a sentence with the fastest algorithms, each with its largest size."""
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


#: By position in the registry; further algorithms use them again, with dots.
_COLOURS = (
    "#009E73", "#D55E00", "#0072B2", "#56B4E9", "#E69F00", "#B8A800", "#CC79A7", "#777777",
    "#AAAAAA",
)  # fmt: skip
#: Most panels of times; of more numbers of ranks an evenly spread selection is shown.
_PANELS = 3
#: Number of sizes on a curve, from the smallest to the largest.
_FINE = 160
#: Labels of the curves' vertical axis; longer times leave the panel.
_MULTIPLES = (1, 2, 5, 10, 20, 50, 100)
_WORST = _MULTIPLES[-1]
#: Narrowest range of the map with room for a name, as a fraction of the map's width.
_ROOM = 0.2


def plot(comparison: Comparison, path: str | PathLike[str]) -> None:
    """Draw panels of time over bytes, a line per algorithm, and a map of the fastest.

    Args:
        comparison: with at least two sizes and one number of ranks above 1.
        path: the file to write; its ending chooses the format.

    Raises:
        ConfigError: if the comparison is too small, matplotlib is not installed, or the file
            cannot be written.
    """
    ranks = [p for p in comparison.ranks if p > 1]
    if not ranks or len(comparison.sizes) < 2:
        raise ConfigError("a plot needs a number of ranks above 1 and at least two sizes")
    if min(row.least for row in comparison.rows if row.ranks > 1) == 0:
        raise ConfigError("a plot needs costs above 0")
    fine = compare(ranks, _between(comparison.sizes[0], comparison.sizes[-1]), comparison.costs)
    shown = _spread(ranks, _PANELS)
    figure = _figure(panels=len(shown) + (len(ranks) > 1))
    costs = comparison.costs
    figure.suptitle(
        f"Predicted time of an all-reduce: α = {time_text(costs.alpha)} per message, "
        f"β = {costs.beta * 1e9:.3g} ns and γ = {costs.gamma * 1e9:.3g} ns per byte",
        fontsize=11,
    )
    axes = list(figure.axes)
    for panel, p in zip(axes, shown, strict=False):
        _draw_times(panel, fine, p)
    handles, labels = axes[0].get_legend_handles_labels()
    if len(ranks) > 1:
        _map(axes[-1], comparison, ranks)
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    save(figure, path)


def _style(name: str) -> tuple[str, str]:
    """Return the colour and dashes of an algorithm, dashed where it is a variant of another."""
    index = list(ALGORITHMS).index(name)
    variant = any(other in name for other in ALGORITHMS if other != name)
    dashes = ":" if index >= len(_COLOURS) else "--" if variant else "-"
    return _COLOURS[index % len(_COLOURS)], dashes


def _between(low: int, high: int) -> list[int]:
    """Return sizes evenly spaced on a logarithmic axis, ascending."""
    return sorted({round(low * (high / low) ** (i / (_FINE - 1))) for i in range(_FINE)})


def _spread(ranks: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the ranks, the first and the last among them."""
    if len(ranks) <= most:
        return list(ranks)
    return [ranks[round(i * (len(ranks) - 1) / (most - 1))] for i in range(most)]


def _draw_times(axes: Axes, fine: Comparison, ranks: int) -> None:
    """Draw a line per algorithm, with a broad one beneath the fastest.

    Times are drawn as multiples of the lower bound: as absolute times over six decades of bytes
    they would nearly coincide.
    """
    rows = fine.of(ranks)
    sizes = [row.nbytes for row in rows]
    for name in ALGORITHMS:
        colour, dashes = _style(name)
        times = [row.seconds[name] / row.least for row in rows]
        axes.plot(sizes, times, color=colour, linestyle=dashes, linewidth=1.6, label=name)
        won = [t if row.best == name else math.nan for t, row in zip(times, rows, strict=True)]
        axes.plot(sizes, won, color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    worst = max(time / row.least for row in rows for time in row.seconds.values())
    axes.set_ylim(0.9, min(_WORST, 1.3 * worst))
    axes.axhspan(0.9, 1, color="0.85", linewidth=0)  # below the lower bound
    shown = [multiple for multiple in _MULTIPLES if multiple <= 1.3 * worst]
    axes.set_yticks(shown, [f"{multiple}×" for multiple in shown])
    axes.set_title(f"{ranks} ranks: time as a multiple of the lower bound", fontsize=10)
    axes.minorticks_off()
    axes.grid(color="0.85", linewidth=0.6)
    _bytes_axis(axes, sizes[0], sizes[-1])


def _map(axes: Axes, comparison: Comparison, ranks: Sequence[int]) -> None:
    """Draw a bar per number of ranks, divided at the crossovers."""
    low, high = comparison.sizes[0], comparison.sizes[-1]
    for y, p in enumerate(ranks):
        for name, first, last in comparison.stretches(p):
            axes.barh(y, last - first, left=first, height=0.92, color=_style(name)[0], linewidth=0)
            if last / first > (high / low) ** _ROOM:
                axes.text(
                    (first * last) ** 0.5, y, name, ha="center", va="center", color="white",
                    fontsize=7.5, fontweight="bold",
                )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    axes.set_ylim(-0.5, len(ranks) - 0.5)
    axes.set_yticks(range(len(ranks)), [str(p) for p in ranks])
    axes.set_ylabel("ranks")
    axes.set_title("the fastest", fontsize=10)
    axes.minorticks_off()
    _bytes_axis(axes, low, high)


def _bytes_axis(axes: Axes, low: int, high: int) -> None:
    """Label about six powers of two between the ends."""
    first, last = (low - 1).bit_length(), high.bit_length() - 1
    every = max(1, -(-(last - first) // 5))
    ticks = [1 << power for power in range(first, last + 1, every)]
    axes.set_xticks(ticks, [size_text(tick) for tick in ticks])
    axes.set_xlim(low, high)
    axes.set_xlabel("vector")


def _figure(*, panels: int) -> Figure:
    """Return a figure with ``panels`` axes, at most two in a row."""
    columns, rows = min(panels, 2), (panels + 1) // 2
    figure = blank(10 if columns == 1 else 12.5, 3.9 * rows + 1)
    grid = figure.add_gridspec(rows, columns)
    for i in range(panels):
        # The last panel of an odd number fills its row.
        alone = panels % 2 and i == panels - 1
        figure.add_subplot(grid[i // 2, :] if alone else grid[i // 2, i % 2])
    return figure
