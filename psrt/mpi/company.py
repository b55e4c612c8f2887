"""One watch over the ranks of a communicator, shared by all communicators that it covers.

Its threads and lines are those that watch over a job (``monitor``); here they end no process.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from psrt.faults.news import NewsHub, NewsLine
from psrt.mpi.monitor import Monitor

#: The open watches of this process, the newest last.
_open: list[Company] = []


class Company:
    """A watch over the ranks of one communicator; communicators of some of these ranks share it."""

    def __init__(self, comm: MPI.Comm, timeout_s: float) -> None:
        """Start to watch; collective.

        Raises:
            TransportError: if rank 0 has not heard from all within the time-out.
        """
        self._monitor = Monitor(comm, timeout_s, ends=False)
        self._group = comm.Get_group()
        #: An identifier: the same on all ranks, and unique.
        self.number = _one_number(comm)
        #: The farewells of communicators that are still open, called when the program ends.
        self._farewells: list[Callable[[], None]] = []
        if not _open:
            atexit.register(_end, os.getpid())
        _open.append(self)

    def places(self, comm: MPI.Comm) -> frozenset[int]:
        """Return a communicator's ranks in the numbers of this watch; empty if it lacks one."""
        group = comm.Get_group()
        found = group.Translate_ranks(range(group.size), self._group)
        group.Free()
        return frozenset() if MPI.UNDEFINED in found else frozenset(map(int, found))

    def join(self, timeout_s: float, farewell: Callable[[], None]) -> None:
        """Add a communicator to this watch.

        Args:
            timeout_s: its deadline.
            farewell: called if the program ends before it is closed.
        """
        self._farewells.append(farewell)
        watcher = self._monitor.watcher
        if isinstance(watcher, NewsHub | NewsLine):
            watcher.hasten(timeout_s)

    @property
    def busy_until(self) -> Callable[[], float]:
        """A function that returns until when a rank was known to be busy."""
        return self._monitor.busy_until

    def late(self, ranks: frozenset[int], timeout_s: float) -> str:
        """Return in words which of some ranks have died or are silent for the time-out; or nothing.

        Args:
            ranks: of ``places``.
            timeout_s: of the asking communicator.
        """
        watcher = self._monitor.watcher
        return watcher.late(ranks, timeout_s) if isinstance(watcher, NewsHub | NewsLine) else ""

    def leave(self, farewell: Callable[[], None]) -> None:
        """Remove a communicator; the last one ends the watch."""
        self._farewells.remove(farewell)
        if not self._farewells:
            _open.remove(self)
            self._group.Free()
            self._monitor.close()
            if not _open:
                atexit.unregister(_end)

    def end(self) -> None:
        """Say goodbye: from here on this process only waits for the others in MPI_Finalize."""
        for farewell in self._farewells:
            farewell()
        self._monitor.close()


def _one_number(comm: MPI.Comm) -> int:
    number = np.frombuffer(os.urandom(8), np.int64) >> 1
    number = np.abs(number) + 1
    comm.Bcast(number)
    return int(number[0])


def _end(process: int) -> None:
    if os.getpid() == process and not MPI.Is_finalized():
        for company in _open:
            company.end()


def company_of(comm: MPI.Comm, timeout_s: float, farewell: Callable[[], None]) -> Company:
    """Return the watch over the ranks of a communicator, a new one if none covers them; collective.

    Args:
        comm: the ranks.
        timeout_s: see ``Company.join``.
        farewell: see ``Company.join``.

    Raises:
        TransportError: see ``Company``.
    """
    mine = known(comm)
    number = 0 if mine is None else mine.number
    # A rank whose communicator has failed may have closed a watch that others still have.
    agreed = np.array([number, -number], np.int64)
    comm.Allreduce(MPI.IN_PLACE, agreed, MPI.MAX)
    if mine is None or agreed[0] != -agreed[1]:
        mine = Company(comm, timeout_s)
    mine.join(timeout_s, farewell)
    return mine


def known(comm: MPI.Comm) -> Company | None:
    """Return the newest watch of this process that covers the ranks; None if there is none."""
    return next((it for it in reversed(_open) if it.places(comm)), None)
