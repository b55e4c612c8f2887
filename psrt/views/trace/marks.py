"""The elements of a trace, for the writers. Pure.

A rank has *lanes*: ``compute``, ``wait``, ``sum``, ``window``, ``update``, and ``messages`` for
single events. The slices of a lane never overlap. Times are whole nanoseconds since the run began.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

#: Lanes in the order in which they are drawn; others, such as those of fragments, follow.
COMPUTE, WAIT, SUM, WINDOW, UPDATE, STEP, MESSAGES = (
    "compute", "wait", "sum", "window", "update", "step", "messages",
)  # fmt: skip
LANES = (COMPUTE, WAIT, SUM, WINDOW, UPDATE, STEP, MESSAGES)

#: Facts about a slice or mark, by name.
Facts = dict[str, int | float | str]


class Slice(NamedTuple):
    """Something that a rank did for some time."""

    rank: int
    lane: str
    name: str
    start: int
    stop: int
    facts: Facts


class Mark(NamedTuple):
    """Something that happened at a rank, on its lane ``messages``."""

    rank: int
    name: str
    at: int
    facts: Facts


class Count(NamedTuple):
    """The value of a rank's counter from some time on."""

    rank: int
    name: str
    at: int
    value: float


class Chain(NamedTuple):
    """Two or more events in order of time, each of which caused the next."""

    name: str
    marks: tuple[Mark, ...]


class Writer(Protocol):
    """Writes a trace; describes ranks and their lanes when they first occur."""

    #: Bytes so far, uncompressed.
    size: int
    #: Most bytes of a mark, with its part of a flow.
    mark_bytes: int

    def slice(self, it: Slice) -> None:
        """Write a slice; the slices of a lane come in order."""

    def marks(self, marks: tuple[Mark, ...], flows: tuple[Chain, ...]) -> None:
        """Write marks, and the flows between them."""

    def count(self, it: Count) -> None:
        """Write a number."""

    def close(self) -> None:
        """Write what ends the file, and leave it open."""


def nanoseconds(seconds: float) -> int:
    """Return a time as a whole number of nanoseconds, 0 before the beginning.

    >>> nanoseconds(1.5e-6), nanoseconds(-1e-9)
    (1500, 0)
    """
    return max(0, round(seconds * 1e9))
