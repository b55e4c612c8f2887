"""The MPI launcher: its variables in this process's environment, and how to call it. No MPI.

Open MPI's mpirun, any PMI launcher (MPICH's mpirun, Intel's, Cray's) and Slurm's srun each set
variables of their own. If they are nested, such as mpirun inside a Slurm allocation, the innermost
one counts, so it comes first here.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

#: Variables with the number of ranks that were started together.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
#: Variables with the rank of this process among them. PMIx alone sets no size.
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
#: Variables that only an MPI launcher sets. Slurm sets its own in any batch script, too, which is
#: a single process: there the number of tasks decides.
_MARKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")

#: Open MPI starts ranks as root only with both of them set.
_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def launched() -> bool:
    """Return whether this process was started as a rank of an MPI job."""
    return any(name in os.environ for name in _MARKS) or started_ranks() > 1


def started_ranks() -> int:
    """Return the number of ranks that the launcher started together; 1 without a launcher."""
    return max(1, _number(SIZES, 1), started_rank() + 1 if "PMIX_RANK" in os.environ else 1)


def started_rank() -> int:
    """Return the rank that the launcher gave this process; 0 without a launcher."""
    return _number(RANKS, 0)


def mpirun() -> str | None:
    """Return the mpirun beside this Python, else the one on the path; None without any."""
    beside = Path(sys.executable).parent / "mpirun"
    return _called(beside) if beside.exists() else shutil.which("mpirun") and "mpirun"


def start_line(*parts: tuple[int, str]) -> str:
    """Return a shell line that starts ranks, ready to paste.

    Open MPI needs a flag to start more ranks than there are cores, and another to start any as
    root.

    Args:
        parts: (ranks, arguments of Python) of each part of the job, such as (3, "-m psrt train").
    """
    launcher = mpirun() or "mpirun"
    words = [launcher]
    if _is_open_mpi(launcher):
        if os.geteuid() == 0 and not all(name in os.environ for name in _ROOT):
            words.append("--allow-run-as-root")
        if sum(ranks for ranks, _ in parts) > len(os.sched_getaffinity(0)):
            words.append("--oversubscribe")
    python = _called(Path(sys.executable))
    return f"{' '.join(words)} " + " : ".join(f"-n {n} {python} {what}" for n, what in parts)


def again(ranks: int) -> str:
    """Return a shell line that starts this process's command on the given number of ranks."""
    script, *rest = sys.argv or [""]
    path = Path(script)
    if path.name in ("psrt", "__main__.py"):
        script = "-m psrt" if path.name == "psrt" else f"-m {path.parent.name}"
    else:
        script = shlex.quote(script)
    return start_line((ranks, " ".join([script, *map(shlex.quote, rest)])))


def _called(path: Path) -> str:
    """Return how to call a program from here: by its name if it is the one on the path."""
    if shutil.which(path.name) == str(path):
        return path.name
    near = os.path.relpath(path)
    return shlex.quote(str(path) if near.startswith("..") else near)


def _is_open_mpi(launcher: str) -> bool:
    """Return whether this is Open MPI's mpirun, by the files beside it: starting it is slow."""
    found = shutil.which(launcher)
    if found is None:
        return False
    path = Path(found).resolve()
    if "mpiexec" in path.name or "hydra" in path.name:
        return False
    return any((path.parent / name).exists() for name in ("prterun", "orterun"))


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
    by_slurm = not any(name in os.environ for name in SIZES[:2])
    way = "srun --mpi=pmix, or " if by_slurm else ""
    return (
        f"started as one of {started} ranks, but {library} sees one: the launcher is not the one "
        f"of this MPI; start the ranks by {way}{mpirun}"
    )


def _number(names: Sequence[str], default: int) -> int:
    """Return the first of these variables that is set to a whole number."""
    values = (os.environ[name] for name in names if name in os.environ)
    return next((int(value) for value in values if value.isdecimal()), default)
