"""Messages between two ranks, each with a deadline, so that a silent rank can be named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from psrt.core.errors import TransportError
from psrt.core.units import plural
from psrt.mpi.agreement import from_bytes, to_bytes

#: An array that is sent without a copy.
Array: TypeAlias = np.ndarray[Any, Any]

_TEXT, _ARRAY = 17, 18


def collect(comm: MPI.Comm, text: str, timeout_s: float) -> list[str]:
    """Bring a text of every rank to rank 0, which names those that are silent; collective.

    Returns:
        At rank 0 the texts by rank, elsewhere an empty list.

    Raises:
        TransportError: if some are silent for ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    if comm.rank != 0:
        request = comm.Isend([to_bytes(text), MPI.BYTE], 0, _TEXT)
        while not request.Test():
            _pause(deadline, lambda: "rank 0")
        return []
    texts = {0: text}
    status = MPI.Status()
    while len(texts) < comm.size:
        if comm.Iprobe(MPI.ANY_SOURCE, _TEXT, status):
            data = bytearray(status.Get_count(MPI.BYTE))
            comm.Recv([data, MPI.BYTE], status.source, _TEXT)
            texts[status.source] = from_bytes(data)
        else:
            _pause(deadline, lambda: _missing(comm.size, texts))
    return [texts[rank] for rank in range(comm.size)]


def deal(comm: MPI.Comm, text: str, timeout_s: float) -> str:
    """Return rank 0's text at every rank; collective, and as ``collect`` no collective of MPI's."""
    deadline = time.monotonic() + timeout_s
    if comm.rank != 0:
        status = MPI.Status()
        while not comm.Iprobe(0, _TEXT, status):
            _pause(deadline, lambda: "rank 0")
        data = bytearray(status.Get_count(MPI.BYTE))
        comm.Recv([data, MPI.BYTE], 0, _TEXT)
        return from_bytes(data)
    data = bytearray(to_bytes(text))
    requests = {rank: comm.Isend([data, MPI.BYTE], rank, _TEXT) for rank in range(1, comm.size)}
    while requests:
        requests = {rank: request for rank, request in requests.items() if not request.Test()}
        if requests:
            _pause(deadline, partial("rank {}".format, min(requests)))
    return text


def _missing(size: int, heard: dict[int, str]) -> str:
    silent = [rank for rank in range(size) if rank not in heard]
    shown = ", ".join(map(str, silent[:8])) + (", …" if len(silent) > 8 else "")
    return f"{plural(len(silent), 'rank')} ({shown})"


def _pause(deadline: float, waiting_for: Callable[[], str]) -> None:
    if time.monotonic() > deadline:
        raise TransportError(f"no answer from {waiting_for()}")
    time.sleep(1e-3)


def swap(
    comm: MPI.Comm, peer: int, mine: Array | None, theirs: Array | None, timeout_s: float
) -> None:
    """Send to a rank and receive from it at the same time; None leaves either out.

    Raises:
        TransportError: if that takes longer than ``timeout_s``.
    """
    requests = []
    # In the order in which schedules begin them; see there for the reason.
    if mine is not None:
        requests.append(comm.Isend(mine, peer, _ARRAY))
    if theirs is not None:
        requests.append(comm.Irecv(theirs, peer, _ARRAY))
    end = time.monotonic() + timeout_s
    while not MPI.Request.Testall(requests):
        if time.monotonic() > end:
            raise TransportError(f"no answer within {timeout_s:g} s")
        os.sched_yield()
