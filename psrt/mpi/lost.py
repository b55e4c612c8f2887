"""What MPI says of a peer whose process has died: under Open MPI's ULFM an error, at its calls.

Who is gone, rank 0 tells (``psrt.faults``). So whoever waits for a peer that MPI calls dead goes on
waiting until it hears that from there: all ranks then leave it out for the same reason.

Source: W. Bland et al., Post-failure recovery of MPI communication capability, IJHPCA 27(3), 2013.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from mpi4py import MPI

#: Set by ``mpirun --with-ft ulfm``.
_ENABLED = "OMPI_MCA_mpi_ft_enable"
#: Of an operation with a rank that has died; of one with any rank, while some that have died are
#: not acknowledged; of several operations. MPICH has these names too, for the class of all its
#: unknown errors.
_CLASSES = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_IN_STATUS)


@functools.cache
def survives() -> bool:
    """Return whether MPI goes on when the process of a rank dies."""
    return MPI.get_vendor()[0] == "Open MPI" and os.environ.get(_ENABLED) in ("1", "true", "yes")


def is_of_the_dead(error: MPI.Exception) -> bool:
    """Return whether an operation has failed because its peer has died."""
    return survives() and error.Get_error_class() in _CLASSES


class Living:
    """Whether a peer lives, as far as operations with it have told.

    A request that has failed is no more, and one that is no more tests as complete: so after the
    first error nothing of that peer is ever complete.
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
    """Have receives and probes of any rank leave out those that have died until now."""
    comm.Ack_failed(comm.Get_failed().size)
