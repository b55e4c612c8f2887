"""Announces long work: a rank that computes is not late.

A rank that computes calls no MPI, so it cannot answer a question; it must have announced its work
before. Most gradients take milliseconds, and a message for each would cost more than it is worth,
so only work that may take long is announced: see ``Busy.begin``. A rank that waits looks for these
announcements at its deadline, and waits longer while another rank computes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Iterator

from mpi4py import MPI

from psrt.mpi.tags import BUSY

_BEGINS, _ENDS = b"\1", b"\0"
#: What took more than this share of the deadline last time is announced the next time.
_SHARE = 1 / 4
#: A rank that seems to compute for this many deadlines is gone.
MOST_DEADLINES = 60
#: How long an announcement may take to leave. The first message to a host has to set up a
#: connection, which goes on only while MPI is called, and that is over once the work begins.
_LEAVES_WITHIN_S = 0.1


class Busy:
    """One rank's announcements of long work, and what it knows of the others'."""

    def __init__(self, comm: MPI.Comm, timeout_s: float) -> None:
        """Set up.

        Args:
            comm: the ranks of the job; other tags of it may be in use.
            timeout_s: the deadline of a wait.
        """
        self._comm = comm
        self._long_s = _SHARE * timeout_s
        self._gone_after_s = MOST_DEADLINES * timeout_s
        #: Rank → when its announcement arrived.
        self._since: dict[int, float] = {}
        #: The last time that one of them was known to compute.
        self._until = -float("inf")
        self._out: list[MPI.Request] = []
        #: When the newest step was begun.
        self._begun_at = -float("inf")
        #: Seconds that work beside the steps has taken at most, by what was done.
        self._longest_s: dict[Hashable, float] = {}

    def begin(self) -> bool:
        """Begin a step; return whether it was announced, so that ``end`` must be called.

        The first one is, and each that follows a step which took long, waiting included: then
        time from one step to the next is all there is to look at.
        """
        now = time.monotonic()
        before, self._begun_at = self._begun_at, now
        if now - before > self._long_s:
            self._tell(_BEGINS)
            return True
        return False

    def end(self) -> None:
        """Say that what was announced is over."""
        self._tell(_ENDS)

    @contextlib.contextmanager
    def work(self, what: Hashable) -> Iterator[None]:
        """Do ``what``, which is no step; announced the first time, and if it ever took long."""
        longest_s = self._longest_s.get(what, float("inf"))  # the first may take any time
        announced = longest_s > self._long_s
        if announced:
            self._tell(_BEGINS)
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self._longest_s[what] = max(self._longest_s.get(what, 0.0), took)
            if announced:
                self._tell(_ENDS)

    def until(self) -> float:
        """Return until when another rank was known to compute: now, if one does.

        The end of its work is not the end of the wait: what it goes on to do takes its time, too.
        """
        self.take()
        now = time.monotonic()
        if any(now - since < self._gone_after_s for since in self._since.values()):
            self._until = now
        return self._until

    def take(self) -> None:
        """Take in what the others have announced."""
        status = MPI.Status()
        word = bytearray(1)
        while self._comm.Iprobe(MPI.ANY_SOURCE, BUSY, status):
            # Not from any source again: that may be another message than the one that was found.
            self._comm.Recv([word, MPI.BYTE], status.source, BUSY)
            if word == _BEGINS:
                self._since[status.source] = time.monotonic()
            elif self._since.pop(status.source, None) is not None:
                self._until = time.monotonic()

    def close(self) -> None:
        """Take in what is left; after a barrier, so that nothing is under way."""
        MPI.Request.Waitall(self._out)
        self.take()

    def _tell(self, word: bytes) -> None:
        comm = self._comm
        self._out = [request for request in self._out if not request.Test()]
        self._out += [
            comm.Isend([word, MPI.BYTE], rank, BUSY)
            for rank in range(comm.size)
            if rank != comm.rank
        ]
        deadline = time.monotonic() + _LEAVES_WITHIN_S
        while not MPI.Request.Testall(self._out) and time.monotonic() < deadline:
            pass
