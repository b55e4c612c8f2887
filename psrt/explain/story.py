"""What happens in a collective, round by round: who hands what to whom, and what comes of it.

The schedules of all ranks are run on *holdings*, which say whose numbers a piece of the vector is
the sum of, and, where an example has numbers, what that sum is. Texts, drawings and JSON are made
of the story that comes out; nothing else here runs a schedule. Pure: no buffers, no MPI.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from psrt.collective.ops import OPS
from psrt.collective.spec import CollectiveSpec
from psrt.collective.step import Step
from psrt.errors import ProtocolError
from psrt.explain.cells import Cells
from psrt.partition import Span

Number = int | float
Fold = Callable[[Number, Number], Number]

#: Operation → what it folds two numbers with; a mean is a sum that is divided at the end.
FOLDS: dict[str, Fold] = {op.name: op.of_two for op in OPS.values()}


class Holding(NamedTuple):
    """What a rank has in one cell."""

    #: Bit mask of the ranks whose numbers are folded here, each counted once.
    whose: int
    #: The folded numbers, one per element; empty where the story is told without numbers.
    numbers: tuple[Number, ...] = ()


#: By cell; None: nothing of use.
Holdings = list[Holding | None]


@dataclass(frozen=True, slots=True)
class Hop:
    """One message, or one local step of a rank, which is its own ``source`` and ``target``."""

    #: From 1 on. Two messages are in one round if neither has to wait for the other; a local
    #: step belongs to the round before it, 0 at the start.
    round: int
    source: int
    target: int
    #: Cells that leave, and cells that they land in.
    send: range
    receive: range
    #: Whether the target folds what arrives into what it has.
    combine: bool
    #: What arrives, by cell.
    carried: tuple[Holding | None, ...]
    #: What the target has in these cells before and after.
    before: tuple[Holding | None, ...]
    after: tuple[Holding | None, ...]

    @property
    def local(self) -> bool:
        """Whether no message is needed."""
        return self.source == self.target


@dataclass(frozen=True, slots=True)
class Story:
    """All that happens, in order."""

    task: CollectiveSpec
    cells: Cells
    #: By round, and within a round by source, local steps last.
    hops: tuple[Hop, ...]
    #: By rank, what it has at the start and at the end.
    start: tuple[Holdings, ...]
    end: tuple[Holdings, ...]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return max((hop.round for hop in self.hops), default=0)

    @property
    def folds(self) -> bool:
        """Whether the collective adds up, rather than only moving numbers about."""
        return self.task.folds

    def by_round(self) -> Iterator[tuple[int, tuple[Hop, ...]]]:
        """Yield each round's number and hops."""
        for number, hops in groupby(self.hops, key=lambda hop: hop.round):
            yield number, tuple(hops)

    def owed(self, rank: int) -> list[int]:
        """Return the cells that the collective owes a rank; what is in the others is of no use."""
        return [i for owed in self.task.owed[rank] for i in self.cells.of(owed.span)]


def tell(
    plan: Sequence[Sequence[Step]],
    task: CollectiveSpec,
    values: Sequence[Sequence[Number]] | None = None,
    fold: Fold = operator.add,
    order: Sequence[int] | None = None,
) -> Story:
    """Run the steps of all ranks and write down what happens.

    Args:
        plan: by rank, its steps.
        task: what the ranks start with and must end with.
        values: by rank, the n numbers of its vector; None tells the story without numbers.
        fold: combines two of them, the lower rank's first.
        order: in which the ranks of a round are told of; None: by number.

    Raises:
        ProtocolError: if the plan does not do the task.
    """
    bounds = [span for rank in task.has for span in rank]
    bounds += [owed.span for rank in task.owed for owed in rank]
    cells = Cells(plan, task.n, task.workspace, [span for span in bounds if span.size])
    start = tuple(_start(task, cells, rank, values) for rank in range(task.size))
    teller = _Teller(plan, cells, start, fold)
    teller.run()
    # A rank receives at most once a round, so this order keeps every rank's own.
    place = {rank: i for i, rank in enumerate(order or range(task.size))}
    hops = sorted(teller.hops, key=lambda hop: (hop.round, hop.local, place[hop.source]))
    story = Story(task, cells, tuple(hops), start, tuple(teller.state))
    _check(story)
    return story


def _start(
    task: CollectiveSpec, cells: Cells, rank: int, values: Sequence[Sequence[Number]] | None
) -> Holdings:
    """Return what a rank's own numbers are in."""
    holdings: Holdings = [None] * len(cells.spans)
    for span in task.has[rank]:
        for i in cells.of(span):
            start, stop = cells.spans[i]
            numbers = () if values is None else tuple(values[rank][start:stop])
            holdings[i] = Holding(1 << rank, numbers)
    return holdings


def _check(story: Story) -> None:
    """Raise if a rank ends with anything else than it is owed."""
    everyone = (1 << story.task.size) - 1
    for rank, debts in enumerate(story.task.owed):
        for span, source in debts:
            expected = everyone if source is None else 1 << source
            for i in story.cells.of(span):
                found = story.end[rank][i]
                if found is None or found.whose != expected:
                    raise ProtocolError(
                        f"rank {rank} ends with {found} in {story.cells.spans[i]}, "
                        f"expected the numbers of ranks {expected:b}"
                    )


