"""Where what workers offer to their neighbours lies in the memory of a host. Knows no MPI.

Behind the memory of its collectives a worker has its offers there, then the frames of a codec for
each of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import numpy as np

from psrt.core.arrays import ITEMSIZE, Bytes, Vector
from psrt.transport.port import RoleMap

#: Numbers of a cache line: each vector begins on one of its own.
_LINE = 16


@dataclass(eq=False)
class NeighbourMemory:
    """What the workers of one host have for their neighbours."""

    #: Who is who.
    role_map: RoleMap
    #: Returns the numbers of a rank of this host, as many as ``floats_of`` says.
    numbers_of: Callable[[int], Vector]
    _: KW_ONLY
    #: Numbers before the first of these.
    behind: int
    #: Frames to each neighbour.
    ahead: int
    #: Length of the longest; 0 if there are none.
    frame_bytes: int

    def __post_init__(self) -> None:
        self._vector = _whole(self.role_map.spans[0].size)
        self._frame = _whole(-(-self.frame_bytes // ITEMSIZE))

    def floats_of(self, rank: int) -> int:
        """Return how many float32 numbers a rank needs in all."""
        worker = self._worker(rank)
        frames = len(self.role_map.peers[worker]) * self.ahead
        return self.behind + self.role_map.offers[worker] * self._vector + frames * self._frame

    def offers_of(self, rank: int) -> list[Vector]:
        """Return the regions of a worker on this host."""
        numbers, size = self.numbers_of(rank)[self.behind :], self.role_map.spans[0].size
        count = self.role_map.offers[self._worker(rank)]
        return [numbers[i * self._vector :][:size] for i in range(count)]

    def frames_of(self, rank: int, to: int) -> list[Bytes] | None:
        """Return where a worker puts its frames to a neighbour, in turn; None without frames."""
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
    """Return that many numbers, to the end of a cache line."""
    return -(-floats // _LINE) * _LINE
