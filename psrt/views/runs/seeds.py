"""Runs that differ only in their seed: grouped, with means and standard deviations. Pure."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from psrt.config.knobs import knobs_of
from psrt.views.runs.folder import RunFolder

#: Knobs in which runs of a group may differ: where a run writes, and whether it may, too.
_FREE = ("seed", "out", "overwrite")


class Group(NamedTuple):
    """Runs of one configuration."""

    name: str
    runs: list[RunFolder]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(it.config.seed for it in self.runs)


def alone(named: Sequence[tuple[str, RunFolder]]) -> list[Group]:
    """Return each run as a group of its own."""
    return [Group(name, [run]) for name, run in named]


def grouped(named: Sequence[tuple[str, RunFolder]]) -> list[Group]:
    """Return runs in groups that differ in more than their seed, in the order of their first runs.

    A run with a seed that its group has already is one of its own.
    """
    found: dict[str, list[tuple[str, RunFolder]]] = {}
    for name, run in named:
        knobs = {it: getattr(run.config, it) for it in knobs_of(run.config) if it not in _FREE}
        its = found.setdefault(repr(knobs), [])
        if any(run.config.seed == other.config.seed for _, other in its):
            found[str(run.path)] = [(name, run)]
        else:
            its.append((name, run))
    return [Group(_name(its), [run for _, run in its]) for its in found.values()]


def _name(named: Sequence[tuple[str, RunFolder]]) -> str:
    """Return the name of a group: that of its first run, without the seed."""
    first, run = named[0]
    if len(named) == 1:
        return first
    without = re.sub(rf"[^a-zA-Z0-9]?seed[^a-zA-Z0-9]?{run.config.seed}(?!\d)", "", first)
    return without.strip(",/") if without not in (first, "") else f"{first} +{len(named) - 1}"


def mean_of(values: Sequence[Any]) -> Any:
    """Return the mean of numbers; of other values the one that all have; else None.

    >>> mean_of([1.0, 2.0]), mean_of(["a", "a"]), mean_of(["a", "b"]), mean_of([1.0, None])
    (1.5, 'a', None, None)
    """
    if all(it == values[0] for it in values):
        return values[0]
    return statistics.fmean(values) if all(map(_is_number, values)) else None


def deviation_of(values: Sequence[Any]) -> float | None:
    """Return the standard deviation of a group's values, of a sample; None if they have none.

    >>> deviation_of([1.0, 3.0]), deviation_of([2.0]), deviation_of(["a", "a"])
    (1.4142135623730951, None, None)
    """
    if len(values) < 2 or not all(map(_is_number, values)):
        return None
    return float(statistics.stdev(values))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
