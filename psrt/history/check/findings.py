"""What a check has looked at, and the first violation that it found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from psrt.history.check.table import COLUMNS, Bools, Grid, Ints, Table


class EventRef(NamedTuple):
    """One event."""

    table: Table
    at: int

    @property
    def time(self) -> float:
        """When it happened, in seconds."""
        return float(self.table.events["time"][self.at])


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken."""

    #: Its name, as in ``RULES``.
    rule: str
    #: What happened and what was expected, with the numbers.
    text: str
    #: The event that breaks it; None where an event is missing that nobody wrote.
    event: EventRef | None
    #: Events that contradict it.
    because: tuple[EventRef, ...] = ()

    @property
    def time(self) -> float:
        """When it happened; infinite where it should have happened and did not."""
        return math.inf if self.event is None else self.event.time


#: Events that show why the i-th is wrong: positions in the same table, one or several for each i,
#: or in another table. Positions that are none, −1 or the table's length, are left out.
Reasons = Ints | Grid | tuple[Table, Ints | Grid]


class _Blanks(dict[str, Any]):
    """What fills a template: values by name, and else the fields of the event itself."""

    def __init__(self, table: Table, at: int) -> None:
        super().__init__()
        self._table, self._at = table, at

    def __missing__(self, name: str) -> Any:
        assert name in COLUMNS, f"no value for {{{name}}} in the text of a rule"
        return self._table.value(name, self._at)


@dataclass(slots=True)
class Findings:
    """Counts what is checked, by rule, and keeps the violation that happened first."""

    checked: dict[str, int] = field(default_factory=dict)
    first: Violation | None = None

    def on(self, table: Table, at: Ints) -> Asked:
        """Return what asks rules of the events at these (k,) positions of a table."""
        return Asked(self, table, at)

    def missing(self, rule: str, text: str, *because: EventRef) -> None:
        """Note that something never happened; what did happen wrongly is reported before it."""
        if self.first is None:
            self.first = Violation(rule, text, None, because)

    def count(self, rule: str, number: int) -> None:
        """Note that a rule was asked that many times."""
        self.checked[rule] = self.checked.get(rule, 0) + int(number)

    @property
    def none(self) -> bool:
        """Whether no violation was found so far."""
        return self.first is None


class Asked(NamedTuple):
    """Events that rules are asked of, in bulk."""

    findings: Findings
    table: Table
    at: Ints

    def require(
        self,
        rule: str,
        holds: Bools,
        text: str,
        *,
        because: Sequence[Reasons] = (),
        counts: bool = True,
        **values: Any,
    ) -> None:
        """Require that a rule holds of each.

        Args:
            rule: its name.
            holds: (k,) for each of them, whether it is kept.
            text: what is wrong, with {names} of values or of the event's own fields.
            because: the events that contradict it.
            counts: whether these are not counted elsewhere.
            values: for the text: (k,) arrays, functions of i, or one value for all.
        """
        findings, table, at = self
        if counts:
            findings.count(rule, len(holds))
        wrong = np.flatnonzero(~holds)
        if not len(wrong):
            return
        # The earliest of them: what follows from it is not reported.
        i = int(wrong[np.argmin(table.events["time"][at[wrong]])])
        ref = EventRef(table, int(at[i]))
        if findings.first is not None and ref.time >= findings.first.time:
            return
        blanks = _Blanks(table, ref.at)
        for name, value in values.items():
            blanks[name] = _of(value, i)
        refs = [ref for reasons in because for ref in _refs(reasons, table, i)]
        findings.first = Violation(rule, text.format_map(blanks), ref, tuple(refs))

    def require_equal(self, rule: str, said: Any, due: Any, text: str, **more: Any) -> None:
        """Require that two columns are equal; the text may name them, {said} and {due}."""
        self.require(rule, said == due, text, said=said, due=due, **more)

    def forbid(self, rule: str, text: str, **more: Any) -> None:
        """Require that there are no such events."""
        self.require(rule, np.zeros(len(self.at), bool), text, **more)


def _of(value: Any, i: int) -> Any:
    """Return the i-th of a template's values."""
    if callable(value):
        return value(i)
    return value[i] if isinstance(value, np.ndarray) else value


def _refs(reasons: Reasons, table: Table, i: int) -> list[EventRef]:
    where, positions = reasons if isinstance(reasons, tuple) else (table, reasons)
    refs = [EventRef(where, int(at)) for at in np.atleast_1d(positions[i])]
    return [ref for ref in refs if 0 <= ref.at < len(where)]
