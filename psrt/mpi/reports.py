"""Reports to rank 0 over MPI, by a tag of their own, apart from the training's traffic."""

from __future__ import annotations

from collections.abc import Callable, Container

from mpi4py import MPI

from psrt.core.stats import Report, Sketch
from psrt.mpi.lost import acknowledge, is_of_the_dead
from psrt.mpi.tags import REPORT
from psrt.transport.frames import decode_report, encode_report


class Reports:
    """One rank's end: rank 0 takes what the others send."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._is_first = comm.rank == 0
        self._status = MPI.Status()
        #: Sent and not known to be taken yet, each with the bytes that MPI still reads.
        self._out: list[tuple[MPI.Request, bytes]] = []
        #: Takes the reports that reach rank 0.
        self.on_report: Callable[[Report | Sketch], None] = lambda _: None
        #: Ranks whose reports are not taken any more.
        self.ignored: Container[int] = ()

    def send(self, report: Report | Sketch) -> None:
        """Send a report; never waits."""
        if self._is_first:
            self.take()
            self.on_report(report)
            return
        self._out = [pair for pair in self._out if not pair[0].Test()]
        data = encode_report(report)
        # Synchronous: the request is done when the report has been taken.
        self._out.append((self._comm.Issend([data, MPI.BYTE], 0, REPORT), data))

    def take(self) -> None:
        """Take the reports that have come; on every rank, for MPI moves only while it is called."""
        try:
            self._take()
        except MPI.Exception as error:
            if not is_of_the_dead(error):
                raise
            acknowledge(self._comm)

    def _take(self) -> None:
        while self._comm.Iprobe(MPI.ANY_SOURCE, REPORT, self._status) and self._is_first:
            data = bytearray(self._status.Get_count(MPI.BYTE))
            # From the rank that was probed: over libfabric MPICH may give a receive from anybody
            # none of the messages that the probe has seen, and then it blocks for ever.
            source = self._status.Get_source()
            self._comm.Recv([data, MPI.BYTE], source, REPORT)
            if source not in self.ignored:
                self.on_report(decode_report(data))

    def are_taken(self) -> bool:
        """Return whether all that this rank sent has been taken."""
        return all(request.Test() for request, _ in self._out)
