"""All-reduce of arrays that only their owner can see, among the ranks of one host.

The array passes through staging memory, a piece at a time. Of each piece, rank r keeps slice r and
*shows* the other slices on its stage. All meet. It *folds* what the others show of slice r into its
own and shows the result. All meet. It *copies* the results of the other slices. To need only one
barrier per piece, the next piece is shown before the barrier that ends the fold of this one:

.. code-block:: text

    show 0 │ fold 0, show 1 │ copy 0, fold 1, show 2 │ copy 1, fold 2, show 3 │ …      │: all meet

Three stages in turn are needed: while a slow rank still copies the results of piece k − 1, a fast
one folds piece k and already shows piece k + 1. Before it shows k + 2, it has met the slow one,
which had finished with k − 1 by then. The turn continues from one run to the next.

Of n bytes a rank writes (L − 1)/L·n to its stage and n/L more as results, n in all. From the stages
of others it reads (L − 1)/L·n to fold and as much to copy.

**Two ranks** write n bytes and read n, as above, if each shows its whole pieces and folds those of
the other. Then nothing is copied, a piece that was shown is still in the cache when it is folded,
and no barrier is needed at the end. Both fold rank 0's numbers with rank 1's, in this order, so
they get the same bits.

.. code-block:: text

    show 0 │ fold 0, show 1 │ fold 1, show 2 │ …      │: both meet
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psrt.collective.ops import Operation
from psrt.core.arrays import AnyVector
from psrt.core.partition import Span, block_spans, even_spans
from psrt.mpi.collectives.plans.plan import CollectiveContext, OnHost, Run

#: Stages that take turns.
STAGES = 3
#: Bytes of a piece, and of a piece of two ranks, which fold whole pieces: the working set of a rank
#: fits into its core's cache.
PIECE_BYTES, PAIR_PIECE_BYTES = 1024 * 1024, 256 * 1024

#: Copies from the second to the first of each pair.
_Copies = list[tuple[memoryview, memoryview]]


class _Piece(NamedTuple):
    """A piece on one of the stages."""

    #: What the others fold: copies from the vector to this rank's stage.
    show: _Copies
    #: What this rank folds: its slice in its vector with those on the others' stages, in order.
    own: AnyVector
    folds: list[tuple[AnyVector, AnyVector]]
    #: The folded slice: a copy from the vector to this rank's stage.
    result: _Copies
    #: Results of the others: copies from their stages to the vector.
    copy: _Copies


class Staged(OnHost):
    """The plan of one rank."""

    def __init__(
        self,
        context: CollectiveContext,
        vector: AnyVector,
        buffers: Sequence[AnyVector],
        operation: Operation,
    ) -> None:
        """Compile.

        Args:
            context: of the collective.
            vector: (n,), this rank's, in any memory.
            buffers: each local rank's staging memory: ``STAGES`` times the same number of elements,
                of the vector's type.
            operation: folds two values.
        """
        super().__init__(context)
        self._vector = vector
        self._fold_two = operation.ufunc
        self._finish = operation.finish
        self._local, self._ranks = context.slot.local_rank, len(buffers)
        size = buffers[0].size // STAGES
        self._spans = block_spans(vector.size, size)
        #: The stages by turn and local rank.
        self._stages = [[r[s * size : (s + 1) * size] for r in buffers] for s in range(STAGES)]
        #: (turn, number of the piece) → the piece; made on first use.
        self._pieces: dict[tuple[int, int], _Piece] = {}
        moved = vector.nbytes * (self._ranks - 1) // self._ranks
        self.bytes_sent = self.bytes_received = 2 * moved

    def run(self) -> Run:
        """Run it."""
        barrier, context = self.context.barrier, self.context
        # The turn is kept in the context, not in the plan: other arrays with the same signature
        # use the same stages, and this call must not start on one that a slow rank still reads.
        first, count = context.turn, len(self._spans)
        context.turn = (first + count) % STAGES
        pieces = [self._piece((first + k) % STAGES, k) for k in range(count)]
        # No rank reads this stage any more: its last readers have been at a barrier since (see the
        # top of this file).
        if pieces:
            _carry(pieces[0].show)
        for k, piece in enumerate(pieces):
            if not barrier.arrive():
                yield barrier.is_complete
            # All have shown piece k and folded k - 1, so the results of k - 1 are on the stages.
            # Copying them first frees the stage that piece k + 2 will take.
            if k:
                _carry(pieces[k - 1].copy)
            self._fold(piece)
            # The stage of k + 1 was that of k - 2, and all copied the results of k - 2 before they
            # arrived at this barrier. Shown now, k + 1 is published by the next barrier together
            # with the results of k: one barrier per piece.
            if k + 1 < count:
                _carry(pieces[k + 1].show)
        if self._ranks == 2:
            return  # nothing is left to copy
        if not barrier.arrive():
            yield barrier.is_complete
        # No barrier is needed here: the next run shows on another stage, and meets the others
        # before the turn comes back to this one.
        if pieces:
            _carry(pieces[-1].copy)

    def _fold(self, piece: _Piece) -> None:
        own, fold = piece.own, self._fold_two
        # This reads the others' stages, and writes only this rank's memory: its vector, then the
        # result on its stage, which no peer reads before the next barrier.
        for one, other in piece.folds:
            fold(one, other, out=own)
        self._finish(own, self._ranks)
        _carry(piece.result)

    def _piece(self, turn: int, number: int) -> _Piece:
        key = (turn, number)
        if key not in self._pieces:
            self._pieces[key] = self._cut(self._stages[turn], self._spans[number])
        return self._pieces[key]

    def _cut(self, stages: Sequence[AnyVector], span: Span) -> _Piece:
        """Return the views of a piece of the vector on a stage."""
        local, mine = self._local, span.of(self._vector)
        if self._ranks == 2:
            both = [stage[: span.size] for stage in stages]
            show = [_pair(stages[local], mine, Span(0, span.size))]
            both[local] = mine
            return _Piece(show, own=mine, folds=[(both[0], both[1])], result=[], copy=[])
        slices = even_spans(span.size, self._ranks)
        own, others = slices[local], [r for r in range(self._ranks) if r != local]
        stage = stages[local]
        return _Piece(
            show=[_pair(stage, mine, part) for r, part in enumerate(slices) if r != local],
            own=own.of(mine),
            folds=[(own.of(mine), own.of(stages[r])) for r in others],
            result=[_pair(stage, mine, own)],
            copy=[_pair(mine, stages[r], slices[r]) for r in others],
        )

    def free(self) -> None:
        """Release the memory."""
        self._stages.clear()
        self._pieces.clear()


def _pair(into: AnyVector, given: AnyVector, span: Span) -> tuple[memoryview, memoryview]:
    # Bytes are copied as by memcpy; a numpy copy has a larger fixed cost.
    return span.of(into).view(np.uint8).data, span.of(given).view(np.uint8).data


def _carry(copies: _Copies) -> None:
    for into, given in copies:
        into[:] = given
