"""The interface of linear codecs beside frames: their parts of vectors are summed directly.

Such a codec makes one or more *parts* of a vector, which are shorter. Any all-reduce sums each part
over all workers, and the sum is divided by the total of the weights. Then the codec expands the
means, which all workers know. As it is linear, the result is the mean of what the parts of each
worker would expand to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from psrt.core.arrays import AnyVector, Vector


@runtime_checkable
class Linear(Protocol):
    """A codec whose parts can be summed instead of vectors.

    A round is ``begin``, then ``project`` and ``agree`` for each part in order, then ``expand``.
    """

    @property
    def parts(self) -> tuple[int, ...]:
        """Elements of each part; a part may have none."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """Type of their elements, by which they are sent and added."""

    def begin(self, rng: np.random.Generator) -> None:
        """Make the random draws of a round, the same on all workers.

        Args:
            rng: in the same state on all workers.
        """

    def project(self, part: int, vector: Vector, out: AnyVector) -> None:
        """Write a part of a vector.

        Args:
            part: its number.
            vector: (n,) what this worker contributes; the same for all parts of a round.
            out: (``parts[part]``,) of ``dtype``.
        """

    def agree(self, part: int, mean: Vector) -> None:
        """Take the mean of a part over all workers, on which the next part may depend.

        Args:
            part: its number.
            mean: the same on all workers; only read.
        """

    def expand(self, parts: Sequence[Vector], out: Vector) -> None:
        """Write the vector that parts stand for.

        Args:
            parts: float32, the means of this round; or a worker's own, to find its residual.
            out: (n,).
        """
