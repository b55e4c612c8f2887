"""What psrt.torch needs of a ``psrt.Communicator``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from psrt.core.arrays import AnyArray, Vector
from psrt.core.partition import Span
from psrt.transport.coded_sum import SumCodec, SumPart


class Work(Protocol):
    """A non-blocking call."""

    #: What the call returns, once it is complete.
    result: Any

    def test(self) -> bool:
        """Make progress on it; return whether it is complete."""

    def wait(self) -> Any:
        """Wait until it is complete."""


class RepeatedSum(Protocol):
    """The sums of one array by a codec, again and again; see ``psrt.mpi.repeated_sums``."""

    #: What makes its messages, with what it keeps back; none if this rank sends none.
    parts: Sequence[SumPart]

    def start(self) -> Work:
        """Start to replace the array by the mean over all ranks."""

    def wait(self) -> None:
        """Wait until the newest sum is complete."""

    def close(self) -> None:
        """Let its memory go to other calls."""


class Communicator(Protocol):
    """Ranks that reduce numpy arrays together; see ``psrt.Communicator``."""

    #: This rank, and the number of ranks.
    rank: int
    size: int

    #: The number of ranks on each host.
    hosts: tuple[int, ...]

    @property
    def closed(self) -> bool:
        """Whether it is closed, so that the arrays from ``empty`` are freed."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = ...) -> AnyArray:
        """Return an array that the ranks of this host can see."""

    def all_reduce(self, buf: AnyArray, op: str = "sum", algorithm: str = "auto") -> AnyArray:
        """Reduce an array over all ranks."""

    def all_reduce_async(self, buf: AnyArray, op: str = "sum", algorithm: str = "auto") -> Work:
        """Start to reduce an array over all ranks, and return at once."""

    def coded_sums(
        self, codec: SumCodec, places: Sequence[tuple[Vector, Span]]
    ) -> Sequence[RepeatedSum]:
        """Prepare sums of arrays from ``empty``, whose messages a codec makes; collective."""

    def all_gather(self, buf: AnyArray) -> AnyArray:
        """Fill an array with every rank's chunk of it."""

    def broadcast(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Fill an array with the array of rank ``root``."""

    def send_async(self, buf: AnyArray, dest: int, tag: int = 0) -> Work:
        """Start to send an array to one rank."""

    def recv_async(self, buf: AnyArray, source: int | None = None, tag: int = 0) -> Work:
        """Start to fill an array with what one rank, or any, sends."""

    def group(self, ranks: Sequence[int], name: str = "") -> Communicator:
        """Return a communicator of some of the ranks."""
