"""The layout of neighbours' offers in the shared memory of a host. Knows no MPI.

A worker's part has the memory of its collectives, then its offers, then the frames of a codec for
each of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import numpy as np

from psrt.core.arrays import ITEMSIZE, Bytes, Vector
from psrt.transport.port import RoleMap

#: float32 numbers of a cache line: each vector starts on a new line.
_LINE = 16


@dataclass(eq=False)
class NeighbourMemory:
    """Views of the workers' offers and frames on one host."""

    #: The roles of all ranks.
    role_map: RoleMap
    #: Returns the ``floats_of`` numbers of a rank of this host.
    numbers_of: Callable[[int], Vector]
    _: KW_ONLY
    #: The numbers before the first offer.
    behind: int
    #: The number of frames to each neighbour.
    ahead: int
    #: Bytes of the longest frame; 0 if there are none.
    frame_bytes: int

    def __post_init__(self) -> None:
        self._vector = _whole(self.role_map.spans[0].size)
        self._frame = _whole(-(-self.frame_bytes // ITEMSIZE))

    def floats_of(self, rank: int) -> int:
        """Return the total of float32 numbers that a rank needs."""
        worker = self._worker(rank)
        frames = len(self.role_map.peers[worker]) * self.ahead
        return self.behind + self.role_map.offers[worker] * self._vector + frames * self._frame

    def offers_of(self, rank: int) -> list[Vector]:
        """Return the regions of a worker on this host."""
        numbers, size = self.numbers_of(rank)[self.behind :], self.role_map.spans[0].size
        count = self.role_map.offers[self._worker(rank)]
        return [numbers[i * self._vector :][:size] for i in range(count)]

    def frames_of(self, rank: int, to: int) -> list[Bytes] | None:
        """Return a worker's alternating buffers for frames to a neighbour; None without frames."""
        if not self.frame_bytes:
            return None
        worker = self._worker(rank)
        before = self.role_map.peers[worker].index(self._worker(to)) * self.ahead
        start = self.behind + self.role_map.offers[worker] * self._vector
        numbers = self.numbers_of(rank)[start + before * self._frame :]
        return [
            numbers[i * self._frame :][: self._frame].view(np.uint8)[: self.frame_bytes]
            for i in range(self.ahead)
        ]

    def _worker(self, rank: int) -> int:
        worker = self.role_map.worker_of(rank)
        assert worker is not None, "only workers have neighbours"
        return worker


def _whole(floats: int) -> int:
    """Return a count of numbers, rounded up to whole cache lines."""
    return -(-floats // _LINE) * _LINE
