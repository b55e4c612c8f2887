"""What a launcher says of this process, in the variables of its environment.

Open MPI's mpirun, any PMI launcher (MPICH's mpirun, Intel's, Cray's) and Slurm's srun each set
variables of their own. If they are nested, such as mpirun inside a Slurm allocation, the innermost
one counts, so it comes first here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from psrt.core.errors import ConfigError

#: Variables with the number of ranks that were started together.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
#: Variables with the rank of this process among them. PMIx alone sets no size.
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
#: Variables that only an MPI launcher sets. Slurm sets its own in any batch script, too, which is
#: a single process: there the number of tasks decides.
_MARKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")
#: Variables by which a launcher finds hosts that nobody has named to it: a batch system's, and
#: those for a hostfile of the user's or of the site's.
_HOSTS = (
    "SLURM_JOB_ID", "PBS_NODEFILE", "LSB_MCPU_HOSTS", "PE_HOSTFILE", "COBALT_NODEFILE",
    "PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE",
)  # fmt: skip
#: Seconds that MPI may take to start, and to end; ``PSRT_START_TIMEOUT_S`` overrides it.
_START_S, _OVERRIDE = 300.0, "PSRT_START_TIMEOUT_S"


def launched() -> bool:
    """Return whether this process was started as a rank of an MPI job."""
    return any(name in os.environ for name in _MARKS) or started_ranks() > 1


def finds_hosts() -> bool:
    """Return whether a launcher that this process starts may find several hosts by itself."""
    return any(name in os.environ for name in _HOSTS)


def started_ranks() -> int:
    """Return the number of ranks that the launcher started together; 1 without a launcher."""
    return max(1, _number(SIZES, 1), started_rank() + 1 if "PMIX_RANK" in os.environ else 1)


def started_rank() -> int:
    """Return the rank that the launcher gave this process; 0 without a launcher."""
    return _number(RANKS, 0)


def started_by() -> str:
    """Return what started this process, in a few words."""
    if not launched():
        return "no launcher"
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        return "mpirun of Open MPI"
    if "SLURM_STEP_NUM_TASKS" in os.environ and "HYDI_CONTROL_FD" not in os.environ:
        return "srun of Slurm"
    return "mpirun of MPICH or its kind"


def daemon() -> int | None:
    """Return the process of MPICH's mpirun that has started this one here; None without one.

    Its end is not seen elsewhere: MPI needs it at its own end only, and mpirun waits for the ranks.
    """
    return os.getppid() if "HYDI_CONTROL_FD" in os.environ else None


def spoken_pmi() -> str:
    """Return what this process speaks with its launcher; empty without one.

    Slurm sets the variables of the language that its ``--mpi`` names; of two, PMIx is the newer.
    """
    if "PMIX_RANK" in os.environ:
        return "PMIx"
    return "PMI" if "PMI_RANK" in os.environ else ""


def mismatch(ranks: int, library: str, mpirun: str) -> str | None:
    """Describe a mismatch between the ranks that MPI sees and those that the launcher started.

    A process started by the launcher of another MPI, or by srun without the PMI that its MPI
    speaks, finds itself alone: every rank would train serially and write the same files.

    Args:
        ranks: the size of the job, as MPI counts it.
        library: name of the MPI library.
        mpirun: the command of that library's launcher.

    Returns:
        One line, or None if the two agree.
    """
    started = started_ranks()
    if ranks > 1 or started == 1:
        return None
    # In a job of Slurm's, also where mpirun started this process: srun can start it as well.
    way = f"srun --mpi={pmi_for(library)}, or " if "SLURM_PROCID" in os.environ else ""
    return (
        f"started as one of {started} ranks, but {library} sees one: the launcher is not the one "
        f"of this MPI; start the ranks by {way}{mpirun}"
    )


def pmi_for(library: str) -> str:
    """Return what ``srun --mpi=`` needs: Open MPI speaks PMIx only, MPICH and its kin PMI-2.

    Args:
        library: the name of the MPI library; its version may follow.
    """
    return "pmix" if library.startswith("Open MPI") else "pmi2"


def start_limit_s() -> float:
    """Return the seconds that MPI may take to start, and to end.

    Raises:
        ConfigError: if the user's own number is none.
    """
    text = os.environ.get(_OVERRIDE, "")
    with contextlib.suppress(ValueError):
        seconds = float(text or _START_S)
        if 0 < seconds < 1e9:
            return seconds
    raise ConfigError(f"{_OVERRIDE} is {text!r}; expected a positive number of seconds")


def _number(names: Sequence[str], default: int) -> int:
    """Return the first of these variables that is set to a whole number."""
    values = (os.environ[name] for name in names if name in os.environ)
    return next((int(value) for value in values if value.isdecimal()), default)
