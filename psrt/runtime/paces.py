"""How fast learners are, and what servers make of it: local steps, and windows. Pure.

A learner reports its pace, steps a second while it computes, with each push. The decisions depend
on nothing else but times that the history has, so that a replay makes the same ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: The share of a step by which rounding may make a pace look slower than it is.
_HAIR = 1e-4
#: γ: the share of the slack that a window may use, so that its merge comes a little early.
_SHARE = 0.8


def pace_of(steps: int, seconds: float) -> float:
    """Return steps a second; 0 if no time has passed."""
    return steps / seconds if seconds > 0.0 else 0.0


class Paces:
    """The paces of live learners.

    >>> paces = Paces(local_steps=8)
    >>> paces.note(0, 10.0), paces.note(1, 5.0), paces.steps(0), paces.steps(1), paces.steps(2)
    (None, None, 8, 4, 8)
    """

    def __init__(self, local_steps: int = 1) -> None:
        """Start without any; ``local_steps`` are those of the fastest learner, H."""
        self._local_steps = local_steps
        #: By learner, steps a second.
        self.paces: dict[int, float] = {}

    def note(self, worker: int, pace: float) -> None:
        """Take what a learner reports."""
        if pace > 0.0:
            self.paces[worker] = pace

    def forget(self, worker: int) -> None:
        """A learner has left."""
        self.paces.pop(worker, None)

    def steps(self, worker: int) -> int:
        """Return a learner's local steps, max(1, ⌊H·s_i / max_j s_j⌋): all take as long.

        Source: DyLU, Liu et al. 2024, arXiv:2401.09135.
        """
        mine = self.paces.get(worker)
        if mine is None:
            return self._local_steps
        return max(1, math.floor(self._local_steps * mine / max(self.paces.values()) + _HAIR))

    @property
    def slowest_s(self) -> float:
        """Seconds of a step of the slowest learner, ξ_step; 0 as long as none is known."""
        return 1.0 / min(self.paces.values()) if self.paces else 0.0


class Slack(NamedTuple):
    """The window that computing hides, g = γ·(T·ξ_step − ξ_quorum − ξ_sync), at least 0.

    A learner adopts a merge T steps after its push, of which the quorum and the messages take a
    part.

    >>> Slack(delay=4, sync_s=0.25).seconds(step_s=0.5, quorum_s=0.75)
    0.8

    Source: Douillard et al. 2026, arXiv:2604.21428, eq. 3, with γ = 0.8.
    """

    #: T, in steps.
    delay: int
    #: Seconds of a push and its answer.
    sync_s: float

    def seconds(self, step_s: float, quorum_s: float) -> float:
        """Return the window.

        Args:
            step_s: of the slowest learner.
            quorum_s: from the first push of the merge to that which made its quorum.
        """
        return max(0.0, _SHARE * (self.delay * step_s - quorum_s - self.sync_s))
