"""A sum whose owners keep their parts, and a gather of what they make of them.

.. code-block:: text

    scatter   the first half of an all-reduce: this rank ends with the sums of its own part
    take      the owner turns them, block by block, into parameters in another vector
    gather    the second half, on that vector: all ranks end with all parameters

Only the owner needs the optimizer's state of an element. If parameters stay with their owners, too,
there is no gather here: it is a separate plan, run when they are used.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, sections 5 and 7: a reduce-scatter and an all-gather send as much as the all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psrt.core.arrays import AnyVector
from psrt.core.partition import Span
from psrt.mpi.collectives.plans.direct import Sink
from psrt.mpi.collectives.plans.plan import InTurn, Run


@dataclass(eq=False)
class Sharded(InTurn):
    """The plan of one rank.

    Its plans are the halves; the second one only if parameters do not stay with their owners.
    """

    #: The blocks of this rank's part, with the sums of each.
    blocks: Sequence[tuple[Span, AnyVector]]
    #: Receives the sums.
    sink: Sink

    def run(self) -> Run:
        """Run it."""
        scatter, *gather = self.plans
        self.at = scatter
        yield from scatter.run()
        gate = self.sink.gate
        if gate is not None and not gate():
            yield gate
        for span, sums in self.blocks:
            self.sink.write(span, sums)
        for self.at in gather:
            # The first step of the gather publishes what was written here: see ``Scheduled.run``.
            yield from self.at.run()
        self.at = None


class Shifted(Sink):
    """Passes blocks on, with places in a part of a vector turned into places in the whole."""

    def __init__(self, sink: Sink, first: int) -> None:
        """Set up; the part starts at element ``first``."""
        self._sink, self._first = sink, first
        self.scratch, self.gate = sink.scratch, sink.gate

    def write(self, span: Span, folded: AnyVector) -> None:
        """Pass a block on."""
        self._sink.write(Span(span.start + self._first, span.stop + self._first), folded)


class Spread(Sink):
    """Copies parameters from the first vector of a host, where they are made, to its others."""

    scratch = None
    gate = None

    def __init__(self, parameters: Sequence[AnyVector]) -> None:
        """Set up.

        Args:
            parameters: (n,) each, of every rank of the host; one if they share it.
        """
        self._made, *self._others = (each.view(np.uint8).data for each in parameters)

    def write(self, span: Span, folded: AnyVector) -> None:
        """Copy the block; its sums are not needed."""
        at, end = 4 * span.start, 4 * span.stop
        for each in self._others:
            each[at:end] = self._made[at:end]
