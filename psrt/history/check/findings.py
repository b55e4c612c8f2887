"""What a check has looked at and the first thing that it found wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from psrt.history.check.table import Bools, Ints, Table


class Spot(NamedTuple):
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
    event: Spot | None
    #: Events that it does not go together with.
    because: tuple[Spot, ...] = ()

    @property
    def time(self) -> float:
        """When it happened; infinite where it should have happened and did not."""
        return math.inf if self.event is None else self.event.time


def _nothing(_: int) -> tuple[Spot, ...]:
    return ()


@dataclass(slots=True)
class Findings:
    """Counts what is checked, by rule, and keeps the violation that happened first."""

    checked: dict[str, int] = field(default_factory=dict)
    first: Violation | None = None

    def expect(
        self,
        rule: str,
        holds: Bools,
        table: Table,
        at: Ints,
        say: Callable[[int], str],
        because: Callable[[int], tuple[Spot, ...]] = _nothing,
        *,
        counts: bool = True,
    ) -> None:
        """Check a rule on many events at once.

        Args:
            rule: its name.
            holds: for each of them, whether it is kept.
            table: where they are.
            at: the position of each in ``table``.
            say: what is wrong about the i-th.
            because: the events that show it.
            counts: whether these are not counted elsewhere.
        """
        if counts:
            self.count(rule, len(holds))
        wrong = np.flatnonzero(~holds)
        if not len(wrong):
            return
        i = int(wrong[np.argmin(table.events["time"][at[wrong]])])
        spot = Spot(table, int(at[i]))
        if self.first is None or spot.time < self.first.time:
            self.first = Violation(rule, say(i), spot, because(i))

    def miss(self, rule: str, text: str, *because: Spot) -> None:
        """Note that something never happened."""
        if self.first is None:
            self.first = Violation(rule, text, None, because)

    def count(self, rule: str, number: int) -> None:
        """Note that so much was checked."""
        self.checked[rule] = self.checked.get(rule, 0) + int(number)
