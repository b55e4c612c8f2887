"""Compares the figures of a JSON object with expected ones, path by path. Knows no rule."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from psrt.history.check.findings import Findings

#: Relative error of a mean of float32 numbers.
_ROUNDING = 1e-5
#: Stands for a missing figure.
_NOTHING = object()
#: The path of a figure: keys, and positions in lists.
Path = str | int


class Figures:
    """The figures of a JSON object, compared with expected ones; a missing one equals nothing.

    A path is a key, or keys and positions that lead inside: ``"staleness", "by_worker", 2``.
    """

    def __init__(
        self, rule: str, what: str, values: Mapping[str, object], findings: Findings
    ) -> None:
        """Set up.

        Args:
            rule: the rule that is checked.
            what: names the object in reports.
            values: of the object.
            findings: counts checks, and takes what is wrong.
        """
        self._rule, self._what = rule, what
        self._values = values
        self._findings = findings

    def has(self, *paths: tuple[Path, ...]) -> None:
        """Require that figures exist, with any value."""
        for path in paths:
            self._require(self._find(path) is not _NOTHING, path, "expected a value")

    def same(self, due: object, *path: Path, of: str = "the history") -> None:
        """Require that a figure is as expected; ``of`` names the source of the expectation."""
        said = self._find(path)
        if isinstance(said, list) and isinstance(due, list) and len(said) == len(due):
            wrong = [i for i in range(len(due)) if said[i] != due[i]]
            if wrong:  # the first of them
                path, due = (*path, wrong[0]), due[wrong[0]]
                said = self._find(path)
        # True and 1 are equal in Python, not in JSON.
        equal = said == due and isinstance(said, bool) == isinstance(due, bool)
        self._require(equal, path, f"{of} {due}")

    def near(self, due: float, *path: Path, slack: float = 0.0, of: str = "the history") -> None:
        """Require that a number is as expected, except for rounding; null if that is not finite.

        Args:
            due: the expected number.
            path: of the figure.
            slack: by how much it may be off besides.
            of: names what the number follows from.
        """
        if not math.isfinite(due):
            self.same(None, *path, of=of)
            return
        said = self.number(*path)
        error = _ROUNDING * abs(due) + slack
        self._require(said is not None and abs(said - due) <= error, path, f"{of} {due}")

    def within(self, low: float, high: float, *path: Path, rounded: bool = False) -> None:
        """Require that a number lies between two.

        Args:
            low: the least.
            high: the most; infinite for no bound.
            path: where it is said.
            rounded: whether the bounds are rounded, so that it may exceed them by as much.
        """
        said = self.number(*path)
        share = _ROUNDING if rounded else 0.0
        bounds = low - share * max(low, 0.0), high + share * abs(high) if high < math.inf else high
        holds = said is not None and bounds[0] <= said <= bounds[1]
        due = f"{low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
        self._require(holds, path, f"expected {due if low > -math.inf else 'a number'}")

    def maybe_within(self, low: float, high: float, *path: Path, rounded: bool = False) -> None:
        """Require that a number lies between two, or that it is null."""
        if self._find(path) is not None:
            self.within(low, high, *path, rounded=rounded)

    def equal(self, due: object, *path: Path) -> None:
        """Require an expected JSON value, with all that it contains; fractions may be rounded."""
        if isinstance(due, Mapping) and not all(type(it) is int for it in due.values()):
            for name, own in due.items():
                self.equal(own, *path, name)
        elif isinstance(due, Mapping):
            self.same({str(name): own for name, own in due.items()}, *path)
        elif isinstance(due, list | tuple) and not all(type(it) is int for it in due):
            self.length(len(due), *path)
            for i, own in enumerate(due):
                self.equal(own, *path, i)
        elif isinstance(due, list | tuple):
            self.same(list(due), *path)
        elif isinstance(due, float):
            self.near(due, *path)
        else:
            self.same(due, *path)

    def length(self, due: int, *path: Path) -> None:
        """Require a list with that many elements."""
        said = self._find(path)
        holds = isinstance(said, list) and len(said) == due
        self._require(holds, path, f"expected a list of {due}")

    def members(self, names: Collection[str], *path: Path) -> list[str]:
        """Require an object with no other keys than these; return its own."""
        said = self._find(path)
        holds = isinstance(said, Mapping) and set(said) <= set(names)
        self._require(holds, path, f"expected an object of {', '.join(names) or 'nothing'}")
        return list(said) if isinstance(said, Mapping) else []

    def text(self, *path: Path) -> str:
        """Require a text; return it."""
        said = self._find(path)
        self._require(isinstance(said, str), path, "expected a text")
        return said if isinstance(said, str) else ""

    def number(self, *path: Path) -> float | None:
        """Return a figure; None if it is not a number."""
        said: Any = self._find(path)
        return said if type(said) in (int, float) else None

    def _find(self, path: tuple[Path, ...]) -> object:
        found: object = self._values
        for key in path:
            if isinstance(found, Mapping):
                found = found.get(key, _NOTHING)
            elif isinstance(found, list) and type(key) is int and key < len(found):
                found = found[key]
            else:
                return _NOTHING
        return found

    def _require(self, holds: bool, path: tuple[Path, ...], due: str) -> None:
        self._findings.count(self._rule, 1)
        if holds:
            return
        said = self._find(path)
        told = "lacks it" if said is _NOTHING else f"says {said}"
        name = " ".join(key if isinstance(key, str) else f"at {key}" for key in path)
        self._findings.missing(self._rule, f"{name}: {self._what} {told}, {due}")
