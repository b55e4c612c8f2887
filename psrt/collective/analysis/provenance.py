"""A rank's contents while a schedule is proved: contributions instead of numbers. Pure.

Instead of a number, each place of a rank's memory holds *which element* of the vector it is, *the
set of ranks* whose contributions have been folded into it, as the bits of a whole number, and *in
what bracketing*, as a fingerprint that is the same for a + b and b + a but not for (a + b) + c and
a + (b + c). Two such values may be folded only if they are of the same element and share no rank;
a place that was never written is undefined, and may be neither sent nor folded.

Places that no step distinguishes need not be distinguished here either. A rank's memory is cut
once, at every end of a span in its own steps, and a slot between two cuts is defined as a whole or
not at all. Inside a slot there may still be several *runs*, where the sender's cuts were finer. So
the cost of a proof depends on the number of steps, not of elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from psrt.core.partition import Span

#: Number of places with consecutive elements, the first element, the ranks folded into each, and
#: a fingerprint of their bracketing: 64 bits, which two bracketings share only by chance.
Run: TypeAlias = tuple[int, int, int, int]


class Flaw(Exception):  # noqa: N818  caught at once and raised with the step, as a ScheduleError
    """A step broke the rules of memory."""


class Provenance:
    """One rank's vector and workspace.

    >>> memory = Provenance([0, 2, 6])
    >>> memory.write(Span(0, 2), [own(0, Span(0, 2))])
    >>> memory.fold(Span(0, 2), [own(1, Span(0, 2))])
    >>> [(size, element, ranks_text(ranks)) for size, element, ranks, _ in memory.read(Span(0, 2))]
    [(2, 0, 'ranks 0, 1')]
    >>> memory.read(Span(0, 6))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    psrt...Flaw: nothing is in [2, 6) yet
    """

    def __init__(self, cuts: Iterable[int]) -> None:
        """Start with nothing, and slots between all ``cuts``."""
        self._cuts = sorted(set(cuts))
        self._index = {cut: i for i, cut in enumerate(self._cuts)}
        # Rows of runs are shared between ranks and never changed, only replaced.
        self._slots: list[Sequence[Run] | None] = [None] * max(0, len(self._cuts) - 1)

    def read(self, span: Span) -> Sequence[Run]:
        """Return the runs in ``span``, whose ends are cuts.

        Raises:
            Flaw: if something of it was never written.
        """
        first, last = self._index[span.start], self._index[span.stop]
        if last == first + 1 and (only := self._slots[first]) is not None:
            return only
        runs: list[Run] = []
        for i in range(first, last):
            held = self._slots[i]
            if held is None:
                raise Flaw(f"nothing is in [{self._cuts[i]}, {self._cuts[i + 1]}) yet")
            runs += held
        return runs

    def write(self, span: Span, runs: Sequence[Run]) -> None:
        """Replace the content of ``span`` by ``runs`` of the same length."""
        first, last = self._index[span.start], self._index[span.stop]
        if last == first + 1:
            self._slots[first] = runs
            return
        ends = self._cuts[first + 1 : last + 1]
        self._slots[first:last] = _pieces(runs, [end - span.start for end in ends])

    def fold(self, span: Span, runs: Sequence[Run]) -> None:
        """Fold ``runs`` into the content of ``span``, of the same length.

        Raises:
            Flaw: if that is undefined, of another element, or counts a contribution already.
        """
        self.write(span, list(_folded(self.read(span), runs)))


def own(rank: int, span: Span) -> Run:
    """Return the content of ``span`` at the start: the rank's own contribution to each element."""
    return span.size, span.start, 1 << rank, rank


def joined(runs: Iterable[Run]) -> list[Run]:
    """Return the same runs, those that continue each other as one, so that equal rows are equal.

    >>> joined([own(3, Span(0, 2)), own(3, Span(2, 6))]) == [own(3, Span(0, 6))]
    True
    """
    row: list[Run] = []
    for run in runs:
        if row and row[-1][2:] == run[2:] and row[-1][1] + row[-1][0] == run[1]:
            row[-1] = (row[-1][0] + run[0], *row[-1][1:])
        else:
            row.append(run)
    return row


def ranks_text(ranks: int) -> str:
    """Return a set of ranks in words.

    >>> ranks_text(0b1101)
    'ranks 0, 2, 3'
    """
    members = [str(rank) for rank in range(ranks.bit_length()) if ranks >> rank & 1]
    return f"{'rank' if len(members) == 1 else 'ranks'} {', '.join(members)}"


def _pieces(runs: Sequence[Run], cuts: Sequence[int]) -> list[list[Run]]:
    """Return the parts of ``runs`` that end at each of ``cuts``, counted from their beginning."""
    pieces: list[list[Run]] = []
    coming = iter(runs)
    at, size, element, ranks, bracketing = 0, 0, 0, 0, 0
    for cut in cuts:
        piece: list[Run] = []
        while at < cut:
            if not size:
                size, element, ranks, bracketing = next(coming)
            part = min(size, cut - at)
            piece.append((part, element, ranks, bracketing))
            at, size, element = at + part, size - part, element + part
        pieces.append(piece)
    return pieces


def _folded(mine: Sequence[Run], given: Sequence[Run]) -> Iterator[Run]:
    """Yield the folds of two rows of runs of the same total size."""
    if len(mine) != 1 or len(given) != 1:
        cuts = sorted({*_ends(mine), *_ends(given)})
        mine = [run for piece in _pieces(mine, cuts) for run in piece]
        given = [run for piece in _pieces(given, cuts) for run in piece]
    for (size, element, ranks, one), (_, other, more, two) in zip(mine, given, strict=True):
        if element != other:
            raise Flaw(f"element {other} is folded into element {element}")
        if ranks & more:
            raise Flaw(f"counts {ranks_text(ranks & more)} twice in element {element}")
        yield size, element, ranks | more, hash((one, two) if one < two else (two, one))


def _ends(runs: Sequence[Run]) -> list[int]:
    ends, at = [], 0
    for size, *_ in runs:
        at += size
        ends.append(at)
    return ends
