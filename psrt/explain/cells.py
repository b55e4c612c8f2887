"""The pieces that a schedule cuts the vector into, read off its spans. Pure.

A *cell* is a run of elements that no message ever takes apart, so all of them share one fate and
one place in a drawing. A ring of p ranks has p cells, its chunks; a tree has one, the vector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from psrt.collective.step import Step
from psrt.partition import Span


class Cells:
    """The cells of the vector and of the workspace behind it, in order."""

    def __init__(
        self,
        plan: Sequence[Sequence[Step]],
        n: int,
        workspace: int = 0,
        also: Iterable[Span] = (),
    ) -> None:
        """Cut where any message begins or ends.

        Args:
            plan: the steps of all ranks.
            n: elements of the vector.
            workspace: elements behind it.
            also: spans whose ends shall be ends of cells, too.
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
        #: Each cell's elements.
        self.spans = tuple(Span(a, b) for a, b in pairwise(sorted(bounds)))
        #: How many of them are in the vector; the others are in the workspace.
        self.in_vector = sum(span.start < n for span in self.spans)
        self._index = {span.start: i for i, span in enumerate(self.spans)}
        self._index[n + workspace] = len(self.spans)

    def of(self, span: Span) -> range:
        """Return the cells that make up ``span``, whose ends are ends of cells."""
        return range(self._index[span.start], self._index[span.stop]) if span.size else range(0)


def _moves(plan: Sequence[Sequence[Step]]) -> Iterator[tuple[Span, Span]]:
    """Yield where from and where to, for all that lands elsewhere than it left from.

    Messages of one pair of ranks keep their order, so the i-th that one sends is the i-th that
    the other receives.
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
    """Add the bounds that others have on the far side of a move, until there are none to add."""
    while moves:
        before = len(bounds)
        for one, other in moves:
            for here, there in ((one, other), (other, one)):
                shift = there.start - here.start
                bounds |= {x + shift for x in tuple(bounds) if here.start < x < here.stop}
        if len(bounds) == before:
            return
