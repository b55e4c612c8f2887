"""A sum by a linear codec: a schedule sums its parts, one after another.

``transport.straight_sum`` makes the parts and uses their sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from psrt.core.arrays import Vector
from psrt.mpi.collectives.plans.plan import InTurn, Run, quiet
from psrt.transport.straight_sum import StraightSum


@dataclass(eq=False)
class Straight(InTurn):
    """The plan of one rank.

    Its plans sum one part each, in the buffer of that part. They may share a tag: MPI keeps the
    order of messages, and a rank sends a part only after all of the part before.
    """

    #: Makes the parts.
    coded: StraightSum
    #: (span,), this rank's numbers.
    vector: Vector

    def run(self) -> Run:
        """Run it."""
        coded = self.coded
        coded.begin(self.vector)
        for i, plan in enumerate(self.plans):
            self.at = plan
            coded.project(i)
            yield from quiet(plan.run())
            coded.agree(i)
        self.at = None
        coded.finish()
