"""The study of softsync as numbers: runs become lines of a table. Pure: no runs, no files.

It asks what Zhang et al. asked: how stale gradients are under softsync(n), and whether a model
learns from them at a rate that knows of it and at one that does not.

Source: Zhang, Gupta, Lian & Liu, IJCAI 2016 (1511.05950).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psrt.history.folds.figures import Counts

#: One run: ``softsync`` (n), ``staleness_rate``, ``histogram`` (pushes by τ, None: the run
#: diverged), ``test_error`` in [0, 1] (None: it diverged) and ``errors``, [epoch, error] pairs.
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Errors:
    """Test errors at the end of runs that differ in their seed alone."""

    #: Of those that came to their end, in [0, 1].
    known: tuple[float, ...]
    #: How many did not.
    diverged: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Errors:
        """Return those of some runs."""
        found = [row["test_error"] for row in rows]
        known = tuple(error for error in found if error is not None)
        return cls(known, len(found) - len(known))

    def __str__(self) -> str:
        """Return mean and worst in percent, and what diverged.

        >>> print(Errors((0.03, 0.05), diverged=1))
        4.0 (5.0), 1 of 3 diverged
        """
        if not self.known:
            return "diverged" if self.diverged else "–"
        mean = sum(self.known) / len(self.known)
        text = f"{100 * mean:.1f}"
        if len(self.known) > 1:
            text += f" ({100 * max(self.known):.1f})"
        runs = len(self.known) + self.diverged
        return f"{text}, {self.diverged} of {runs} diverged" if self.diverged else text


@dataclass(frozen=True, slots=True)
class Line:
    """What came out for one n."""

    n: int
    #: Staleness of the applied pushes of all runs.
    staleness: Counts
    #: Share of them with τ > 2n.
    beyond: float
    #: By staleness rate.
    errors: dict[str, Errors]


def share_beyond(histogram: Mapping[int, int], limit: int) -> float:
    """Return P(τ > limit), 0 where there is nothing.

    >>> share_beyond({1: 5, 2: 4, 3: 1}, 2)
    0.1
    """
    total = sum(histogram.values())
    return sum(n for tau, n in histogram.items() if tau > limit) / total if total else 0.0


def lines_of(rows: Sequence[Row]) -> list[Line]:
    """Return a line for each n, and rates, in the order in which they first occur."""
    rates = list(dict.fromkeys(row["staleness_rate"] for row in rows))
    return [
        _line(n, [row for row in rows if row["softsync"] == n], rates)
        for n in dict.fromkeys(row["softsync"] for row in rows)
    ]


def _line(n: int, rows: Sequence[Row], rates: Sequence[str]) -> Line:
    pairs = (pair for row in rows for pair in enumerate(row["histogram"] or ()))
    staleness = Counts.of(pairs)
    errors = {r: Errors.of([row for row in rows if row["staleness_rate"] == r]) for r in rates}
    return Line(n, staleness, share_beyond(staleness.histogram, 2 * n), errors)


def table(lines: Sequence[Line]) -> str:
    """Return a line of text for each n, below a heading.

    >>> errors = {"constant": Errors((0.9, 0.9), 0), "inverse": Errors((0.04, 0.05), 0)}
    >>> print(table([Line(30, Counts.of([(28, 1), (30, 2)]), 0.00025, errors)]))
     n  mean τ  max τ  P(τ > 2n)     constant    inverse
    30   29.33     30    0.00025  90.0 (90.0)  4.5 (5.0)
    """
    rates = list(lines[0].errors) if lines else []
    cells = [["n", "mean τ", "max τ", "P(τ > 2n)", *rates], *map(_cells, lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True))
        for row in cells
    )


def _cells(line: Line) -> list[str]:
    found = line.staleness
    counted = [f"{found.mean:.2f}", str(found.max), f"{line.beyond:.2g}"]
    return [str(line.n), *(counted if found.histogram else "–––"), *map(str, line.errors.values())]
