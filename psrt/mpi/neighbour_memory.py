"""Where what workers offer to their neighbours lies in the memory of a host. Knows no MPI.

Behind the memory of its collectives a worker has its offers there, then the frames of a codec for
each of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from psrt.arrays import ITEMSIZE, Bytes, Vector
from psrt.transport.port import RoleMap

#: Numbers of a cache line: each vector begins on one of its own.
_LINE = 16


class NeighbourMemory:
    """What the workers of one host have for their neighbours."""

    def __init__(
        self,
        role_map: RoleMap,
        numbers_of: Callable[[int], Vector],
        *,
        behind: int,
        ahead: int,
        frame_bytes: int,
    ) -> None:
        """Remember who has what.

        Args:
            role_map: who is who.
            numbers_of: returns the numbers of a rank of this host, as many as ``floats_of`` says.
            behind: numbers before the first of these.
            ahead: frames to each neighbour.
            frame_bytes: length of the longest; 0 if there are none.
        """
        self._role_map, self._numbers_of = role_map, numbers_of
        self._behind, self._ahead, self._frame_bytes = behind, ahead, frame_bytes
        self._vector = _whole(role_map.spans[0].size)
        self._frame = _whole(-(-frame_bytes // ITEMSIZE))

    def floats_of(self, rank: int) -> int:
        """Return how many float32 numbers a rank needs in all."""
        worker = self._worker(rank)
        frames = len(self._role_map.peers[worker]) * self._ahead
        return self._behind + self._role_map.offers[worker] * self._vector + frames * self._frame

    def offers_of(self, rank: int) -> list[Vector]:
        """Return the regions of a worker on this host."""
        numbers, size = self._numbers_of(rank)[self._behind :], self._role_map.spans[0].size
        count = self._role_map.offers[self._worker(rank)]
        return [numbers[i * self._vector :][:size] for i in range(count)]

    def frames_of(self, rank: int, to: int) -> list[Bytes] | None:
        """Return where a worker puts its frames to a neighbour, in turn; None without frames."""
        if not self._frame_bytes:
            return None
        worker = self._worker(rank)
        before = self._role_map.peers[worker].index(self._worker(to)) * self._ahead
        start = self._behind + self._role_map.offers[worker] * self._vector
        numbers = self._numbers_of(rank)[start + before * self._frame :]
        return [
            numbers[i * self._frame :][: self._frame].view(np.uint8)[: self._frame_bytes]
            for i in range(self._ahead)
        ]

    def _worker(self, rank: int) -> int:
        worker = self._role_map.worker_of(rank)
        assert worker is not None, "only workers have neighbours"
        return worker


def _whole(floats: int) -> int:
    """Return that many numbers, to the end of a cache line."""
    return -(-floats // _LINE) * _LINE
