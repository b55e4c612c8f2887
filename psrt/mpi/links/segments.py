"""Buffers in shared-memory windows: each rank has its own and sees those of its host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import Bytes
from psrt.mpi.links.memory import SharedMemory


class SegmentOffset(NamedTuple):
    """Where in a window an array is."""

    #: Number of the segment, counted by all ranks alike.
    segment: int
    #: Bytes from its beginning.
    offset: int


class Segment:
    """One buffer of each rank of a host, all of the same size. Collective to make and to free."""

    def __init__(self, node: MPI.Intracomm, nbytes: int) -> None:
        """Allocate.

        Args:
            node: the ranks of this host.
            nbytes: of each rank's buffer.
        """
        self._memory = SharedMemory(node, nbytes)
        #: Local rank → its bytes.
        self.buffers: list[Bytes] = [
            np.frombuffer(part, np.uint8)[:nbytes] for part in self._memory.parts
        ]
        # Each rank clears its own; the barrier keeps a fast peer from writing there before that.
        # No fence: what is read of a peer is read behind a plan's barrier, whose release comes
        # after these stores in program order and covers them.
        self.buffers[node.rank][:] = 0
        node.Barrier()
        own = self.buffers[node.rank]
        #: Addresses of this rank's own bytes.
        self.start = address(own)
        self.stop = self.start + nbytes

    def free(self) -> None:
        """Free the window; views of it must not be used afterwards."""
        self.buffers.clear()
        self._memory.free()


class Segments:
    """All windows of a group."""

    def __init__(self, node: MPI.Intracomm) -> None:
        self._node = node
        self._segments: list[Segment] = []

    def make(self, nbytes: int) -> int:
        """Allocate a buffer on every rank of the host; collective. Return its number."""
        self._segments.append(Segment(self._node, nbytes))
        return len(self._segments) - 1

    def buffers(self, segment: int) -> Sequence[Bytes]:
        """Return each local rank's bytes."""
        return self._segments[segment].buffers

    def locate(self, array: np.ndarray[Any, Any]) -> SegmentOffset | None:
        """Return where an array of this rank is, None if it is in no window.

        An array without elements is nowhere: at the seam of two windows it could be in both.
        """
        if not array.nbytes:
            return None
        start = address(array)
        stop = start + array.nbytes
        # By address, so any view of a window is found, whatever it was made from.
        for number, segment in enumerate(self._segments):
            if segment.start <= start and stop <= segment.stop:
                return SegmentOffset(number, start - segment.start)
        return None

    def views(self, place: SegmentOffset, like: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Return, for each local rank, its flat array at a place, of the type and size of one."""
        end = place.offset + like.nbytes
        return [b[place.offset : end].view(like.dtype) for b in self.buffers(place.segment)]

    def free(self) -> None:
        """Free all windows; collective."""
        # In the same order on all ranks: to free a window is collective.
        for segment in self._segments:
            segment.free()
        self._segments.clear()


def address(array: np.ndarray[Any, Any]) -> int:
    """Return where an array begins."""
    return int(array.__array_interface__["data"][0])
