"""A sum by a linear codec: the sums of its parts, by a schedule, one after the other.

What the parts are, and what becomes of their sums, ``transport.straight_sum`` knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.core.arrays import Vector
from psrt.mpi.collectives.plans.plan import InTurn, Run
from psrt.transport.straight_sum import StraightSum


@dataclass(eq=False)
class Straight(InTurn):
    """The plan of one rank.

    Its plans are of each part's sum, in the buffer of that part. They may share their messages'
    tag: what a rank sends of a part follows all that it has sent of the one before.
    """

    #: Makes the parts.
    coded: StraightSum
    #: (span,), this rank's.
    vector: Vector

    def run(self) -> Run:
        """Run it."""
        coded = self.coded
        coded.begin(self.vector)
        for i, plan in enumerate(self.plans):
            self.at = plan
            coded.project(i)
            yield from _quiet(plan.run())
            coded.agree(i)
        self.at = None
        coded.finish()


def _quiet(run: Run) -> Run:
    """Run without warnings of what overflows: half precision does so early, and it is defined."""
    while True:
        # Not around the yield: whoever goes on meanwhile keeps its own warnings.
        with np.errstate(all="ignore"):
            ready = next(run, None)
        if ready is None:
            return
        yield ready
