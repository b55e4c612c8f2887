"""What a launcher told this process in its environment, before MPI is started. No MPI.

Open MPI's mpirun, whatever speaks PMI (MPICH's mpirun, Intel's, Cray's) and Slurm's srun each set
variables of their own. Where they are nested, as mpirun inside an allocation of Slurm, the
innermost one counts, so it comes first here.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

#: Variables with the number of ranks that were started together.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
#: Variables with the rank of this process among them. PMIx alone tells no size.
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
#: Variables that only a process under a launcher of MPI has. Slurm sets its own in any batch
#: script, too, which is one process: there the number of tasks decides.
_MARKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")


def launched() -> bool:
    """Return whether this process was started as a rank of an MPI job."""
    return any(name in os.environ for name in _MARKS) or started_ranks() > 1


def started_ranks() -> int:
    """Return how many ranks were started together, as far as the launcher says; 1 without one."""
    return max(1, _number(SIZES, 1), started_rank() + 1 if "PMIX_RANK" in os.environ else 1)


def started_rank() -> int:
    """Return the rank that the launcher gave this process; 0 without a launcher."""
    return _number(RANKS, 0)


def has_mpirun() -> bool:
    """Return whether there is an mpirun: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "mpirun"
    return beside.exists() or shutil.which("mpirun") is not None


def mismatch(ranks: int, library: str, mpirun: str) -> str | None:
    """Return what is wrong where MPI sees other ranks than the launcher started.

    A process that was started by the launcher of another MPI, or by srun without the PMI that its
    MPI speaks, finds itself alone: every rank would train by itself and write the same files.

    Args:
        ranks: of the job, as MPI counts them.
        library: name of the MPI library.
        mpirun: how the launcher of that library is called.

    Returns:
        One line, or None if nothing is wrong.
    """
    started = started_ranks()
    if ranks > 1 or started == 1:
        return None
    by_slurm = not any(name in os.environ for name in SIZES[:2])
    way = "srun --mpi=pmix, or " if by_slurm else ""
    return (
        f"started as one of {started} ranks, but {library} sees one: the launcher is not the one "
        f"of this MPI; start the ranks by {way}{mpirun}"
    )


def _number(names: Sequence[str], default: int) -> int:
    """Return the first of these variables that is there and a number."""
    values = (os.environ[name] for name in names if name in os.environ)
    return next((int(value) for value in values if value.isdecimal()), default)
