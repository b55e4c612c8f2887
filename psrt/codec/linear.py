"""What linear codecs have beside frames: vectors of theirs may be added instead of the whole ones.

Such a codec makes *parts* of a vector, shorter ones, one after the other. Whoever sums vectors sums
each part over all workers, as any all-reduce does, and divides by the total of the weights; what
all know by then the codec expands. Of a linear codec that is what the mean of what each
worker's own parts expand to would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from psrt.core.arrays import AnyVector, Vector


@runtime_checkable
class Linear(Protocol):
    """A codec by whose parts vectors are summed.

    A round is ``begin``, then ``project`` and ``agree`` for each part in order, then ``expand``.
    """

    @property
    def parts(self) -> tuple[int, ...]:
        """Elements of each part; a part may have none."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """Type of their elements, by which they are sent and added."""

    def begin(self, rng: np.random.Generator) -> None:
        """Draw what is drawn, the same on all workers.

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
        """Take up the mean of a part over all workers, on which the next part may depend.

        Args:
            part: its number.
            mean: the same on all workers; only read.
        """

    def expand(self, parts: Sequence[Vector], out: Vector) -> None:
        """Write the vector that parts stand for.

        Args:
            parts: float32, the means of this round; or a worker's own, for what is left of it.
            out: (n,).
        """
