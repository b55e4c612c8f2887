"""Buffers in shared-memory windows: who asks for one gets its own, and sees its mates'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

#: Alignment of a buffer in its window, in bytes: a page.
_PAGE = 4096


class Place(NamedTuple):
    """Where in a window an array is."""

    #: Number of the region, counted by all ranks alike.
    region: int
    #: Bytes from its beginning.
    offset: int


class Region:
    """One buffer of each rank of a host, all of the same size. Collective to make and to free."""

    def __init__(self, node: MPI.Intracomm, nbytes: int) -> None:
        """Allocate.

        Args:
            node: the ranks of this host.
            nbytes: of each rank's buffer.
        """
        pages = max(1, -(-nbytes // _PAGE))
        self._window = MPI.Win.Allocate_shared(pages * _PAGE, 1, comm=node)
        #: Local rank → its bytes.
        self.rooms: list[npt.NDArray[np.uint8]] = [
            np.frombuffer(memoryview(self._window.Shared_query(r)[0]), np.uint8)[:nbytes]  # type: ignore[arg-type]
            for r in range(node.size)
        ]
        self.rooms[node.rank][:] = 0
        node.Barrier()
        own = self.rooms[node.rank]
        #: Addresses of this rank's own bytes.
        self.start = address(own)
        self.stop = self.start + nbytes

    def free(self) -> None:
        """Free the window; views of it must not be used afterwards."""
        self.rooms.clear()
        self._window.Free()


class Regions:
    """All windows of a group."""

    def __init__(self, node: MPI.Intracomm) -> None:
        self._node = node
        self._regions: list[Region] = []

    def make(self, nbytes: int) -> int:
        """Allocate a buffer on every rank of the host; collective. Return its number."""
        self._regions.append(Region(self._node, nbytes))
        return len(self._regions) - 1

    def rooms(self, region: int) -> Sequence[npt.NDArray[np.uint8]]:
        """Return each local rank's bytes."""
        return self._regions[region].rooms

    def locate(self, array: np.ndarray[Any, Any]) -> Place | None:
        """Return where an array of this rank is, None if it is in no window.

        An array without elements is nowhere: at the seam of two windows it could be in both.
        """
        if not array.nbytes:
            return None
        start = address(array)
        stop = start + array.nbytes
        for number, region in enumerate(self._regions):
            if region.start <= start and stop <= region.stop:
                return Place(number, start - region.start)
        return None

    def views(self, place: Place, like: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Return, for each local rank, its flat array at a place, of the type and size of one."""
        end = place.offset + like.nbytes
        return [room[place.offset : end].view(like.dtype) for room in self.rooms(place.region)]

    def free(self) -> None:
        """Free all windows; collective."""
        for region in self._regions:
            region.free()
        self._regions.clear()


def address(array: np.ndarray[Any, Any]) -> int:
    """Return where an array begins."""
    return int(array.__array_interface__["data"][0])
