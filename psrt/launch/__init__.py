"""Everything psrt knows about launchers: mpirun of either vendor, and Slurm's srun. Imports no MPI.

``environment`` reads the variables that a launcher set for this process, ``library`` finds the MPI
that mpi4py loads, ``hostfile`` reads the hosts, ``lines`` builds the command that starts ranks on
them, and ``hints`` suggests that command to the user.
"""

from __future__ import annotations

from psrt.launch.environment import (
    RANKS,
    SIZES,
    TORCHRUN,
    launched,
    mismatch,
    spoken_pmi,
    started_by,
    started_rank,
    started_ranks,
)
from psrt.launch.hints import again, has_mpirun, launch_line

__all__ = [
    "RANKS",
    "SIZES",
    "TORCHRUN",
    "again",
    "has_mpirun",
    "launch_line",
    "launched",
    "mismatch",
    "spoken_pmi",
    "started_by",
    "started_rank",
    "started_ranks",
]
