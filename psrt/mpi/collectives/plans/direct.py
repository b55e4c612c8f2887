"""All-reduce among windows: each rank of a host folds its own slice of all buffers.

.. code-block:: text

    meet     every buffer of the host is complete
    fold     rank r: own slice of all L buffers, block by block, while a block is in the cache
    between  with several hosts: rail i of the host's sum goes through a schedule with rail i of
             the other hosts, all rails at a time
    sink     rank r: writes the slice back to all L buffers
    meet     every buffer is finished, and its owner may continue

Nothing is copied through MPI inside the host. Rank r reads L slices and writes L slices of n/L
elements, so 2n elements pass each core whatever L is. On a single host fold and sink are one pass,
and a block is read from memory once. Each element is folded by one rank, always in the same order,
and copied to the others: so all ranks get the same bits, in every run.

**Fused updates.** A trainer needs updated parameters, not the sums. With a ``Sink`` of the
trainer's, rank r passes its slice of the sums to the optimizer while they are in the cache. The
sums are never written to memory, and each rank updates n/L parameters instead of n (Xu et al. 2020,
arXiv:2004.13336).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from psrt.collective.ops import Operation
from psrt.core.arrays import AnyVector
from psrt.core.partition import Span, block_spans, even_spans
from psrt.mpi.collectives.plans.plan import CollectiveContext, Plan, Run
from psrt.mpi.collectives.slots import Ready

#: Bytes of a block: a few blocks fit into a core's second-level cache.
BLOCK_BYTES = 256 * 1024


class Sink(Protocol):
    """Receives each block of results on the rank that has folded it."""

    #: Where a block is folded to before ``write``; None for its place in this rank's buffer.
    scratch: AnyVector | None
    #: Returns whether ``write`` may be called yet; None for always.
    gate: Ready | None

    def write(self, span: Span, folded: AnyVector) -> None:
        """Take a finished block."""


class WriteBack(Sink):
    """Writes results into every buffer of the host."""

    scratch = None
    gate = None

    def __init__(self, buffers: Sequence[AnyVector], own: int, itemsize: int) -> None:
        # Bytes are copied as by memcpy; a numpy copy has a larger fixed cost.
        self._bytes = [buffer.view(np.uint8).data for buffer in buffers]
        self._own = own
        self._itemsize = itemsize

    def write(self, span: Span, folded: AnyVector) -> None:
        """Copy the block from where it was folded to all other buffers."""
        at, end = span.start * self._itemsize, span.stop * self._itemsize
        source = folded.view(np.uint8).data
        for local, target in enumerate(self._bytes):
            if local != self._own:
                target[at:end] = source


class Keep(Sink):
    """Leaves results with the rank that has folded them: a reduce-scatter."""

    scratch = None
    gate = None

    def write(self, span: Span, folded: AnyVector) -> None:
        """Do nothing."""


class _Block(NamedTuple):
    """One block of this rank's slice."""

    span: Span
    #: Its view in each buffer, in the order of folding.
    parts: tuple[AnyVector, ...]
    #: Where it is folded to.
    out: AnyVector


