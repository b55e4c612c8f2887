"""Handles MPI's errors about peers that have died, which Open MPI's ULFM returns from calls.

Rank 0 decides which ranks are gone (``psrt.faults``). So a rank that waits for a peer which MPI
reports dead keeps waiting until rank 0 reports it, too: all ranks then exclude it by the same
decision.

Source: W. Bland et al., Post-failure recovery of MPI communication capability, IJHPCA 27(3), 2013.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from mpi4py import MPI

#: Set by ``mpirun --with-ft ulfm``.
_ENABLED = "OMPI_MCA_mpi_ft_enable"
#: The error classes: of an operation with a dead rank; of one with any source, while some dead
#: ranks are not acknowledged; of several operations. MPICH has these names, too, for the class of
#: all its unknown errors.
_CLASSES = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_IN_STATUS)


@functools.cache
def survives() -> bool:
    """Return whether MPI continues when the process of a rank dies."""
    return MPI.get_vendor()[0] == "Open MPI" and os.environ.get(_ENABLED) in ("1", "true", "yes")


def is_of_the_dead(error: MPI.Exception) -> bool:
    """Return whether an operation has failed because its peer has died."""
    return survives() and error.Get_error_class() in _CLASSES


class Living:
    """Whether a peer is alive, as far as operations with it have shown.

    A failed request becomes null, and a null request tests as complete. So after the first error
    nothing of that peer counts as complete any more.
    """

    def __init__(self) -> None:
        self._is_dead = False

    def finds(self, test: Callable[[], bool]) -> bool:
        """Return whether an operation is complete; never once the peer has died."""
        if self._is_dead:
            return False
        try:
            return test()
        except MPI.Exception as error:
            if not is_of_the_dead(error):
                raise
            self._is_dead = True
            return False


def acknowledge(comm: MPI.Comm) -> None:
    """Make receives and probes of any source ignore the ranks that have died so far."""
    comm.Ack_failed(comm.Get_failed().size)
