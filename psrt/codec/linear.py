"""Linear codecs: compressed parts of vectors can be summed in place of the vectors.

Such a codec makes *parts* of a vector, shorter vectors, one after another. Each part is summed over
all workers by any all-reduce and divided by the total of the weights; the codec expands the means.
As the codec is linear, the result equals the mean of what every worker's own parts would expand to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from psrt.core.arrays import AnyVector, Vector


@runtime_checkable
class Linear(Protocol):
    """A codec whose parts can be summed.

    A round is ``begin``, then ``project`` and ``agree`` for each part in order, then ``expand``.
    """

    @property
    def parts(self) -> tuple[int, ...]:
        """Number of elements of each part, possibly 0."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """Type in which their elements are sent and added."""

    def begin(self, rng: np.random.Generator) -> None:
        """Begin a round; draw what is random about it, alike on all workers.

        Args:
            rng: in the same state on all workers.
        """

    def project(self, part: int, vector: Vector, out: AnyVector) -> None:
        """Write a part of a vector.

        Args:
            part: its number.
            vector: (n,) this worker's contribution, the same for all parts of a round.
            out: (``parts[part]``,) of ``dtype``.
        """

    def agree(self, part: int, mean: Vector) -> None:
        """Take the mean of a part over all workers; the next part may depend on it.

        Args:
            part: its number.
            mean: (``parts[part]``,) float32, the same on all workers; only read.
        """

    def expand(self, parts: Sequence[Vector], out: Vector) -> None:
        """Write the vector that the parts represent.

        Args:
            parts: float32, the means of this round; or a worker's own, to compute its residual.
            out: (n,).
        """
