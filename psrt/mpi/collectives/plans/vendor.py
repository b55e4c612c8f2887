"""The MPI library's own all-reduce, with a check that all ranks make the same call.

The library does not check that all ranks reduce the same: it hangs, or adds unrelated elements. So
two integers are reduced first, which show each rank whether all calls have the same checksum.

The library also requires calls on one communicator to start in the same order on every rank. With
several calls in progress, the first halves start in the order of the calls, which is the same on
all ranks; the order in which they end is not. So the second halves have another communicator, and a
queue in which they wait for their turn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from psrt.collective.analysis.pick import library_reduces
from psrt.collective.ops import Operation
from psrt.core.arrays import AnyVector
from psrt.core.errors import ConfigError
from psrt.mpi.collectives.plans.plan import Plan, Run
from psrt.mpi.collectives.slots import OtherCallError
from psrt.mpi.links.pieces import pieces


class VendorAccess(NamedTuple):
    """What all calls of one rank share."""

    #: For the checksums; all ranks use it in the order of their calls.
    checks: MPI.Intracomm
    #: For the numbers; all ranks use it in the order of their calls.
    numbers: MPI.Intracomm
    #: Runs whose numbers have not been passed to the library yet, in the order of their calls.
    line: deque[object]


@dataclass(eq=False)
class Vendor(Plan):
    """The plan of one rank."""

    polls = spins = True

    #: Access to the library's collectives.
    access: VendorAccess
    #: (n,), this rank's, in any memory.
    vector: AnyVector
    #: Folds two values.
    operation: Operation
    #: The checksum of the call.
    checksum: InitVar[int]

    def __post_init__(self, checksum: int) -> None:
        if not library_reduces(self.vector.dtype):
            raise ConfigError(
                f"MPI has no reduction for {self.vector.dtype}; take another algorithm"
            )
        self._checks = np.array([checksum, -checksum], np.int64)
        self._most = np.empty(2, np.int64)
        #: Bytes passed to the library; what it sends of them is unknown.
        self.bytes_sent = self.bytes_received = self.vector.nbytes

    def run(self) -> Run:
        """Run it; the library progresses only while it is called."""
        checks, numbers, line = self.access
        me = object()
        line.append(me)
        # The maximum of c and of −c over all ranks: these are opposite only if all have the same c.
        request = checks.Iallreduce(self._checks, self._most, MPI.MAX)
        if not request.Test():
            yield request.Test
        if self._most[0] != -self._most[1]:
            raise OtherCallError("the ranks are in different calls")
        # All ranks pass their numbers on in the order of their calls, whichever check ended first.
        if line[0] is not me:
            yield lambda: line[0] is me
        op = getattr(MPI, self.operation.mpi)
        requests = [numbers.Iallreduce(MPI.IN_PLACE, part, op) for part in pieces(self.vector)]
        line.popleft()
        ended = requests[0].Test if len(requests) == 1 else partial(MPI.Request.Testall, requests)
        if not ended():
            yield ended
        self.operation.finish(self.vector, numbers.size)

    def waiting_for(self) -> str:
        """Name no rank: the library does not tell."""
        return "the other ranks in the MPI library's all-reduce"
