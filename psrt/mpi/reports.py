"""Reports to rank 0 over MPI, with their own tag, outside of the training traffic."""

from __future__ import annotations

from collections.abc import Callable, Container

from mpi4py import MPI

from psrt.core.stats import Sent
from psrt.mpi.lost import acknowledge, is_of_the_dead
from psrt.mpi.tags import REPORT
from psrt.transport.frames import decode_report, encode_report


class Reports:
    """One rank's end: rank 0 takes the reports that the others send."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._is_first = comm.rank == 0
        self._status = MPI.Status()
        #: Reports that were sent and may not have been taken, each with the bytes that MPI still
        #: reads.
        self._out: list[tuple[MPI.Request, bytes]] = []
        #: Receives the reports at rank 0.
        self.on_report: Callable[[Sent], None] = lambda _: None
        #: Ranks whose reports are no longer taken.
        self.ignored: Container[int] = ()

    def send(self, report: Sent) -> None:
        """Send a report; never waits."""
        if self._is_first:
            self.take()
            self.on_report(report)
            return
        self._out = [pair for pair in self._out if not pair[0].Test()]
        data = encode_report(report)
        # Synchronous: the request completes when the report has been taken.
        self._out.append((self._comm.Issend([data, MPI.BYTE], 0, REPORT), data))

    def take(self) -> None:
        """Take the reports that have arrived; on every rank, since MPI progresses only in calls."""
        try:
            self._take()
        except MPI.Exception as error:
            if not is_of_the_dead(error):
                raise
            acknowledge(self._comm)

    def _take(self) -> None:
        while self._comm.Iprobe(MPI.ANY_SOURCE, REPORT, self._status) and self._is_first:
            data = bytearray(self._status.Get_count(MPI.BYTE))
            # From the probed rank: over libfabric, MPICH may not match a receive from any source
            # with the message that the probe has seen, and would then block for ever.
            source = self._status.Get_source()
            self._comm.Recv([data, MPI.BYTE], source, REPORT)
            if source not in self.ignored:
                self.on_report(decode_report(data))

    def are_taken(self) -> bool:
        """Return whether all reports of this rank have been taken."""
        return all(request.Test() for request, _ in self._out)
