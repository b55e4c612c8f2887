"""A sum by a linear codec: the sums of its parts, by a schedule, one after the other.

What the parts are, and what becomes of their sums, ``transport.straight_sum`` knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.arrays import Vector
from psrt.mpi.collectives.plans.plan import Plan, Run, nobody
from psrt.transport.straight_sum import StraightSum


class Straight(Plan):
    """The plan of one rank."""

    polls = True

    def __init__(self, coded: StraightSum, plans: Sequence[Plan], vector: Vector) -> None:
        """Set up.

        Args:
            coded: makes the parts.
            plans: of each part's sum, in the buffer of that part. They may share their messages'
                tag: what a rank sends of a part follows all that it has sent of the one before.
            vector: (span,), this rank's.
        """
        self._coded, self._plans, self._vector = coded, plans, vector
        self._at: Plan | None = None
        self.bytes_sent = sum(plan.bytes_sent for plan in plans)
        self.bytes_received = sum(plan.bytes_received for plan in plans)

    def run(self) -> Run:
        """Run it."""
        coded = self._coded
        coded.begin(self._vector)
        for i, plan in enumerate(self._plans):
            self._at = plan
            coded.project(i)
            yield from _quiet(plan.run())
            coded.agree(i)
        self._at = None
        coded.finish()

    def waiting_for(self) -> str:
        """Name the ranks of the step that does not end."""
        return nobody() if self._at is None else self._at.waiting_for()

    def free(self) -> None:
        """Free the plans of the parts."""
        for plan in self._plans:
            plan.free()


def _quiet(run: Run) -> Run:
    """Run without warnings of what overflows: half precision does so early, and it is defined."""
    while True:
        # Not around the yield: whoever goes on meanwhile keeps its own warnings.
        with np.errstate(all="ignore"):
            ready = next(run, None)
        if ready is None:
            return
        yield ready
