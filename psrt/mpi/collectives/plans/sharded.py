"""A sum whose owners keep their parts, and what they make of them, handed out.

.. code-block:: text

    scatter   the first half of an all-reduce: this rank ends with the sums of its own part
    take      the owner turns them, block by block, into parameters: in another vector
    gather    the second half, of that vector: all end with all parameters

Only the owner needs the optimizer's state of an element. Where parameters stay with their owners,
too, there is no gather: it is a plan of its own, run when they are used.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, sections 5 and 7: a reduce-scatter and an all-gather send what the all-reduce does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.arrays import AnyVector
from psrt.mpi.collectives.plans.direct import Sink
from psrt.mpi.collectives.plans.plan import Plan, Run, nobody
from psrt.partition import Span


class Sharded(Plan):
    """The plan of one rank."""

    def __init__(
        self,
        scatter: Plan,
        blocks: Sequence[tuple[Span, AnyVector]],
        sink: Sink,
        gather: Plan | None,
    ) -> None:
        """Join the halves.

        Args:
            scatter: the first one.
            blocks: of this rank's part, with the sums of each.
            sink: what becomes of them.
            gather: the second half; None where the parameters stay with their owners.
        """
        self._scatter, self._blocks, self._sink, self._gather = scatter, blocks, sink, gather
        self._plans = [scatter] if gather is None else [scatter, gather]
        self._at: Plan | None = None
        self.polls = any(plan.polls for plan in self._plans)
        self.bytes_sent = sum(plan.bytes_sent for plan in self._plans)
        self.bytes_received = sum(plan.bytes_received for plan in self._plans)

    def run(self) -> Run:
        """Run it."""
        self._at = self._scatter
        yield from self._scatter.run()
        gate = self._sink.gate
        if gate is not None and not gate():
            yield gate
        for span, sums in self._blocks:
            self._sink.write(span, sums)
        if self._gather is not None:
            self._at = self._gather
            # Its first step publishes what was written here: see ``Scheduled.run``.
            yield from self._gather.run()
        self._at = None

    def waiting_for(self) -> str:
        """Name the ranks waited for in the half that does not end."""
        return nobody() if self._at is None else self._at.waiting_for()

    def free(self) -> None:
        """Free both halves."""
        for plan in self._plans:
            plan.free()


class Shifted(Sink):
    """Hands on what is known by its place in a part of a vector by that in the whole."""

    def __init__(self, sink: Sink, first: int) -> None:
        """Set up; the part begins at element ``first``."""
        self._sink, self._first = sink, first
        self.scratch, self.gate = sink.scratch, sink.gate

    def write(self, span: Span, folded: AnyVector) -> None:
        """Hand a block on."""
        self._sink.write(Span(span.start + self._first, span.stop + self._first), folded)


class Spread(Sink):
    """Copies parameters from the first vector of a host, where they are made, to the others."""

    scratch = None
    gate = None

    def __init__(self, parameters: Sequence[AnyVector]) -> None:
        """Set up.

        Args:
            parameters: (n,) each, of every rank of the host; one where all have the same.
        """
        self._made, *self._others = (each.view(np.uint8).data for each in parameters)

    def write(self, span: Span, folded: AnyVector) -> None:
        """Copy the block, wherever its sums were."""
        at, end = 4 * span.start, 4 * span.stop
        for each in self._others:
            each[at:end] = self._made[at:end]
