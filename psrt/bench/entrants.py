"""Who takes part in a contest of all-reduces, and what comes of one. Pure.

=================  ============================================================================
algorithm          what it is
=================  ============================================================================
``MPI.Allreduce``  the library's, blocking and in place on a plain array: the yardstick
``auto``           what ``Group`` picks by the machine's costs
``node``, NAME …   the algorithms of ``Group`` by their names
``mpi``            the library's again, as ``Group`` calls it, with its check of who calls what
``copyto``         every rank copies the vector once, all at a time: no sum can be had for less
``exchange``       every rank sends the vector to the next one while it receives from the last
=================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psrt.bench.seats import Seats
from psrt.collective import ALGORITHMS

LIBRARY, AUTO, COPY, EXCHANGE = "MPI.Allreduce", "auto", "copyto", "exchange"
WINDOW, PLAIN = "window", "plain"
#: A contestant's name: algorithm and buffer.
Name = tuple[str, str]
#: What the promises are about; they have a turn in almost every round.
KEY: tuple[Name, ...] = (
    (LIBRARY, PLAIN), (AUTO, WINDOW), ("node", WINDOW), ("ring", WINDOW), ("ring", PLAIN),
    (COPY, WINDOW), (EXCHANGE, WINDOW),
)  # fmt: skip
#: Of hosts with several ranks each, these are tried between them.
_BETWEEN = ("ring", "segmented-ring", "double-tree", "butterfly", "halving-doubling")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a contest; the same on every rank."""

    #: By name, the bytes that each rank sent in one call; None: nobody counts them.
    sent: dict[Name, tuple[int, ...] | None]
    #: What ``auto`` picked.
    chosen: str
    #: See ``take_turns``.
    rounds: list[dict[Name, float]]


def names(seats: Seats) -> Iterator[Name]:
    """Yield who takes part on a layout, the yardstick first."""
    yield LIBRARY, PLAIN
    yield AUTO, WINDOW
    if len(seats.hosts) == 1:
        yield "node", WINDOW
        yield from ((name, WINDOW) for name in ALGORITHMS)
        yield "node", PLAIN
        yield from ((name, PLAIN) for name in ALGORITHMS)
        yield "mpi", PLAIN
        yield COPY, WINDOW
    elif seats.apart:
        yield from ((name, WINDOW) for name in ALGORITHMS)
        yield EXCHANGE, WINDOW
    else:
        yield "ring", WINDOW
        yield from ((f"node+{name}", WINDOW) for name in _BETWEEN)
