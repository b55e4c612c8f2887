"""Command lines for the user to paste, which start ranks. Starts nothing itself."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def has_mpirun() -> bool:
    """Return whether there is an mpirun, next to this Python or on the PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return beside.exists() or shutil.which("mpirun") is not None


def launch_line(ranks: int | None, what: str) -> str:
    """Return a shell line that starts ranks, ready to paste.

    Args:
        ranks: their number; None leaves it to ``psrt launch``.
        what: a command of psrt, or a script, with its flags, quoted for a shell.
    """
    beside = Path(sys.executable).parent / "psrt"
    psrt = _called(beside) if beside.exists() else f"{_called(Path(sys.executable))} -m psrt"
    return f"{psrt} launch {'' if ranks is None else f'-n {ranks} '}{what}"


def again(ranks: int) -> str:
    """Return a shell line that starts this process's command on the given number of ranks."""
    script, *rest = sys.argv or [""]
    path = Path(script)
    is_module = path.name == "__main__.py"
    words = ["-m", path.parent.name] if is_module else [script]
    if path.name == "psrt" or words == ["-m", "psrt"]:
        words = []
    return launch_line(ranks, shlex.join([*words, *rest]))


def _called(path: Path) -> str:
    """Return how to call a program from here: by its name if it is the first on the PATH."""
    if shutil.which(path.name) == str(path):
        return path.name
    near = os.path.relpath(path)
    return shlex.quote(str(path) if near.startswith("..") else near)
