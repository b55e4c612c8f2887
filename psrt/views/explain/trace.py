"""Trace a collective: the messages of each round, and the contents of each rank after them.

The schedules of all ranks run on *contents*: the set of ranks whose numbers are summed in a piece
of the vector and, in an example with numbers, that sum. Texts, drawings and JSON are made from the
trace; nothing else here runs a schedule. Pure: no buffers, no MPI.

A *cell* is a run of elements that no message ever splits, so they can share one place in a
drawing. A ring of p ranks has p cells, its chunks; a tree has one, the vector.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

from psrt.collective.analysis.rendezvous import RankState, ScheduleError, run
from psrt.collective.ops import OPS
from psrt.collective.spec import CollectiveSpec
from psrt.collective.step import Step
from psrt.core.partition import Span


class Cells:
    """The cells of the vector and of the workspace behind it, in order."""

    def __init__(
        self,
        plan: Sequence[Sequence[Step]],
        n: int,
        workspace: int = 0,
        also: Iterable[Span] = (),
    ) -> None:
        """Cut the vector wherever a message begins or ends.

        Args:
            plan: the steps of all ranks.
            n: number of elements of the vector.
            workspace: number of elements behind it.
            also: further spans at whose ends to cut.
        """
        bounds = {0, n, n + workspace}
        for span in also:
            bounds |= {*span}
        for steps in plan:
            for step in steps:
                for span in (step.send, step.receive):
                    if span.size:
                        bounds |= {*span}
        _close(bounds, set(_moves(plan)))
        #: By cell, its elements.
        self.spans = tuple(Span(a, b) for a, b in pairwise(sorted(bounds)))
        #: Number of cells in the vector; the others are in the workspace.
        self.in_vector = sum(span.start < n for span in self.spans)
        self._index = {span.start: i for i, span in enumerate(self.spans)}
        self._index[n + workspace] = len(self.spans)

    def of(self, span: Span) -> range:
        """Return the cells of ``span``, which begins and ends at cells."""
        return range(self._index[span.start], self._index[span.stop]) if span.size else range(0)


def _moves(plan: Sequence[Sequence[Step]]) -> Iterator[tuple[Span, Span]]:
    """Yield source and target span of each transfer that moves data to another place.

    Messages between one pair of ranks keep their order, so the i-th sent message is the i-th
    received one.
    """
    sent: dict[tuple[int, int], deque[Span]] = {}
    for rank, steps in enumerate(plan):
        for step in steps:
            if step.send_to is not None and step.send.size:
                sent.setdefault((rank, step.send_to), deque()).append(step.send)
    for rank, steps in enumerate(plan):
        for step in steps:
            if step.receive_from is not None and step.receive.size:
                queue = sent.get((step.receive_from, rank))
                if queue and (source := queue.popleft()) != step.receive:
                    yield source, step.receive


def _close(bounds: set[int], moves: set[tuple[Span, Span]]) -> None:
    """Copy bounds to the other side of each transfer until nothing changes."""
    while moves:
        before = len(bounds)
        for one, other in moves:
            for here, there in ((one, other), (other, one)):
                shift = there.start - here.start
                bounds |= {x + shift for x in tuple(bounds) if here.start < x < here.stop}
        if len(bounds) == before:
            return


Number = int | float
Fold = Callable[[Number, Number], Number]

#: Operation → the function of two numbers; a mean is a sum that is divided at the end.
FOLDS: dict[str, Fold] = {op.name: op.of_two for op in OPS.values()}


class Content(NamedTuple):
    """The content of one cell of a rank."""

    #: Bit mask of the ranks whose numbers are combined here, each counted once.
    whose: int
    #: The combined numbers, one per element; empty in a trace of symbols.
    numbers: tuple[Number, ...] = ()


#: By cell; None is an undefined content.
Contents = list[Content | None]
#: The content of a message, by cell.
Carried = tuple[Content | None, ...]


@dataclass(frozen=True, slots=True)
class Hop:
    """One message, or one local step of a rank, which is its own ``source`` and ``target``."""

    #: From 1 on. Messages that do not wait for each other share a round; a local step belongs to
    #: the round before it, 0 at the start.
    round: int
    source: int
    target: int
    #: Cells sent, and cells that they arrive in.
    send: range
    receive: range
    #: Whether the target combines the content with its own.
    combine: bool
    #: The content that arrives, by cell.
    carried: tuple[Content | None, ...]
    #: The target's content of these cells before and after.
    before: tuple[Content | None, ...]
    after: tuple[Content | None, ...]

    @property
    def local(self) -> bool:
        """Whether it is a step within one rank."""
        return self.source == self.target


@dataclass(frozen=True, slots=True)
class ScheduleTrace:
    """All hops of a collective, in order."""

    spec: CollectiveSpec
    cells: Cells
    #: By round, and within a round by source, local steps last.
    hops: tuple[Hop, ...]
    #: By rank, its contents at the start and at the end.
    start: tuple[Contents, ...]
    end: tuple[Contents, ...]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return max((hop.round for hop in self.hops), default=0)

    @property
    def folds(self) -> bool:
        """Whether the collective sums numbers, rather than only moving them."""
        return self.spec.folds

    def by_round(self) -> Iterator[tuple[int, tuple[Hop, ...]]]:
        """Yield each round's number and hops."""
        for number, hops in groupby(self.hops, key=lambda hop: hop.round):
            yield number, tuple(hops)

    def owed(self, rank: int) -> list[int]:
        """Return the cells of a rank's result; the others end with scratch contents."""
        return [i for owed in self.spec.owed[rank] for i in self.cells.of(owed.span)]


