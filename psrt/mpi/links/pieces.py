# ruff: noqa: N802 (the spelling of mpi4py)
"""Messages of any length: cut where MPI counts no further than 2³¹ − 1, or goes faster in pieces.

Only MPI 4's large counts go beyond that, and Open MPI 5 has none of them. A message is cut into the
same pieces at both ends, so every piece meets its like; persistent requests of one piece, which
nearly all are, stay what they are.

**Without announcement.** Over TCP Open MPI announces what is longer than its eager limit, and most
of it leaves when the receiver has answered. Where a rank sends to one rank and receives from
another, as on a ring, its answer queues up behind all that it is sending itself, in its own kernel
and card, and its peer's link is idle until then: a ring of long messages takes 1.2 to 1.7 times as
long as the bytes do. And a rank answers only while it is in MPI: amid a backward pass where a layer
ends, and a sum that was to overlap it stands still until then. Pieces within the limit need no
answer. For that the receiver copies each byte once more, which is little beside TCP, but much
beside a network that writes to a peer's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from psrt.core.arrays import Bytes

#: Bytes of one MPI message at most.
MOST_BYTES = 1 << 30
#: Open MPI's eager limit over TCP: the variable that overrides it, its default, and the part of it
#: that is left for headers.
_LIMIT, _LIMIT_BYTES, _HEADERS = "OMPI_MCA_btl_tcp_eager_limit", 1 << 16, 1 << 10
#: Which of its ways to send messages is asked for; that over TCP is of this one.
_PML, _PML_OF_TCP = "OMPI_MCA_pml", "ob1"
#: Folders of devices that write to a peer's memory, which Open MPI prefers to TCP.
_DEVICES = ("/sys/class/infiniband", "/sys/class/cxi")


class Persistent(Protocol):
    """What mpi4py's persistent requests and ``_Several`` have in common."""

    def Start(self) -> None:
        """Begin."""

    def Test(self) -> bool:
        """Return whether it is through."""

    def Cancel(self) -> None:
        """Take back a receive, as far as nothing has come for it."""

    def Wait(self) -> object:
        """Wait until it is through."""

    def Free(self) -> None:
        """Free what was made."""


class _Several:
    """Persistent requests that begin and end together."""

    def __init__(self, requests: list[MPI.Prequest]) -> None:
        self._requests = requests
        #: Those that are through, from the first on.
        self._ended = 0

    def Start(self) -> None:
        self._ended = 0
        for request in self._requests:  # Startall may take them in any order
            request.Start()

    def Test(self) -> bool:
        # One by one: they end in this order, and to look at all of them each time would be slow.
        requests = self._requests
        while self._ended < len(requests):
            if not requests[self._ended].Test():
                return False
            self._ended += 1
        return True

    def Cancel(self) -> None:
        for request in self._requests[self._ended :]:
            request.Cancel()

    def Wait(self) -> None:
        MPI.Request.Waitall(self._requests)

    def Free(self) -> None:
        for request in self._requests:
            request.Free()


def persistent_send(
    comm: MPI.Comm,
    data: Bytes,
    to: int,
    tag: int,
    *,
    most: int = MOST_BYTES,
    synchronous: bool = False,
) -> Persistent:
    """Return a request that sends ``data`` each time it is started.

    Args:
        comm: what both ranks are of.
        data: what is sent.
        to: the receiver.
        tag: of the message.
        most: bytes of a piece at most; the same at both ends.
        synchronous: whether the request is through only once the receiver has begun to receive.
    """
    # mpi4py declares that Ssend_init returns a Request; it is persistent all the same.
    make: Callable[..., Any] = comm.Ssend_init if synchronous else comm.Send_init
    return _joined([make([piece, MPI.BYTE], to, tag) for piece in pieces(data, most)])


def persistent_receive(
    comm: MPI.Comm, data: Bytes, source: int, tag: int, *, most: int = MOST_BYTES
) -> Persistent:
    """Return a request that receives into ``data`` each time it is started."""
    return _joined([comm.Recv_init([piece, MPI.BYTE], source, tag) for piece in pieces(data, most)])


def _joined(requests: list[MPI.Prequest]) -> Persistent:
    return requests[0] if len(requests) == 1 else _Several(requests)


def pieces(data: npt.NDArray[np.generic], most: int = MOST_BYTES) -> list[npt.NDArray[np.generic]]:
    """Return the parts of a flat array that are one message each; at least one.

    Args:
        data: the array.
        most: bytes of a part at most; never more than ``MOST_BYTES``.
    """
    # Of nothing, too, there is a piece: the receiver waits for a message.
    step = min(most, MOST_BYTES) // data.itemsize
    return [data[at : at + step] for at in range(0, max(1, data.size), step)]


def unannounced_bytes(comm: MPI.Comm, machine: Collection[int]) -> tuple[int, ...]:
    """Return by rank how long a message to it may be that needs no answer; collective.

    ``MOST_BYTES`` where messages need not be cut for that: see the top of this file.

    Args:
        comm: the ranks.
        machine: those that are on this rank's machine.
    """
    limits = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([_own_limit()], np.int64), limits)
    # Both ends must cut alike, so what holds for one rank holds for all.
    least = MOST_BYTES if limits.max() == MOST_BYTES else int(limits.min())
    return tuple(MOST_BYTES if rank in machine else least for rank in range(comm.size))


def _own_limit() -> int:
    """Return the same, for messages from this rank to another machine."""
    other_way = _PML_OF_TCP not in os.environ.get(_PML, _PML_OF_TCP)
    has_device = any(any(Path(folder).glob("*")) for folder in _DEVICES)
    if MPI.get_vendor()[0] != "Open MPI" or other_way or has_device:
        return MOST_BYTES
    text = os.environ.get(_LIMIT, "")
    limit = int(text) if text.isdecimal() else _LIMIT_BYTES
    return max(_HEADERS, limit - _HEADERS)
