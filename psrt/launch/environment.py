"""What a launcher says about this process, in environment variables.

Open MPI's mpirun, any PMI launcher (MPICH's mpirun, Intel's, Cray's) and Slurm's srun each set
variables of their own. If they are nested, such as mpirun inside a Slurm allocation, the innermost
one counts, so it comes first here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from psrt.core.errors import ConfigError

#: Variables with the number of ranks that were started together.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
#: Variables with the rank of this process among them. PMIx alone sets no size.
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
#: Variables with the rank of this process among those on its host, and with their number, which
#: Slurm gives for all hosts at once.
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
#: What torchrun sets, by the variable that nothing else sets. It starts no MPI, so each of its
#: processes finds itself alone.
TORCHRUN = "TORCHELASTIC_RUN_ID"
_TORCHRUN_SIZE, _TORCHRUN_RANK = "WORLD_SIZE", "RANK"
#: Variables that only an MPI launcher sets. Slurm also sets its own in a batch script, which is a
#: single process, so there the number of tasks decides.
_MARKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")
#: Variables in which a launcher finds hosts that are not on its command line: those of a batch
#: system, and those that name a hostfile.
_HOSTS = (
    "SLURM_JOB_ID", "PBS_NODEFILE", "LSB_MCPU_HOSTS", "PE_HOSTFILE", "COBALT_NODEFILE",
    "PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE",
)  # fmt: skip
#: Knobs of ``psrt launch --knobs``, which replace those of the config that a script gives.
KNOBS = "PSRT_KNOBS"
#: Seconds that MPI may take to start, and to end; ``PSRT_START_TIMEOUT_S`` overrides it.
_START_S, _OVERRIDE = 300.0, "PSRT_START_TIMEOUT_S"


def launched() -> bool:
    """Return whether this process was started as a rank of an MPI job."""
    return any(name in os.environ for name in _MARKS) or started_ranks() > 1


def finds_hosts() -> bool:
    """Return whether a launcher started here may find several hosts by itself."""
    return any(name in os.environ for name in _HOSTS)


def started_ranks() -> int:
    """Return the number of ranks that the launcher started together; 1 without a launcher."""
    sizes = (*SIZES, _TORCHRUN_SIZE) if TORCHRUN in os.environ else SIZES
    return max(1, _number(sizes, 1), started_rank() + 1 if "PMIX_RANK" in os.environ else 1)


def started_rank() -> int:
    """Return the rank that the launcher gave this process; 0 without a launcher."""
    return _number((*RANKS, _TORCHRUN_RANK) if TORCHRUN in os.environ else RANKS, 0)


def place() -> tuple[int, int]:
    """Return the rank of this process among those on its host, and their number."""
    if is_of_srun():
        local, host = _number(_LOCAL_RANKS[-1:], 0), _number(("SLURM_NODEID",), 0)
        counts = tasks_per_node(os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        return local, counts[host] if host < len(counts) else local + 1
    return _number(_LOCAL_RANKS, 0), _number(_LOCAL_SIZES, 1)


def tasks_per_node(text: str) -> Sequence[int]:
    """Return the number of tasks on each node, as Slurm writes them.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, nodes in found for _ in range(int(nodes or 1))]


def first_node(nodes: str) -> str:
    """Return the first host of a list, as Slurm writes it.

    >>> first_node("gpu[07-09,12],big"), first_node("rack[1-2]-[03,05]"), first_node("a,b")
    ('gpu07', 'rack1-03', 'a')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\w*)[^\]]*\]", r"\1", first[0] if first else "")


def is_of_srun() -> bool:
    """Return whether srun has started this process, rather than an mpirun in a job of Slurm."""
    others = ("OMPI_COMM_WORLD_SIZE", "HYDI_CONTROL_FD")
    return "SLURM_STEP_NUM_TASKS" in os.environ and not any(it in os.environ for it in others)


def started_by() -> str:
    """Return what started this process, in a few words."""
    if not launched():
        return "no launcher"
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        return "mpirun of Open MPI"
    if TORCHRUN in os.environ and not any(name in os.environ for name in _MARKS):
        return "torchrun"
    if is_of_srun():
        return "srun of Slurm"
    return "mpirun of MPICH or its kind"


def daemon() -> int | None:
    """Return the process of MPICH's mpirun on this host that started this one; None without one.

    Nothing else notices its death: MPI needs it only at the end, and mpirun waits for the ranks.
    """
    return os.getppid() if "HYDI_CONTROL_FD" in os.environ else None


def spoken_pmi() -> str:
    """Return the protocol between this process and its launcher; empty without one.

    Slurm sets the variables of the protocol that its ``--mpi`` names. PMIx is newer than PMI.
    """
    if "PMIX_RANK" in os.environ:
        return "PMIx"
    return "PMI" if "PMI_RANK" in os.environ else ""


def mismatch(ranks: int, library: str, mpirun: str) -> str | None:
    """Describe a mismatch between the ranks that MPI sees and those that the launcher started.

    A process started by the launcher of another MPI, or by srun without the PMI of its own MPI,
    finds itself alone: every rank would train serially and write the same files.

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
    if started_by() == "torchrun":
        return (
            f"torchrun started {started} processes, but it starts no MPI, so each is a job of its "
            f"own; start the script with psrt launch -n {started} SCRIPT"
        )
    # In a Slurm job srun can start the ranks as well, even if mpirun started this process.
    way = f"srun --mpi={pmi_for(library)}, or " if "SLURM_PROCID" in os.environ else ""
    return (
        f"started as one of {started} ranks, but {library} sees one: the launcher does not belong "
        f"to this MPI; start the ranks with {way}{mpirun}"
    )


def pmi_for(library: str) -> str:
    """Return what ``srun --mpi=`` needs: PMIx for Open MPI, PMI-2 for MPICH and its relatives.

    Args:
        library: the name of the MPI library; its version may follow.
    """
    return "pmix" if library.startswith("Open MPI") else "pmi2"


def start_limit_s() -> float:
    """Return the seconds that MPI may take to start, and to end.

    Raises:
        ConfigError: if the user's setting is not a positive number.
    """
    text = os.environ.get(_OVERRIDE, "")
    with contextlib.suppress(ValueError):
        seconds = float(text or _START_S)
        if 0 < seconds < 1e9:
            return seconds
    raise ConfigError(f"{_OVERRIDE} must be a positive number of seconds, got {text!r}")


def _number(names: Sequence[str], default: int) -> int:
    """Return the value of the first of these variables that is a whole number."""
    values = (os.environ[name] for name in names if name in os.environ)
    return next((int(value) for value in values if value.isdecimal()), default)
