"""All-reduce of a few numbers on one host: one meeting, then every rank folds everything.

A rank copies its numbers to a stage that the others can see and comes to the meeting; when all
have come it folds all stages, in the order of the local ranks, into its own array. All compute
the same in the same order, so they get the same bits. That is L times the work of a slice each,
but one meeting instead of two, which is what counts for a few kilobytes.

Two stages in turn would do: a rank that writes stage k + 2 has met all others at k + 1, and they
had read stage k by then.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from psrt.collective.ops import Operation
from psrt.mpi.collectives.calls import MEMORY, Calls
from psrt.mpi.collectives.plans.plan import Array, Plan, Run, Ticket
from psrt.mpi.collectives.plans.staged import STAGES
from psrt.mpi.collectives.slots import SHIFT, STAGE_BYTES

#: Most bytes of a vector for which this plan is meant.
FLAT_BYTES = STAGE_BYTES // STAGES


class Flat(Plan):
    """The plan of one rank."""

    polls = False

    def __init__(self, ticket: Ticket, vector: Array, operation: Operation) -> None:
        """Compile.

        Args:
            ticket: of the collective.
            vector: (n,), this rank's, anywhere; at most ``FLAT_BYTES``.
            operation: what folds two values.
        """
        self._ticket = ticket
        self._meeting = ticket.meeting
        self._vector = vector
        self._fold = operation.ufunc
        self._finish = operation.finish if operation.divides else None
        slot = ticket.slot
        self._ranks = len(slot.stages)
        self._bytes = vector.view(np.uint8).data
        #: By turn: this rank's stage as bytes, and the stages of all as numbers.
        self._turns = []
        for turn in range(STAGES):
            at = turn * FLAT_BYTES
            stages = [stage[at : at + vector.nbytes] for stage in slot.stages]
            numbers = [stage.view(vector.dtype) for stage in stages]
            self._turns.append((stages[slot.local].data, numbers[0], numbers[1], numbers[2:]))
        #: Quick runs so far that have not been added up.
        self.runs = 0
        self.bytes_sent = self.bytes_received = vector.nbytes * (self._ranks - 1)

    def run(self) -> Run:
        """Carry it out."""
        meeting = self._meeting
        self._turns[((meeting.word >> SHIFT) + 1) % STAGES][0][:] = self._bytes
        meeting.come()
        if not meeting.all_here():
            yield meeting.all_here
        self._fold_all()

    def quick(self, calls: Calls, sheet: str, wait: Callable[[Plan], None]) -> Callable[[], None]:
        """Return what makes the call and carries it out, in as few operations as can be.

        At a kilobyte each of Python's steps shows. This is ``Calls.begin`` and ``run`` in one
        piece; only where somebody is late it calls for help.

        Args:
            calls: takes note of the call.
            sheet: of the call.
            wait: waits until all are here.
        """
        meeting, turns, source, vector = self._meeting, self._turns, self._bytes, self._vector
        sheets, own, others, cords = calls.sheets, meeting.own, meeting.others, meeting.cords
        fence, one, everything = meeting.fence, 1 << SHIFT, slice(None)
        fold, finish, ranks = self._fold, self._finish, self._ranks
        (asleep, wake), theirs = cords[0], others[0]
        # The quicker way to name a ufunc's output; numpy deprecates it for these two.
        by_position = fold not in (np.minimum, np.maximum)

        def call_two() -> None:
            calls.number = number = calls.number + 1
            sheets[number % MEMORY] = sheet
            meeting.word = word = meeting.word + one
            stage, first, second, _ = turns[(word >> SHIFT) % STAGES]
            stage[everything] = source
            if fence is not None:
                fence()
            own[0] = word
            if asleep[0]:
                wake()
            if theirs[0] != word:
                wait(self)
            if fence is not None:
                fence()
            if by_position:
                fold(first, second, vector)
            else:
                fold(first, second, out=vector)
            self.runs += 1

        def call() -> None:
            calls.number = number = calls.number + 1
            sheets[number % MEMORY] = sheet
            meeting.word = word = meeting.word + one
            stage, first, second, rest = turns[(word >> SHIFT) % STAGES]
            stage[everything] = source
            if fence is not None:
                fence()
            own[0] = word
            for asleep, wake in cords:
                if asleep[0]:
                    wake()
            for theirs in others:
                if theirs[0] != word:
                    wait(self)
                    break
            if fence is not None:
                fence()
            fold(first, second, out=vector)
            for numbers in rest:
                fold(vector, numbers, out=vector)
            if finish is not None:
                finish(vector, ranks)
            self.runs += 1

        return call_two if ranks == 2 and finish is None else call

    def all_here(self) -> bool:
        """Tell whether all have put their numbers where the others see them."""
        return self._meeting.all_here()

    def _fold_all(self) -> None:
        """Fold what all have put on their stages."""
        _, first, second, rest = self._turns[(self._meeting.word >> SHIFT) % STAGES]
        vector = self._vector
        self._fold(first, second, out=vector)
        for numbers in rest:
            self._fold(vector, numbers, out=vector)
        if self._finish is not None:
            self._finish(vector, self._ranks)

    def whom(self) -> str:
        """Name the ranks that have not come."""
        return self._ticket.absent()

    def free(self) -> None:
        """Let go of the memory."""
        self._turns.clear()
