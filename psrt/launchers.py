"""What a launcher told this process in its environment, and how to call one. No MPI.

Open MPI's mpirun, whatever speaks PMI (MPICH's mpirun, Intel's, Cray's) and Slurm's srun each set
variables of their own. Where they are nested, as mpirun inside an allocation of Slurm, the
innermost one counts, so it comes first here.
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
#: Variables with the rank of this process among them. PMIx alone tells no size.
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
#: Variables that only a process under a launcher of MPI has. Slurm sets its own in any batch
#: script, too, which is one process: there the number of tasks decides.
_MARKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")

#: With both of them set, Open MPI starts ranks for root.
_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def launched() -> bool:
    """Return whether this process was started as a rank of an MPI job."""
    return any(name in os.environ for name in _MARKS) or started_ranks() > 1


def started_ranks() -> int:
    """Return how many ranks were started together, as far as the launcher says; 1 without one."""
    return max(1, _number(SIZES, 1), started_rank() + 1 if "PMIX_RANK" in os.environ else 1)


def started_rank() -> int:
    """Return the rank that the launcher gave this process; 0 without a launcher."""
    return _number(RANKS, 0)


def mpirun() -> str | None:
    """Return the mpirun that a user of this Python calls: beside it, or on the path; or None."""
    beside = Path(sys.executable).parent / "mpirun"
    return _called(beside) if beside.exists() else shutil.which("mpirun") and "mpirun"


def start_line(*parts: tuple[int, str]) -> str:
    """Return a shell line that starts ranks and works as it is printed.

    Open MPI refuses to start more ranks than there are cores, and to start any for root, unless
    it is told to.

    Args:
        parts: of the job: how many ranks, and what Python runs there, such as "-m psrt train".
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
    """Return a shell line that starts what this process runs on that many ranks."""
    script, *rest = sys.argv or [""]
    path = Path(script)
    if path.name in ("psrt", "__main__.py"):
        script = "-m psrt" if path.name == "psrt" else f"-m {path.parent.name}"
    else:
        script = shlex.quote(script)
    return start_line((ranks, " ".join([script, *map(shlex.quote, rest)])))


def _called(path: Path) -> str:
    """Return how a program is called from here: by its name where the path leads to it."""
    if shutil.which(path.name) == str(path):
        return path.name
    near = os.path.relpath(path)
    return shlex.quote(str(path) if near.startswith("..") else near)


def _is_open_mpi(launcher: str) -> bool:
    """Return whether this is the mpirun of Open MPI; asked of files, for starting it takes long."""
    found = shutil.which(launcher)
    if found is None:
        return False
    path = Path(found).resolve()
    if "mpiexec" in path.name or "hydra" in path.name:
        return False
    return any((path.parent / name).exists() for name in ("prterun", "orterun"))


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
