"""All-reduce of a few numbers on one host: one barrier, then every rank folds everything.

A rank copies its numbers to a stage that the others can see and comes to the barrier; when all
have come it folds all stages, in the order of the local ranks, into its own array. All compute
the same in the same order, so they get the same bits. That is L times the work of a slice each,
but one barrier instead of two, which is what counts for a few kilobytes.

Two stages in turn would do: a rank that writes stage k + 2 has met all others at k + 1, and they
had read stage k by then.
"""

from __future__ import annotations

from collections.abc import Callable
from os import sched_yield

import numpy as np

from psrt.collective.ops import Operation
from psrt.collective.registry import ONE_SHOT_BYTES
from psrt.core.arrays import AnyVector
from psrt.mpi.collectives.matcher import MEMORY, CallMatcher
from psrt.mpi.collectives.plans.plan import CollectiveContext, OnHost, Plan, Run
from psrt.mpi.collectives.plans.staged import STAGES
from psrt.mpi.collectives.slots import QUICK_YIELDS, SHIFT

#: Looks at the count of the only other rank before a wait at length, which alone costs more than
#: these: a store takes about as long to get from core to core as a look or two.
_LOOKS = 8
#: Folds whose output is named; elsewhere it is given by position, the quicker way, which numpy
#: deprecates for these two.
_BY_NAME = (np.minimum, np.maximum)