class Direct(Plan):
    """The plan of one rank."""

    def __init__(
        self,
        context: CollectiveContext,
        buffers: Sequence[AnyVector],
        operation: Operation,
        *,
        size: int,
        sink: Sink | None = None,
        between: Plan | None = None,
        hosts: int = 1,
        home: int | None = None,
    ) -> None:
        """Compile.

        Args:
            context: of the collective.
            buffers: (n,) each, of all ranks of this host in local order, in shared memory.
            operation: folds two values.
            size: the number of ranks on all hosts.
            sink: receives the results; None writes them into all buffers.
            between: runs a schedule on this rank's rail of the first buffer; None if this rank
                leads no rail.
            hosts: the number of hosts.
            home: local rank whose buffer this rank's slice is folded into; None for its own, or
                with several hosts for the first one of the host.
        """
        self._context = context
        self._barrier = context.barrier
        # Looked up once: an operation resolves its functions at each access.
        self._fold_two, self._finish = operation.ufunc, operation.finish
        self._size = size
        self._between = between
        self._several_hosts = hosts > 1
        local, ranks = context.slot.local_rank, len(buffers)
        n, itemsize = buffers[0].size, buffers[0].itemsize
        # With several hosts, the sums of this host are made in its first buffer.
        home = home if home is not None else 0 if self._several_hosts else local
        self._sink = sink or WriteBack(buffers, home, itemsize)
        own = even_spans(n, ranks)[local]
        self._blocks = [
            self._block(Span(own.start + a, own.start + b), buffers, home)
            for a, b in block_spans(own.size, BLOCK_BYTES // itemsize)
        ]
        self.polls = hosts > 1
        #: Bytes that a run moves inside the host, in either direction.
        self._moved = own.size * (ranks - 1) * itemsize
        self._count()

    def _count(self) -> None:
        """Count the bytes of a run; between hosts, those of the newest run."""
        between, moved = self._between, self._moved
        self.bytes_received = moved + (between.bytes_received if between else 0)
        self.bytes_sent = moved + (between.bytes_sent if between else 0)

    def _block(self, span: Span, buffers: Sequence[AnyVector], home: int) -> _Block:
        # The block that is folded into comes first in the order: as the output of the first fold
        # it must be read before it is overwritten.
        order = [home, *(r for r in range(len(buffers)) if r != home)]
        parts = tuple(span.of(buffers[r]) for r in order)
        scratch = self._sink.scratch
        direct = self._several_hosts or scratch is None
        return _Block(span, parts, parts[0] if direct else scratch[: span.size])  # type: ignore[index]

    def run(self) -> Run:
        """Run it."""
        barrier = self._barrier
        if not barrier.arrive():
            yield barrier.is_complete
        gate = self._sink.gate
        # From here on every buffer of the host is complete. Until the next barrier only rank r
        # touches slice r of any buffer, so no lock is needed.
        if self._several_hosts:
            yield from self._run_between()
            if gate is not None and not gate():
                yield gate
            self._give()
        else:
            if gate is not None and not gate():
                yield gate
            self._fold(give=True)
        # No rank returns, and lets its caller write to its buffer, while a peer still reads or
        # writes there.
        if not barrier.arrive():
            yield barrier.is_complete

    def _run_between(self) -> Run:
        barrier = self._barrier
        # Folded into the first buffer of the host, slice by slice. A rail overlaps the slices of
        # several ranks, so it may be sent only after a barrier.
        self._fold(give=False)
        if not barrier.arrive():
            yield barrier.is_complete
        if self._between is not None:
            yield from self._between.run()
            self._count()
        # Not every rank leads a rail, and all write out slices of what the rails brought: so a
        # barrier before that.
        if not barrier.arrive():
            yield barrier.is_complete

    def _give(self) -> None:
        """Write out the sums of all hosts, which are in the first buffer."""
        finish, give = self._finish, self._sink.write
        scratch = self._sink.scratch
        for span, _, out in self._blocks:
            folded = out
            # Other ranks may read this block of the first buffer, but none writes it: a block that
            # is finished for a sink goes to its scratch.
            if scratch is not None:
                folded = scratch[: out.size]
                np.copyto(folded, out)
            finish(folded, self._size)
            give(span, folded)

    def _fold(self, *, give: bool) -> None:
        """Fold every block of this rank's slice; on a single host pass it to the sink at once."""
        fold, finish = self._fold_two, self._finish
        hand_out, size = self._sink.write, self._size
        for span, parts, out in self._blocks:
            if len(parts) == 1:
                if out is not parts[0]:
                    np.copyto(out, parts[0])
            else:
                fold(parts[0], parts[1], out=out)
                for part in parts[2:]:
                    fold(out, part, out=out)
            if give:
                finish(out, size)
                hand_out(span, out)

    def waiting_for(self) -> str:
        """Name the ranks that have not arrived."""
        if self._between is not None and not self._barrier.absent():
            return self._between.waiting_for()
        return self._context.absent()

    def free(self) -> None:
        """Release the peers' memory."""
        self._blocks.clear()
        if self._between is not None:
            self._between.free()
