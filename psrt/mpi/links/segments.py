"""Buffers in shared-memory windows: each rank owns one and sees those of its host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import Bytes
from psrt.mpi.links.memory import SharedMemory


class SegmentOffset(NamedTuple):
    """The place of an array in a window."""

    #: The number of the segment, the same on all ranks.
    segment: int
    #: Bytes from the start of the segment.
    offset: int


class Segment:
    """One buffer per rank of a host, all of the same size. Collective to make and to free."""

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
        # Each rank clears its own buffer. The barrier keeps a fast peer from writing there before
        # that. No fence is needed: a peer's buffer is read only after a plan's barrier, whose
        # release comes after these stores in program order and covers them.
        self.buffers[node.rank][:] = 0
        node.Barrier()
        own = self.buffers[node.rank]
        #: The addresses of this rank's own buffer: start, and end (exclusive).
        self.start = address(own)
        self.stop = self.start + nbytes

    def free(self) -> None:
        """Free the window; views of it must not be used afterwards."""
        self.buffers.clear()
        self._memory.free()


class Segments:
    """All windows of one group of ranks."""

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
        """Return the place of an array of this rank, None if it is in no window.

        An empty array is in none: at the border of two windows it could be in either.
        """
        if not array.nbytes:
            return None
        start = address(array)
        stop = start + array.nbytes
        # By address, so any view of a window is found, however it was made.
        for number, segment in enumerate(self._segments):
            if segment.start <= start and stop <= segment.stop:
                return SegmentOffset(number, start - segment.start)
        return None

    def views(self, place: SegmentOffset, like: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Return each local rank's flat array at a place, with the type and size of ``like``."""
        end = place.offset + like.nbytes
        return [b[place.offset : end].view(like.dtype) for b in self.buffers(place.segment)]

    def free(self) -> None:
        """Free all windows; collective."""
        # In the same order on all ranks: freeing a window is collective.
        for segment in self._segments:
            segment.free()
        self._segments.clear()


def address(array: np.ndarray[Any, Any]) -> int:
    """Return the address of an array."""
    return int(array.__array_interface__["data"][0])