class _Posted:
    """A step that a rank has posted, and what of it is still open."""

    __slots__ = ("arrived", "came_from", "leaving", "met", "receives", "round", "sends", "step")

    def __init__(self, step: Step, leaving: tuple[Holding | None, ...], round: int) -> None:
        self.step = step
        #: Whether the halves are still to be done; those of empty spans are left out.
        self.sends = step.send_to is not None and step.send.size > 0
        self.receives = step.receive_from is not None and step.receive.size > 0
        #: What the rank held before the step.
        self.leaving = leaving
        #: The round in which the step ends.
        self.round = round
        #: What has come, from where in the sender's memory, in which round.
        self.arrived: tuple[Holding | None, ...] | None = None
        self.came_from = Span(0, 0)
        self.met = 0


class _Teller:
    """Takes the steps of all ranks, each as soon as its peers let it (rendezvous)."""

    def __init__(
        self, plan: Sequence[Sequence[Step]], cells: Cells, start: Sequence[Holdings], fold: Fold
    ) -> None:
        self._steps = [iter(steps) for steps in plan]
        self._cells = cells
        self._fold = fold
        self._posted: list[_Posted | None] = [None] * len(plan)
        #: Rounds gone by at each rank.
        self._depth = [0] * len(plan)
        #: By rank, what it has now.
        self.state = [list(holdings) for holdings in start]
        #: In the order in which they came to pass.
        self.hops: list[Hop] = []

    def run(self) -> None:
        """Take all steps.

        Raises:
            ProtocolError: if ranks wait for ever, or two ends of a message differ.
        """
        free = list(range(len(self._steps)))
        while free:
            rank = free.pop()
            step = next(self._steps[rank], None)
            if step is not None:
                free += self._post(rank, step)
        for rank, posted in enumerate(self._posted):
            if posted is not None:
                raise ProtocolError(f"rank {rank} waits for ever in {posted.step}")

    def _post(self, rank: int, step: Step) -> list[int]:
        """Begin a step; return the ranks whose step has come to its end by that."""
        leaving = tuple(self.state[rank][i] for i in self._cells.of(step.send))
        posted = self._posted[rank] = _Posted(step, leaving, self._depth[rank])
        if step.is_local(rank):
            posted.sends = posted.receives = False
            posted.arrived, posted.came_from, posted.met = leaving, step.send, self._depth[rank]
            self._end(rank, posted)
            return [rank]
        if posted.sends and step.send_to is not None:
            self._match(rank, step.send_to)
        if posted.receives and step.receive_from is not None:
            self._match(step.receive_from, rank)
        return [
            r for r in {rank, step.send_to, step.receive_from} if r is not None and self._done(r)
        ]

    def _match(self, source: int, target: int) -> None:
        """Hand over what ``source`` sends if both have posted their halves."""
        ours, theirs = self._posted[source], self._posted[target]
        if ours is None or theirs is None or not ours.sends or not theirs.receives:
            return
        if ours.step.send_to != target or theirs.step.receive_from != source:
            return
        if ours.step.send.size != theirs.step.receive.size:
            raise ProtocolError(f"rank {source} sends {ours.step}, rank {target} {theirs.step}")
        round = max(self._depth[source], self._depth[target]) + 1
        ours.sends = theirs.receives = False
        ours.round, theirs.round = max(ours.round, round), max(theirs.round, round)
        theirs.arrived, theirs.came_from, theirs.met = ours.leaving, ours.step.send, round

    def _done(self, rank: int) -> bool:
        """End a rank's step if both its halves are through; return whether it was."""
        posted = self._posted[rank]
        if posted is None or posted.sends or posted.receives:
            return False
        self._end(rank, posted)
        return True

    def _end(self, rank: int, posted: _Posted) -> None:
        """Put what has come where it belongs, and let the rank go on."""
        step, state = posted.step, self.state[rank]
        self._posted[rank], self._depth[rank] = None, posted.round
        if not posted.arrived or step.receive_from is None:  # empty spans are no news
            return
        into = self._cells.of(step.receive)
        before = tuple(state[i] for i in into)
        after = posted.arrived
        if step.combine:
            first = rank if step.is_local(rank) else step.receive_from
            after = tuple(
                self._folded(a, b) if first < rank else self._folded(b, a)
                for a, b in zip(posted.arrived, before, strict=True)
            )
        state[into.start : into.stop] = after
        source = step.receive_from
        send = self._cells.of(posted.came_from)
        self.hops.append(
            Hop(posted.met, source, rank, send, into, step.combine, posted.arrived, before, after)
        )

    def _folded(self, first: Holding | None, second: Holding | None) -> Holding:
        if first is None or second is None:
            raise ProtocolError(f"{first} is combined with {second}: one of them is undefined")
        if first.whose & second.whose:
            raise ProtocolError(f"{first} is combined with {second}: some would count twice")
        numbers = tuple(map(self._fold, first.numbers, second.numbers))
        return Holding(first.whose | second.whose, numbers)
