"""Scratch memory that the layers of a model share. Knows sizes, never contents."""

from __future__ import annotations

import numpy as np

from psrt.core.arrays import FloatArray


class Workspace:
    """Two arrays whose content lasts for one call: one for anything, one that is always zero.

    They grow to the largest size requested, so only the first step of a size allocates.

    >>> Workspace().zeros(1, 3)
    array([[0., 0., 0.]], dtype=float32)
    """

    def __init__(self) -> None:
        self._any, self._zeros = np.empty(0, np.float32), np.zeros(0, np.float32)
        #: Views of both by number of rows and width.
        self._views: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self._any.nbytes + self._zeros.nbytes

    def scratch(self, rows: int, width: int) -> FloatArray:
        """Return an array (rows, width) of any content."""
        return self._of(rows, width)[0]

    def zeros(self, rows: int, width: int) -> FloatArray:
        """Return zeros (rows, width), only to be read."""
        return self._of(rows, width)[1]

    def _of(self, rows: int, width: int) -> tuple[FloatArray, FloatArray]:
        found = self._views.get((rows, width))
        if found is None:
            size = rows * width
            if size > self._any.size:
                self._any, self._zeros = np.empty(size, np.float32), np.zeros(size, np.float32)
                self._views.clear()  # they would keep the old arrays alive
            shape = rows, width
            found = self._any[:size].reshape(shape), self._zeros[:size].reshape(shape)
            self._views[shape] = found
        return found