def trace_schedule(
    plan: Sequence[Sequence[Step]],
    spec: CollectiveSpec,
    values: Sequence[Sequence[Number]] | None = None,
    fold: Fold = operator.add,
    order: Sequence[int] | None = None,
) -> ScheduleTrace:
    """Run the steps of all ranks and record every hop.

    Args:
        plan: by rank, its steps.
        spec: the contents that ranks start with and must end with.
        values: by rank, the n numbers of its vector; None: a trace of symbols.
        fold: combines two of them, the lower rank's first.
        order: of the ranks within a round; None: by number.

    Raises:
        ScheduleError: if the plan does not do what the spec says.
    """
    bounds = [span for rank in spec.has for span in rank]
    bounds += [owed.span for rank in spec.owed for owed in rank]
    cells = Cells(plan, spec.n, spec.workspace, [span for span in bounds if span.size])
    start = tuple(_start(spec, cells, rank, values) for rank in range(spec.size))
    memory = _TraceMemory(cells, start, fold)
    run(plan, memory)
    # A rank receives at most once per round, so sorting keeps each rank's own order.
    place = {rank: i for i, rank in enumerate(order or range(spec.size))}
    hops = sorted(memory.hops, key=lambda hop: (hop.round, hop.local, place[hop.source]))
    trace = ScheduleTrace(spec, cells, tuple(hops), start, tuple(memory.state))
    _check(trace)
    return trace


def _start(
    spec: CollectiveSpec, cells: Cells, rank: int, values: Sequence[Sequence[Number]] | None
) -> Contents:
    """Return the spans of a rank's own numbers."""
    contents: Contents = [None] * len(cells.spans)
    for span in spec.has[rank]:
        for i in cells.of(span):
            start, stop = cells.spans[i]
            numbers = () if values is None else tuple(values[rank][start:stop])
            contents[i] = Content(1 << rank, numbers)
    return contents


def _check(trace: ScheduleTrace) -> None:
    """Check that every rank ends with its result."""
    everyone = (1 << trace.spec.size) - 1
    for rank, debts in enumerate(trace.spec.owed):
        for span, source in debts:
            expected = everyone if source is None else 1 << source
            for i in trace.cells.of(span):
                found = trace.end[rank][i]
                if found is None or found.whose != expected:
                    span = trace.cells.spans[i]
                    why = f"ends with {found} in {span}, expected the numbers of ranks"
                    raise ScheduleError(rank, f"{why} {expected:b}")


class _TraceMemory:
    """The contents of all ranks, recorded hop by hop. A ``Memory`` of the rendezvous."""

    def __init__(self, cells: Cells, start: Sequence[Contents], fold: Fold) -> None:
        self._cells = cells
        self._fold = fold
        #: By rank, its contents now.
        self.state = [list(contents) for contents in start]
        #: By rank, arrived messages: source cells, content, round.
        self._arrived: dict[int, tuple[range, Carried, int]] = {}
        #: In the order in which they happened.
        self.hops: list[Hop] = []

    def post(self, rank: RankState) -> None:
        """Do nothing: contents change only when a message goes through."""

    def local(self, rank: RankState) -> None:
        """Combine or copy; the step belongs to the round before it."""
        if rank.step.send.size:
            self._take(rank, *self._leaving(rank), rank.round)

    def carry(self, sender: RankState, receiver: RankState) -> None:
        """Keep a copy of the content sent; the sender's memory changes when its step ends."""
        round = max(sender.round, receiver.round) + 1
        self._arrived[receiver.rank] = *self._leaving(sender), round

    def end(self, rank: RankState) -> None:
        """Store or combine the message that has arrived."""
        arrived = self._arrived.pop(rank.rank, None)
        if arrived is not None:  # empty spans change nothing
            self._take(rank, *arrived)

    def _leaving(self, rank: RankState) -> tuple[range, Carried]:
        cells = self._cells.of(rank.step.send)
        return cells, tuple(self.state[rank.rank][i] for i in cells)

    def _take(self, rank: RankState, send: range, carried: Carried, round: int) -> None:
        step, state = rank.step, self.state[rank.rank]
        assert step.receive_from is not None
        into = self._cells.of(step.receive)
        before = tuple(state[i] for i in into)
        after = carried
        if step.combine:
            # The lower rank's operand first; within one rank, the old content.
            mine_last = step.receive_from < rank.rank
            after = tuple(
                self._folded(rank, came, had) if mine_last else self._folded(rank, had, came)
                for came, had in zip(carried, before, strict=True)
            )
        state[into.start : into.stop] = after
        self.hops.append(
            Hop(
                round, step.receive_from, rank.rank, send, into, step.combine, carried, before,
                after,
            )
        )  # fmt: skip

    def _folded(self, rank: RankState, first: Content | None, second: Content | None) -> Content:
        if first is None or second is None:
            raise rank.error(f"{first} is combined with {second}: one of them is undefined")
        if first.whose & second.whose:
            raise rank.error(f"{first} is combined with {second}: some would count twice")
        numbers = tuple(map(self._fold, first.numbers, second.numbers))
        return Content(first.whose | second.whose, numbers)
