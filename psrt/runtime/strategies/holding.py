"""What a worker holds of the parameters and their gradient: by default all, as all others do.

Schemes in which workers have parameters of their own, or only a share of them, say so here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.core.sharding import Memory


class Holding(Protocol):
    """A scheme, as far as vectors go."""

    #: (n,) where the gradient is to be written; None for the port's own.
    gradient: Vector | None = None
    #: Whether the port's ``theta`` is all parameters; else they are in ``model``, at the end only.
    whole: bool = True
    #: (n,) the model that is evaluated, as far as this worker knows it; None for θ.
    model: Vector | None = None
    #: Whether the port's ``theta`` is this worker's alone between two steps, so that a loop of the
    #: user's own may write to it.
    owns_theta: bool = False
    #: The memory of this worker's vectors; None where it is not counted.
    memory: Memory | None = None

    @property
    def owned(self) -> Sequence[Span] | None:
        """The elements of which this worker keeps the optimizer's state, as they lie there.

        Where it has room for more, only these are up to date. None where it keeps all, or none.
        """
        return None

    @property
    def held(self) -> tuple[Vector, float]:
        """Where workers end with different parameters, what this one brings to their mean.

        Returns:
            (n,) a vector, and its weight; the mean is the sum of all vectors over that of weights.
            Elsewhere nothing.
        """
        return np.zeros(0, np.float32), 0.0

    def load(self, initial: Vector) -> None:
        """Take what this worker keeps of the initial parameters (n,), where it is not ``whole``."""
        return

    async def collect(self) -> None:
        """Where ``theta`` is not ``whole``, bring ``model`` to the first worker; after training."""
        return
