"""When local SGD averages: every H steps, or at every step before an epoch."""

from __future__ import annotations

from typing import NamedTuple


class AveragingPeriod(NamedTuple):
    """The averaging points of local SGD and post-local SGD.

    Source: Stich, ICLR 2019 (arXiv:1805.09767); post-local, Lin, Stich, Patel & Jaggi, ICLR 2020
    (arXiv:1808.07217).

    >>> period = AveragingPeriod(local_steps=4, post_local_epoch=1.0)
    >>> period.due(steps=1, progress=0.5), period.due(steps=1, progress=1.5)
    (True, False)
    """

    #: H, local steps between two averages.
    local_steps: int
    #: The epoch until which H = 1.
    post_local_epoch: float = 0.0

    def steps(self, progress: float) -> int:
        """Return the number of local steps of a period whose last step begins at ``progress``."""
        return 1 if progress < self.post_local_epoch else self.local_steps

    def due(self, *, steps: int, progress: float) -> bool:
        """Return whether to average now.

        Args:
            steps: local steps since the last average, at least 1.
            progress: epochs finished before this step.
        """
        return steps >= self.steps(progress)
