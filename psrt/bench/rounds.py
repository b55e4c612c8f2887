"""Rounds of turns: who has a turn in which, and what was read in them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

#: How long a turn is to take, in seconds, and the most calls in it.
_TURN_S, _MOST_CALLS = 4e-3, 2000

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to time: a call that all ranks of the communicator make together."""

    call: Callable[[], object]
    #: Seconds that all its turns together may take.
    budget_s: float = 1.0
    #: Turns that it has in any case, as far as there are rounds.
    least: int = 3


def plan(seconds: float, entry: Entry, rounds: int) -> tuple[int, int]:
    """Return how many calls make a turn, and in how many rounds an entry has one.

    Args:
        seconds: about what a call takes.
        entry: whose calls they are.
        rounds: that there are.

    >>> plan(1e-5, Entry(print), 9), plan(0.3, Entry(print), 9), plan(0.05, Entry(print, 0.3), 9)
    ((400, 9), (1, 3), (1, 6))
    """
    calls = int(min(max(_TURN_S / max(seconds, 1e-9), 1), _MOST_CALLS))
    affordable = int(entry.budget_s / max(calls * seconds, 1e-9) + 1e-9)
    return calls, min(max(affordable, entry.least), rounds)


def has_turn(number: int, turns: int, rounds: int) -> bool:
    """Tell whether an entry has a turn in round ``number``, its turns being spread evenly.

    >>> [number for number in range(9) if has_turn(number, 3, 9)]
    [2, 5, 8]
    """
    return (number + 1) * turns // rounds > number * turns // rounds


def readings(rounds: Sequence[dict[Key, float]], key: Key) -> list[float]:
    """Return the readings of one entry, in order."""
    return [row[key] for row in rounds if key in row]


def pairs(rounds: Sequence[dict[Key, float]], key: Key, other: Key) -> list[tuple[float, float]]:
    """Return the readings of two entries in those rounds in which both had a turn."""
    return [(row[key], row[other]) for row in rounds if key in row and other in row]
