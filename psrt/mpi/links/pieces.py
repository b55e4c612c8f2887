# ruff: noqa: N802 (the spelling of mpi4py)
"""Messages of any length: cut where an MPI counts no further than 2³¹ − 1.

Only MPI 4's large counts go beyond that, and Open MPI 5 has none of them. A message is cut into the
same pieces at both ends, so every piece meets its like; persistent requests of one piece, which
nearly all are, stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from psrt.arrays import Bytes

#: Bytes of one MPI message at most.
MOST_BYTES = 1 << 30


class Persistent(Protocol):
    """What mpi4py's persistent requests and ``_Several`` have in common."""

    def Start(self) -> None:
        """Begin."""

    def Test(self) -> bool:
        """Return whether it is through."""

    def Free(self) -> None:
        """Free what was made."""


class _Several:
    """Persistent requests that begin and end together."""

    def __init__(self, requests: list[MPI.Prequest]) -> None:
        self._requests = requests

    def Start(self) -> None:
        MPI.Prequest.Startall(self._requests)

    def Test(self) -> bool:
        return bool(MPI.Request.Testall(self._requests))

    def Free(self) -> None:
        for request in self._requests:
            request.Free()


def persistent_send(
    comm: MPI.Comm, data: Bytes, to: int, tag: int, *, synchronous: bool = False
) -> Persistent:
    """Return a request that sends ``data`` each time it is started.

    Args:
        comm: what both ranks are of.
        data: what is sent.
        to: the receiver.
        tag: of the message.
        synchronous: whether the request is through only once the receiver has begun to receive.
    """
    # mpi4py declares that Ssend_init returns a Request; it is persistent all the same.
    make: Callable[..., Any] = comm.Ssend_init if synchronous else comm.Send_init
    return _joined([make([piece, MPI.BYTE], to, tag) for piece in pieces(data)])


def persistent_receive(comm: MPI.Comm, data: Bytes, source: int, tag: int) -> Persistent:
    """Return a request that receives into ``data`` each time it is started."""
    return _joined([comm.Recv_init([piece, MPI.BYTE], source, tag) for piece in pieces(data)])


def _joined(requests: list[MPI.Prequest]) -> Persistent:
    return requests[0] if len(requests) == 1 else _Several(requests)


def pieces(data: npt.NDArray[np.generic]) -> list[npt.NDArray[np.generic]]:
    """Return the parts of a flat array that are one message each; at least one."""
    step = MOST_BYTES // data.itemsize
    return [data[at : at + step] for at in range(0, max(1, data.size), step)]
