"""Lines for the user to paste: how to start what was started without ranks. Starts nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from psrt.launchers.library import is_open_mpi

#: Open MPI starts ranks as root only with both of them set.
_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


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
    found = shutil.which(launcher)
    if found is not None and is_open_mpi(Path(found)):
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
