"""How buckets of gradients are summed: as they are, unless a subclass does it otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.collective.ops import OPS
from psrt.core.arrays import AnyArray
from psrt.torch.communicator import Communicator, Work


class Sums:
    """The sums of some buckets, round after round.

    In a round every bucket is started once, in order, and waited for. ``settle`` ends the round,
    or ``drop``, after which it counts as not made.
    """

    #: Whether this rank cannot sum its numbers of this round in this way.
    is_odd = False
    #: Whether a sum may have something where no rank has a gradient: what was kept back before.
    keeps_back = False

    def __init__(self, communicator: Communicator, arrays: Sequence[AnyArray]) -> None:
        """Set up.

        Args:
            communicator: of the ranks.
            arrays: by bucket.
        """
        self._communicator, self._arrays = communicator, arrays
        # The mean of ``all_reduce`` without its extra passes over the data: gradients are scaled
        # and divided while they are copied.
        #: The factor of a gradient in its bucket.
        self.scale = OPS["mean"].scale(np.float32, communicator.size)
        #: What a sum is divided by for the mean.
        self.divisor = communicator.size * self.scale
        #: Parameters that some rank has used so far → whether their gradients were sparse.
        self.used: dict[int, bool] = {}

    @property
    def factor(self) -> float:
        """The factor of the means of this round."""
        return 1.0

    def start(self, bucket: int) -> Work:
        """Start the sum of a bucket, whose array must not be used until it is complete."""
        return self._communicator.all_reduce_async(self._arrays[bucket])

    def settle(self, *, odd: bool) -> bool:
        """End a round; return whether all buckets must be filled and summed again.

        Args:
            odd: whether it ``is_odd`` on any rank.
        """
        return False

    def drop(self) -> None:
        """Forget a round whose sums are complete, and whose means nobody takes."""

    def free(self) -> None:
        """Free what is kept for the next rounds: no round follows."""

    def repeat(self, bucket: int) -> None:
        """Sum a bucket again that was filled again; collective."""
        self._communicator.all_reduce(self._arrays[bucket])
