# ruff: noqa: N802 (the spelling of mpi4py)
"""Messages of any length, in pieces: MPI counts only to 2³¹ − 1, and pieces can be faster.

Only MPI 4's large counts go beyond that, and Open MPI 5 lacks them. Both ends split a message into
the same pieces, so each piece matches its counterpart. Most messages are one piece, whose
persistent request is used directly.

**Eager pieces.** Over TCP, Open MPI announces messages longer than its eager limit (rendezvous),
and sends most of such a message only after the receiver's answer. If a rank sends to one rank and
receives from another, as on a ring, its answer queues behind all that it is sending itself, in its
kernel and network card, and the peer's link is idle until then: a ring of long messages takes 1.2
to 1.7 times as long as the bytes do. Also, a rank answers only inside MPI calls: in a backward pass
that is where a layer ends, and an overlapping sum stalls until then. Pieces within the limit need
no answer. In return the receiver copies each byte once more, which is little compared with TCP, but
much compared with a network that writes to a peer's memory (RDMA).
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

#: The most bytes of one MPI message.
MOST_BYTES = 1 << 30
#: Open MPI's eager limit over TCP: the variable that overrides it, its default, and the bytes to
#: leave for headers.
_LIMIT, _LIMIT_BYTES, _HEADERS = "OMPI_MCA_btl_tcp_eager_limit", 1 << 16, 1 << 10
#: The variable that selects Open MPI's messaging layer, and the layer that TCP belongs to.
_PML, _PML_OF_TCP = "OMPI_MCA_pml", "ob1"
#: Folders of RDMA devices, which Open MPI prefers to TCP.
_DEVICES = ("/sys/class/infiniband", "/sys/class/cxi")


class Persistent(Protocol):
    """The common interface of mpi4py's persistent requests and ``_Several``."""

    def Start(self) -> None:
        """Begin."""

    def Test(self) -> bool:
        """Return whether it is complete."""

    def Cancel(self) -> None:
        """Cancel a receive, unless something has arrived for it."""

    def Wait(self) -> object:
        """Wait until it is complete."""

    def Free(self) -> None:
        """Free the request."""


class _Several:
    """Persistent requests that are started and completed together."""

    def __init__(self, requests: list[MPI.Prequest]) -> None:
        self._requests = requests
        #: The number of completed ones, from the first on.
        self._ended = 0

    def Start(self) -> None:
        self._ended = 0
        for request in self._requests:  # in order, which Startall does not promise
            request.Start()

    def Test(self) -> bool:
        # In order, from the first incomplete one: pieces of one tag complete in this order, and to
        # test all of them each time would be slow.
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
        comm: the communicator of both ranks.
        data: the bytes to send.
        to: the receiver.
        tag: of the message.
        most: the most bytes of a piece; the same at both ends.
        synchronous: whether the request completes only once the receiver has started to receive.
    """
    # mpi4py declares that Ssend_init returns a Request, but it is a persistent one.
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
    """Split a flat array into parts of one MPI message each; at least one part.

    Args:
        data: the array.
        most: the most bytes of a part; never more than ``MOST_BYTES``.
    """
    # An empty array, too, is one piece: the receiver waits for a message.
    step = min(most, MOST_BYTES) // data.itemsize
    return [data[at : at + step] for at in range(0, max(1, data.size), step)]


def unannounced_bytes(comm: MPI.Comm, machine: Collection[int]) -> tuple[int, ...]:
    """Return by rank the most bytes of a message that needs no answer; collective.

    ``MOST_BYTES`` if messages need not be split for that: see the top of this file.

    Args:
        comm: the ranks.
        machine: the ranks on this rank's machine.
    """
    limits = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([_own_limit()], np.int64), limits)
    # Both ends must split alike, so all ranks take the same limit: the smallest, or none if any
    # rank has none.
    least = MOST_BYTES if limits.max() == MOST_BYTES else int(limits.min())
    return tuple(MOST_BYTES if rank in machine else least for rank in range(comm.size))


def _own_limit() -> int:
    """Return the limit for messages from this rank to another machine."""
    other_way = _PML_OF_TCP not in os.environ.get(_PML, _PML_OF_TCP)
    has_device = any(any(Path(folder).glob("*")) for folder in _DEVICES)
    if MPI.get_vendor()[0] != "Open MPI" or other_way or has_device:
        return MOST_BYTES
    text = os.environ.get(_LIMIT, "")
    limit = int(text) if text.isdecimal() else _LIMIT_BYTES
    return max(_HEADERS, limit - _HEADERS)
