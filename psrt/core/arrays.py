"""Names for the arrays that modules exchange."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: One dimension of float32: parameters, gradients and updates.
Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float32]]
#: float32 of any shape: the matrices of a model.
FloatArray: TypeAlias = npt.NDArray[np.float32]
#: One dimension of any type: the buffer of a collective, contiguous.
AnyVector: TypeAlias = np.ndarray[tuple[int], np.dtype[Any]]
#: Any shape, any type.
AnyArray: TypeAlias = npt.NDArray[Any]
#: Raw bytes.
Bytes: TypeAlias = npt.NDArray[np.uint8]

#: Bytes of an element of a ``Vector``.
ITEMSIZE = 4


class ReadOnly:
    """A read-only view of the last vector; the same object for the same vector."""

    def __init__(self) -> None:
        self._vector: Vector | None = None

    def of(self, vector: Vector) -> Vector:
        """Return a read-only view of a vector."""
        if vector is not self._vector:
            self._vector, self._view = vector, read_only(vector)
        return self._view


def read_only(vector: Vector) -> Vector:
    """Return a read-only view of a vector."""
    view = vector.view()
    view.flags.writeable = False
    return view
