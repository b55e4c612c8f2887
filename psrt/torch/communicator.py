"""What psrt.torch needs of a ``psrt.Communicator``."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from psrt.core.arrays import AnyArray


class Work(Protocol):
    """A non-blocking call."""

    def test(self) -> bool:
        """Make progress on it; return whether it is complete."""

    def wait(self) -> Any:
        """Wait until it is complete."""


class Communicator(Protocol):
    """Ranks that reduce numpy arrays together; see ``psrt.Communicator``."""

    #: This rank, and the number of ranks.
    rank: int
    size: int

    @property
    def closed(self) -> bool:
        """Whether it is closed, so that the arrays from ``empty`` are freed."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = ...) -> AnyArray:
        """Return an array that the ranks of this host can see."""

    def all_reduce(self, buf: AnyArray, op: str = "sum", algorithm: str = "auto") -> AnyArray:
        """Reduce an array over all ranks."""

    def all_reduce_async(self, buf: AnyArray, op: str = "sum", algorithm: str = "auto") -> Work:
        """Start to reduce an array over all ranks, and return at once."""

    def all_gather(self, buf: AnyArray) -> AnyArray:
        """Fill an array with every rank's chunk of it."""

    def broadcast(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Fill an array with the array of rank ``root``."""
