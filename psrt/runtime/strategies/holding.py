"""What a worker holds of the parameters and their gradient: by default all, as every other worker.

Schemes in which workers have different parameters, or only a part of them, declare it here.
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
        """The elements whose optimizer state this worker keeps, in the order of that state.

        If it has room for more, only these are up to date. None if it keeps all, or none.
        """
        return None

    @property
    def held(self) -> tuple[Vector, float]:
        """If workers end with different parameters, this one's contribution to their mean.

        Returns:
            (n,) a vector, and its weight; the mean is the sum of all vectors over that of weights.
            In other schemes nothing.
        """
        return np.zeros(0, np.float32), 0.0

    def load(self, initial: Vector) -> None:
        """Take what this worker keeps of the initial parameters (n,), where it is not ``whole``."""
        return

    async def collect(self) -> None:
        """Where ``theta`` is not ``whole``, bring ``model`` to the first worker; after training."""
        return
