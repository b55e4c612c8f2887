"""Events as contiguous columns, and bulk operations on them. Knows no rule."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psrt.history.events import EVENT, Kind
from psrt.history.log import Events

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
#: Positions of events in a table: a row for each read, push or part of a sum.
Grid = NDArray[np.int64]


class Table:
    """The events of one shard, of all workers (grouped by worker), or the FINAL ones."""

    def __init__(self, events: Events, name: str) -> None:
        #: The records themselves, in order.
        self.events = events
        #: Its name in reports.
        self.name = name
        self._columns: dict[str, Ints] = {}
        self._reals: dict[str, Floats] = {}

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, name: str) -> Ints:
        """Return a column of whole numbers."""
        if name not in self._columns:
            self._columns[name] = self.events[name].astype(np.int64)
        return self._columns[name]

    def real(self, name: str) -> Floats:
        """Return a column of real numbers."""
        if name not in self._reals:
            self._reals[name] = self.events[name].astype(np.float64)
        return self._reals[name]

    def column(self, name: str) -> Ints | Floats:
        """Return a column of whole or of real numbers, as its field is."""
        return self.real(name) if EVENT[name].kind == "f" else self[name]

    def value(self, name: str, at: int) -> Any:
        """Return a field of one event; for the kind, its name."""
        value = self.events[name][at].item()
        return Kind(value).name if name == "kind" else value

    def where(self, *kinds: Kind) -> Ints:
        """Return the positions of the events of these kinds."""
        found: Ints = self.are(*kinds).nonzero()[0]
        return found

    def are(self, *kinds: Kind) -> Bools:
        """Return, for each event, whether it has one of these kinds."""
        if len(kinds) == 1:
            # As a plain number: numpy takes five times as long to convert an enum.
            found: Bools = self["kind"] == int(kinds[0])
        else:
            found = _among(kinds)[self["kind"]]
        return found


@functools.cache
def _among(kinds: tuple[Kind, ...]) -> Bools:
    """Return, for each possible number of a kind, whether it is one of these."""
    found = np.zeros(np.iinfo(EVENT["kind"]).max + 1, bool)
    found[list(kinds)] = True
    return found


#: Names of the columns.
COLUMNS = frozenset(EVENT.names or ())


def joined(parts: Sequence[Events], name: str) -> Table:
    """Concatenate tables."""
    return Table(np.concatenate(parts), name)


def previous(values: NDArray[Any], first: Any) -> NDArray[Any]:
    """Return the value before each, ``first`` before the first.

    >>> previous(np.array([4, 5, 6]), 0)
    array([0, 4, 5])
    """
    return np.concatenate([np.array([first], values.dtype), values])[:-1]


def same_as_before(group: Ints) -> Bools:
    """Return, for each element, whether it is in the group of the element before.

    >>> same_as_before(np.array([0, 0, 2]))
    array([False,  True, False])
    """
    same = np.zeros(len(group), bool)
    same[1:] = group[1:] == group[:-1]
    return same


def without_pauses(
    time: Floats, lasts: Floats | float, group: Ints, resumed: Sequence[float]
) -> Floats:
    """Return times as if each group continued immediately after each pause.

    Args:
        time: (n,) end times of events, in order within a group.
        lasts: (n,) the least duration of each event.
        group: (n,) of each event; groups are contiguous.
        resumed: the times at which pauses ended.

    >>> without_pauses(np.array([1., 2, 9, 1, 8]), 0.5, np.array([0, 0, 0, 1, 1]), [7.])
    array([1. , 2. , 2.5, 1. , 1.5])
    """
    follows = same_as_before(group)
    before = np.where(follows, previous(time, 0.0), 0.0)
    paused = np.zeros(len(time), bool)
    for when in resumed:
        paused |= (before < when) & (time > when)
    total = np.cumsum(np.where(paused, time - before - lasts, 0.0))
    starts = np.maximum.accumulate(np.where(follows, 0, np.arange(len(time))))
    found: Floats = time - (total - previous(total, 0.0)[starts])
    return found


def rank_in_run(*groups: NDArray[Any]) -> Ints:
    """Return each element's number in its run of equal elements, from 0.

    Args:
        groups: elements are equal if they are equal in all of these.

    >>> rank_in_run(np.array([0, 0, 2, 2, 2, 0]))
    array([0, 1, 0, 1, 2, 0])
    """
    at = np.arange(len(groups[0]))
    begins = np.zeros(len(at), bool)
    for group in groups:
        begins |= ~same_as_before(group)
    rank: Ints = at - np.maximum.accumulate(np.where(begins, at, 0))
    return rank


def rank_in_group(group: Ints, groups: int) -> tuple[Ints, Ints]:
    """Return each element's number within its group, and the start of each group.

    Args:
        group: (n,) group numbers, in ascending order.
        groups: the number of groups.

    >>> rank_in_group(np.array([0, 0, 2, 2, 2]), 3)
    (array([0, 1, 0, 1, 2]), array([0, 2, 2]))
    """
    counts = np.bincount(group, minlength=groups)
    starts = np.cumsum(counts) - counts
    return np.arange(len(group)) - starts[group], starts


def find(keys: Ints, wanted: Ints) -> Ints:
    """Return the position of each wanted key in ``keys``, strictly ascending; −1 if missing.

    >>> find(np.array([2, 5, 9]), np.array([9, 4, 2]))
    array([ 2, -1,  0])
    """
    if not len(keys):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)


def repeats(numbers: Ints) -> Bools:
    """Return, for each number, whether it occurred before.

    >>> repeats(np.array([7, 8, 7, 7]))
    array([False, False,  True,  True])
    """
    order = np.argsort(numbers, kind="stable")
    again = np.zeros(len(numbers), bool)
    again[order[1:]] = numbers[order][1:] == numbers[order][:-1]
    return again
