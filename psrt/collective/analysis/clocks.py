"""Ranks on clocks: when each step of a schedule begins and ends. Pure: spans and seconds.

What `cost` sums up is found here, by running all ranks at once on clocks instead of numbers. A
rank takes its steps in order. A step is posted when the one before it has ended; a message begins
when both ends have posted their half (rendezvous) and takes α + mβ for m elements; a step ends
when both its halves are through and what came is combined, in mγ.

**Overlap.** An executor may post step i + 1 before it combines what step i brought, and combine
while the bytes are on their way:

.. code-block:: text

    wire   | step 1 |  step 2  |  step 3  |
    rank            | fold 1 | | fold 2 | | fold 3 |

It may not where step i + 1 sends or overwrites the elements that are being combined; there it
waits. The rank has one pair of hands, so step i + 1 ends when its bytes are there *and* fold i is
done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from psrt.collective.step import NOTHING, Step
from psrt.errors import ProtocolError
from psrt.partition import Span


class _Fold(NamedTuple):
    """What a rank still has to combine while its next step is under way."""

    span: Span
    #: Seconds that it takes.
    seconds: float


_NO_FOLD = _Fold(NOTHING, 0.0)


class RankClock:
    """One rank's clock and its posted step."""

    __slots__ = (
        "clock", "combined", "depth", "end", "end_depth", "fold", "received", "receives_from",
        "sends_to", "sent", "step", "steps",
    )  # fmt: skip

    def __init__(self, steps: Iterator[Step]) -> None:
        self.steps = steps
        #: The step that is posted; None: nothing is.
        self.step: Step | None = None
        #: Seconds gone by, and rounds, when the step was posted.
        self.clock, self.depth = 0.0, 0
        #: The same when its messages and the fold beside them are through, so far.
        self.end, self.end_depth = 0.0, 0
        #: Peers that the halves of the step still wait for; None: no such half, or it is through.
        self.sends_to: int | None = None
        self.receives_from: int | None = None
        #: Left by the step before; it is done while the posted one is under way.
        self.fold = _NO_FOLD
        #: Elements so far.
        self.sent = self.received = self.combined = 0

    def post(self, step: Step) -> None:
        """Begin a step; the fold left over is done before it or beside it."""
        if _touches(step, self.fold.span):
            self.settle()
        self.step = step
        self.end, self.end_depth = self.clock + self.fold.seconds, self.depth
        self.fold = _NO_FOLD
        self.sends_to = step.send_to if step.send.size else None
        self.receives_from = step.receive_from if step.receive.size else None

    def settle(self) -> None:
        """Do the fold that is left over, beside nothing."""
        self.clock += self.fold.seconds
        self.fold = _NO_FOLD


class Clocks:
    """All ranks of a schedule on their clocks."""

    def __init__(
        self,
        schedules: Sequence[Iterable[Step]],
        *,
        alpha: float,
        beta: float,
        gamma: float,
        overlap: bool,
    ) -> None:
        """Set all clocks to 0.

        Args:
            schedules: the steps of each rank.
            alpha: seconds per message.
            beta: seconds per element on the wire.
            gamma: seconds per element combined.
            overlap: whether a rank combines beside its next step.
        """
        self.ranks = [RankClock(iter(steps)) for steps in schedules]
        #: Messages so far, and the pairs (from, to) that they took.
        self.messages = 0
        self.wires: set[tuple[int, int]] = set()
        self._alpha, self._beta, self._gamma, self._overlap = alpha, beta, gamma, overlap
        #: Ranks that can take their next step.
        self._free = list(range(len(self.ranks)))

    def run(self) -> None:
        """Take all steps of all ranks.

        Raises:
            ProtocolError: if the ranks wait for each other for ever, or the two ends of a message
                differ in size.
        """
        while self._free:
            number = self._free.pop()
            step = next(self.ranks[number].steps, None)
            if step is None:
                self.ranks[number].settle()
            else:
                self._begin(number, step)
        for number, rank in enumerate(self.ranks):
            if rank.step is not None:
                raise ProtocolError(f"rank {number} waits for ever in {rank.step}")

    def _begin(self, number: int, step: Step) -> None:
        """Post a step and hand over what its peers have posted the other half of."""
        rank = self.ranks[number]
        if step.is_local(number):
            self._locally(rank, step)
            self._free.append(number)
            return
        rank.post(step)
        to, source = rank.sends_to, rank.receives_from
        if to is None and source is None:
            self._end(number)
        if to is not None and self.ranks[to].receives_from == number:
            self._carry(number, to)
        if source is not None and self.ranks[source].sends_to == number:
            self._carry(source, number)

    def _locally(self, rank: RankClock, step: Step) -> None:
        """Combine two spans of the own memory; a copy is free."""
        if step.combine:
            rank.settle()
            rank.clock += step.send.size * self._gamma
            rank.combined += step.send.size
        elif _touches(step, rank.fold.span):
            rank.settle()

    def _carry(self, sender: int, receiver: int) -> None:
        """Hand over one message that both ends have posted."""
        source, to = self.ranks[sender], self.ranks[receiver]
        assert source.step is not None
        assert to.step is not None
        size, expected = source.step.send.size, to.step.receive.size
        if size != expected:
            raise ProtocolError(
                f"rank {sender} sends {size} elements to rank {receiver}, which expects {expected}"
            )
        end = max(source.clock, to.clock) + self._alpha + size * self._beta
        depth = max(source.depth, to.depth) + 1
        for rank in (source, to):
            rank.end, rank.end_depth = max(rank.end, end), max(rank.end_depth, depth)
        source.sends_to = to.receives_from = None
        source.sent += size
        to.received += size
        self.messages += 1
        self.wires.add((sender, receiver))
        for number, rank in ((sender, source), (receiver, to)):
            if rank.sends_to is None and rank.receives_from is None:
                self._end(number)

    def _end(self, number: int) -> None:
        """Both halves are through: combine what came, now or beside the next step."""
        rank = self.ranks[number]
        step = rank.step
        assert step is not None
        rank.step, rank.clock, rank.depth = None, rank.end, rank.end_depth
        if step.combine and step.receive_from is not None:
            rank.combined += step.receive.size
            rank.fold = _Fold(step.receive, step.receive.size * self._gamma)
            if not self._overlap:
                rank.settle()
        self._free.append(number)


def _touches(step: Step, span: Span) -> bool:
    """Return whether a step sends or overwrites elements of ``span``.

    What it receives to combine it may receive: that lands in scratch memory and is folded in turn.
    """
    if span.size == 0:
        return False
    sends = step.send.start < span.stop and span.start < step.send.stop
    copies = step.receive.start < span.stop and span.start < step.receive.stop
    return sends or (copies and not step.combine)
