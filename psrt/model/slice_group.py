"""What the slices of a layer ask of each other: the protocol of their reductions."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from psrt.arrays import FloatArray


class SliceGroup(Protocol):
    """Reductions over the slices of a layer, in place; all slices end with equal bits.

    A reduction may begin with the call or with the wait for its result.
    """

    def sum(self, array: FloatArray) -> Awaitable[None]:
        """Replace an array, C-contiguous, by the sum of those of all slices."""

    def max(self, array: FloatArray) -> Awaitable[None]:
        """Replace an array by the largest of those of all slices, element by element."""