class OneShot(OnHost):
    """The plan of one rank."""

    def __init__(self, context: CollectiveContext, vector: AnyVector, operation: Operation) -> None:
        """Compile.

        Args:
            context: of the collective.
            vector: (n,), this rank's, anywhere; at most ``ONE_SHOT_BYTES``.
            operation: what folds two values.
        """
        super().__init__(context)
        self._barrier = context.barrier
        self._vector = vector
        self._fold = operation.ufunc
        slot = context.slot
        self._ranks = len(slot.stages)
        #: What the numbers are multiplied by on their way to the stage.
        self._scale = operation.scale(vector.dtype, self._ranks)
        is_whole = not operation.divides or self._scale * self._ranks == 1
        self._finish = None if is_whole else operation.finish
        self._bytes = vector.view(np.uint8).data
        #: By turn: this rank's stage as bytes, and the stages of all as numbers, this rank's last.
        self._turns = []
        # Two stages would do; three are there, since the slot's room is cut as for ``staged``.
        for turn in range(STAGES):
            at = turn * ONE_SHOT_BYTES
            stages = [stage[at : at + vector.nbytes] for stage in slot.stages]
            numbers = [stage.view(vector.dtype) for stage in stages]
            mine = slot.local_rank
            self._turns.append(
                (stages[mine].data, numbers[0], numbers[1], numbers[2:], numbers[mine])
            )
        #: Quick runs so far that have not been added up.
        self.runs = 0
        self.bytes_sent = self.bytes_received = vector.nbytes * (self._ranks - 1)

    def run(self) -> Run:
        """Run it."""
        barrier = self._barrier
        # The stage of the barrier that comes next, as ``quick`` counts them.
        stage, *_, mine = self._turns[((barrier.word >> SHIFT) + 1) % STAGES]
        if self._scale == 1:
            stage[:] = self._bytes
        else:
            np.multiply(self._vector, self._scale, out=mine)
        if not barrier.arrive():
            yield barrier.is_complete
        self._fold_all()

    def quick(
        self, calls: CallMatcher, signature: str, wait: Callable[[Plan], None]
    ) -> Callable[[], None]:
        """Return a function that makes the call and runs it in as few operations as possible.

        At a kilobyte every step of Python counts. This is ``CallMatcher.begin`` and ``run`` in one
        piece; only where a rank is late it calls ``wait``.

        Args:
            calls: records the call.
            signature: of the call.
            wait: waits until all have arrived.
        """
        if self._ranks == 2 and self._finish is None:
            return self._quick_of_two(calls, signature, wait)
        return self._quick_of_many(calls, signature, wait)

    def _quick_of_two(
        self, calls: CallMatcher, signature: str, wait: Callable[[Plan], None]
    ) -> Callable[[], None]:
        barrier, turns, source, vector = self._barrier, self._turns, self._bytes, self._vector
        signatures, own, fence, fold = calls.signatures, barrier.own, barrier.fence, self._fold
        [theirs], [(asleep, wake)] = barrier.others, barrier.wakers
        one, everything, looks = 1 << SHIFT, slice(None), range(_LOOKS)
        scale, multiply = self._scale, None if self._scale == 1 else np.multiply
        by_position = fold not in _BY_NAME

        def call() -> None:
            calls.number = number = calls.number + 1
            signatures[number % MEMORY] = signature
            barrier.word = word = barrier.word + one
            # The stages take turns by the count of barriers, which is the same on all ranks. A slow
            # peer may still fold stage k while this rank writes k + 1; by k + 2 they have met.
            stage, first, second, _, mine = turns[(word >> SHIFT) % STAGES]
            if multiply is None:
                stage[everything] = source
            else:
                multiply(vector, scale, mine)
            # Release: the numbers, then the count that shows them.
            if fence is not None:
                fence()
            own[0] = word
            # The flag is read after the count is stored, as in ``Barrier.arrive``.
            if asleep[0]:
                wake()
            # Nearly always equal. Greater is one barrier ahead: it has seen this rank here, and is
            # in the next call; ``wait`` tells that from less, and from another call.
            for _ in looks:
                if theirs[0] == word:
                    break
            else:
                wait(self)
            # Acquire: their numbers after their count.
            if fence is not None:
                fence()
            if by_position:
                fold(first, second, vector)
            else:
                fold(first, second, out=vector)
            self.runs += 1

        return call

    def _quick_of_many(
        self, calls: CallMatcher, signature: str, wait: Callable[[Plan], None]
    ) -> Callable[[], None]:
        barrier, turns, source, vector = self._barrier, self._turns, self._bytes, self._vector
        signatures, own, fence, fold = calls.signatures, barrier.own, barrier.fence, self._fold
        others, wakers, one, everything = barrier.others, barrier.wakers, 1 << SHIFT, slice(None)
        scale, multiply = self._scale, None if self._scale == 1 else np.multiply
        by_position, finish, ranks = fold not in _BY_NAME, self._finish, self._ranks
        yields = range(QUICK_YIELDS if self.context.slot.oversubscribed else 0)

        def call() -> None:
            calls.number = number = calls.number + 1
            signatures[number % MEMORY] = signature
            barrier.word = word = barrier.word + one
            # As of two: whoever folded stage k has been met at k + 1 when k + 2 is written.
            stage, first, second, rest, mine = turns[(word >> SHIFT) % STAGES]
            if multiply is None:
                stage[everything] = source
            else:
                multiply(vector, scale, mine)
            # Release, as of two: no peer that sees the count may miss the numbers.
            if fence is not None:
                fence()
            own[0] = word
            for asleep, wake in wakers:
                if asleep[0]:
                    wake()
            # A peer may be a barrier ahead: it has seen this rank arrive here. One that is late
            # most likely waits for this core. If it does not come, or is in another call, ``wait``
            # tells these apart; its own look covers all, so one call is enough.
            ahead = word + one
            for theirs in others:
                if theirs[0] != word and theirs[0] != ahead:
                    for _ in yields:
                        sched_yield()
                        if theirs[0] == word or theirs[0] == ahead:
                            break
                    else:
                        wait(self)
                        break
            # Acquire: ``wait`` has a fence of its own, but not the quick way here.
            if fence is not None:
                fence()
            if by_position:
                fold(first, second, vector)
                for numbers in rest:
                    fold(vector, numbers, vector)
            else:
                fold(first, second, out=vector)
                for numbers in rest:
                    fold(vector, numbers, out=vector)
            if finish is not None:
                finish(vector, ranks)
            self.runs += 1

        return call

    def is_complete(self) -> bool:
        """Return whether all have put their numbers where the others see them."""
        return self._barrier.is_complete()

    def _fold_all(self) -> None:
        """Fold what all have put on their stages."""
        _, first, second, rest, _ = self._turns[(self._barrier.word >> SHIFT) % STAGES]
        vector = self._vector
        self._fold(first, second, out=vector)
        for numbers in rest:
            self._fold(vector, numbers, out=vector)
        if self._finish is not None:
            self._finish(vector, self._ranks)

    def free(self) -> None:
        """Release the memory."""
        self._turns.clear()
