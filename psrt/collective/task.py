"""What ranks start with and what they must end with. Pure: the question, never the answer.

A schedule says how; a ``Task`` says what. The prover is given both, so that a schedule cannot be
right merely because it agrees with itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from psrt.partition import Span


class Owed(NamedTuple):
    """What a rank must hold in ``span`` at the end, each element at its own place."""

    span: Span
    #: Rank whose numbers these are; None: the fold of all ranks' numbers, each counted once.
    source: int | None


@dataclass(frozen=True, slots=True)
class Task:
    """The start and the end of a collective, for every rank."""

    #: Elements of the vector, ≥ 0.
    n: int
    #: Elements behind it that a schedule may use as it likes; undefined at the start.
    workspace: int
    #: Spans of the vector that rank i's own numbers are in at the start; the rest is undefined.
    has: tuple[tuple[Span, ...], ...]
    #: What rank i must end with; the rest may hold anything.
    owed: tuple[tuple[Owed, ...], ...]

    @property
    def size(self) -> int:
        """Ranks that take part."""
        return len(self.has)

    @classmethod
    def all_reduce(cls, size: int, n: int, workspace: int = 0) -> Task:
        """Return the task of every all-reduce: from a full vector each to the fold of all.

        >>> Task.all_reduce(2, 5).owed[1]
        (Owed(span=Span(start=0, stop=5), source=None),)
        """
        whole = Span(0, n)
        return cls(n, workspace, ((whole,),) * size, ((Owed(whole, None),),) * size)
