"""Specifications: the contents that ranks start with and must end with. Pure.

A schedule says how, a ``CollectiveSpec`` says what. The prover compares the two, so a schedule is
not correct merely because it agrees with itself. Each collective has one function here, which takes

- ``size``, the number of ranks, ≥ 1,
- ``n``, the elements of the vector, ≥ 0; for an all-to-all, of the whole table,
- ``root``, the rank that starts with the vector, or ends with the result; ignored where none does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from psrt.core.partition import Span, even_spans


class Postcondition(NamedTuple):
    """The content that a rank must end with in ``span``, each element at its own place."""

    span: Span
    #: The rank whose numbers ``span`` must have; None: the fold of all ranks, each counted once.
    source: int | None


@dataclass(frozen=True, slots=True)
class CollectiveSpec:
    """The start and the end of a collective, for every rank."""

    #: Number of elements of the vector, ≥ 0.
    n: int
    #: Number of elements of scratch memory behind it; undefined at the start.
    workspace: int
    #: By rank, spans of the vector with its own numbers at the start; the rest is undefined.
    has: tuple[tuple[Span, ...], ...]
    #: By rank, the contents required at the end; the rest may hold anything.
    owed: tuple[tuple[Postcondition, ...], ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.has)

    @property
    def folds(self) -> bool:
        """Whether numbers are combined, not only moved."""
        return any(due.source is None for rank in self.owed for due in rank)


def all_reduce(size: int, n: int, root: int = 0, *, workspace: int = 0) -> CollectiveSpec:
    """From a full vector each to the fold of all.

    With ``workspace`` elements of scratch memory behind the vector.

    >>> all_reduce(2, 5).owed[1]
    (Postcondition(span=Span(start=0, stop=5), source=None),)
    """
    return _spec(n, _whole(size, n), [[Postcondition(Span(0, n), None)]] * size, workspace)


def reduce_scatter(size: int, n: int, root: int = 0) -> CollectiveSpec:
    """From a full vector each to the fold of chunk r on rank r."""
    return _spec(
        n, _whole(size, n), [[Postcondition(chunk, None)] for chunk in even_spans(n, size)]
    )


def all_gather(size: int, n: int, root: int = 0) -> CollectiveSpec:
    """From chunk r on rank r to all chunks everywhere."""
    return _spec(n, _own_chunks(size, n), [_chunks(size, n)] * size)


def reduce(size: int, n: int, root: int = 0) -> CollectiveSpec:
    """From a full vector each to the fold of all at the root."""
    fold = [Postcondition(Span(0, n), None)]
    return _spec(n, _whole(size, n), [fold if rank == root else [] for rank in range(size)])


def broadcast(size: int, n: int, root: int = 0) -> CollectiveSpec:
    """From the root's vector to a copy of it everywhere."""
    return _spec(n, _at_root(size, n, root), [[Postcondition(Span(0, n), root)]] * size)


def scatter(size: int, n: int, root: int = 0) -> CollectiveSpec:
    """From the root's vector to its chunk r on rank r."""
    owed = [[Postcondition(chunk, root)] for chunk in even_spans(n, size)]
    return _spec(n, _at_root(size, n, root), owed)


def gather(size: int, n: int, root: int = 0) -> CollectiveSpec:
    """From chunk r on rank r to all chunks at the root."""
    owed = [_chunks(size, n) if rank == root else [] for rank in range(size)]
    return _spec(n, _own_chunks(size, n), owed)


def all_to_all(size: int, n: int, root: int = 0) -> CollectiveSpec:
    """From row r of a table of blocks on rank r to column r."""
    rows = [
        [
            Span(row.start + block.start, row.start + block.stop)
            for block in even_spans(row.size, size)
        ]
        for row in even_spans(n, size)
    ]
    owed = [[Postcondition(row[rank], i) for i, row in enumerate(rows)] for rank in range(size)]
    return _spec(n, _own_chunks(size, n), owed)


def _spec(
    n: int,
    has: Iterable[Iterable[Span]],
    owed: Iterable[Iterable[Postcondition]],
    workspace: int = 0,
) -> CollectiveSpec:
    return CollectiveSpec(n, workspace, tuple(map(tuple, has)), tuple(map(tuple, owed)))


def _whole(size: int, n: int) -> list[list[Span]]:
    return [[Span(0, n)]] * size


def _own_chunks(size: int, n: int) -> list[list[Span]]:
    return [[chunk] for chunk in even_spans(n, size)]


def _at_root(size: int, n: int, root: int) -> list[list[Span]]:
    return [[Span(0, n)] if rank == root else [] for rank in range(size)]


def _chunks(size: int, n: int) -> list[Postcondition]:
    return [Postcondition(chunk, rank) for rank, chunk in enumerate(even_spans(n, size))]
