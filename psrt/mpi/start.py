"""Starts MPI the way psrt wants it, and sees that it is the MPI that the launcher means.

What Open MPI reads from its environment is set by ``import psrt``, which comes before any of this.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import mpi4py

from psrt.errors import ConfigError
from psrt.launchers import mismatch
from psrt.launchers.library import INSTALL_ONE

# psrt calls MPI from one thread, and locks it never needs cost time at each call.
mpi4py.rc.thread_level = "funneled"

# mpi4py warns, on each rank, of variables of another MPI: ``world`` says more, and once.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "suspicious MPI execution environment")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"no MPI library can be loaded ({' '.join(str(error).split())}): {INSTALL_ONE}"
        ) from error


def world() -> MPI.Comm:
    """Return all ranks of the job.

    Raises:
        ConfigError: if the launcher has started several, and MPI knows of this one only.
    """
    comm = MPI.COMM_WORLD
    wrong = mismatch(comm.size, MPI.get_vendor()[0], _mpirun())
    if wrong is not None:
        raise ConfigError(wrong)
    return comm


def _mpirun() -> str:
    """Return what the launcher of this MPI is called: that of this environment, if it has one."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else f"the mpirun of {MPI.get_vendor()[0]}"
