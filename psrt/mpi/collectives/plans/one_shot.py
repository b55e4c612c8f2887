"""All-reduce of a few numbers on one host: one barrier, then every rank folds everything.

A rank copies its numbers to a stage that the others can see and arrives at the barrier. When all
have arrived, it folds all stages, in the order of the local ranks, into its own array. All compute
the same in the same order, so they get the same bits. This is L times the work of folding a slice
each, but needs one barrier instead of two, which is what counts for a few kilobytes.

Two stages in turn are enough: a rank that writes stage k + 2 has met all others at barrier k + 1,
and each of them had finished reading stage k before it arrived there.
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

#: Polls of the only other rank's count before the general wait, whose set-up costs more than
#: these polls: a store takes about as long from core to core as a poll or two.
_LOOKS = 8
#: Folds that get their output by keyword. All others get it by position, which is quicker but which
#: numpy deprecates for these two.
_BY_NAME = (np.minimum, np.maximum)


class OneShot(OnHost):
    """The plan of one rank."""

    def __init__(self, context: CollectiveContext, vector: AnyVector, operation: Operation) -> None:
        """Compile.

        Args:
            context: of the collective.
            vector: (n,), this rank's, in any memory; at most ``ONE_SHOT_BYTES``.
            operation: folds two values.
        """
        super().__init__(context)
        self._barrier = context.barrier
        self._vector = vector
        self._fold = operation.ufunc
        slot = context.slot
        self._ranks = len(slot.stages)
        #: The factor by which the numbers are multiplied on their way to the stage.
        self._scale = operation.scale(vector.dtype, self._ranks)
        is_whole = not operation.divides or self._scale * self._ranks == 1
        self._finish = None if is_whole else operation.finish
        self._bytes = vector.view(np.uint8).data
        #: By turn: this rank's stage as bytes, and the stages of all as numbers, this rank's last.
        self._turns = []
        # Two stages are enough; there are three since a slot's memory is split as for ``staged``.
        for turn in range(STAGES):
            at = turn * ONE_SHOT_BYTES
            stages = [stage[at : at + vector.nbytes] for stage in slot.stages]
            numbers = [stage.view(vector.dtype) for stage in stages]
            mine = slot.local_rank
            self._turns.append(
                (stages[mine].data, numbers[0], numbers[1], numbers[2:], numbers[mine])
            )
        #: The number of quick runs that are not yet in the byte counters.
        self.runs = 0
        self.bytes_sent = self.bytes_received = vector.nbytes * (self._ranks - 1)

    def run(self) -> Run:
        """Run it."""
        barrier = self._barrier
        # The stage of the next barrier, by the count that ``quick`` uses, too: both may run on the
        # same slot, and a stage must not be written twice in a row.
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

        At a kilobyte every Python operation counts. This is ``CallMatcher.begin`` and ``run`` in
        one; it calls ``wait`` only if a rank is late.

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
            # Stages take turns by the count of barriers, which is the same on all ranks. A slow
            # peer may still fold stage k while this rank writes k + 1; by k + 2 they have met.
            stage, first, second, _, mine = turns[(word >> SHIFT) % STAGES]
            if multiply is None:
                stage[everything] = source
            else:
                multiply(vector, scale, mine)
            # Release: the numbers before the count that publishes them.
            if fence is not None:
                fence()
            own[0] = word
            # The flag is read after the count is stored, for the reason in ``Barrier.arrive``.
            if asleep[0]:
                wake()
            # Nearly always equal. Greater is one barrier ahead: the peer has seen this rank here
            # and is in the next call. ``wait`` tells that from less, and from another call.
            for _ in looks:
                if theirs[0] == word:
                    break
            else:
                wait(self)
            # Acquire: their numbers are read after their count.
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
            # As with two ranks: a peer that folded stage k has been met at k + 1 before k + 2 is
            # written.
            stage, first, second, rest, mine = turns[(word >> SHIFT) % STAGES]
            if multiply is None:
                stage[everything] = source
            else:
                multiply(vector, scale, mine)
            # Release, as with two ranks: a peer that sees the count must see the numbers.
            if fence is not None:
                fence()
            own[0] = word
            for asleep, wake in wakers:
                if asleep[0]:
                    wake()
            # A peer may be a barrier ahead: it has seen this rank arrive here. A late one most
            # likely waits for this core. If it does not arrive, or is in another call, ``wait``
            # finds out which; it checks all peers, so one call is enough.
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
            # Acquire: ``wait`` has its own fence, but this quick path has none.
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
        """Return whether all ranks have published their numbers."""
        return self._barrier.is_complete()

    def _fold_all(self) -> None:
        """Fold the numbers on all stages."""
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
