"""Moments of a film: the times of its frames, and what has happened up to each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


def moments(times: Iterable[float], apart: float) -> list[float]:
    """Return the times of frames: of several close times only the last.

    Args:
        times: in any order.
        apart: a time at most this much after the first of a group belongs to the group.

    >>> moments([0, 2.01, 1, 2, 2.02, 3], 0.05)
    [0, 1, 2.02, 3]
    """
    found: list[float] = []
    first = float("-inf")
    for time in sorted(times):
        if found and time - first <= apart:
            found[-1] = time
        else:
            found.append(time)
            first = time
    return found


class InOrder(Generic[T]):
    """Things that happen, each returned once its time has come.

    >>> things = InOrder([3.0, 1.0, 2.0], lambda it: it)
    >>> things.until(2.5), things.until(2.5), things.until(9)
    ([1.0, 2.0], [], [3.0])
    """

    def __init__(self, things: Iterable[T], time: Callable[[T], float]) -> None:
        self._rest = sorted(things, key=time, reverse=True)
        self._time = time

    def until(self, time: float) -> list[T]:
        """Return what has happened since the last call, in order."""
        return list(self._until(time))

    def _until(self, time: float) -> Iterator[T]:
        while self._rest and self._time(self._rest[-1]) <= time:
            yield self._rest.pop()
