"""Shared by the scripts here: output on one rank only, errors in one line with an exit status."""

from __future__ import annotations

import contextlib
import io
import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from psrt.cli.printing import say as say
from psrt.cli.process import run_command
from psrt.core.errors import ConfigError
from psrt.launch import launched
from psrt.report.figure import check_installed

if TYPE_CHECKING:
    from mpi4py import MPI

#: The whole help of most flags.
DEFAULT = "default: %(default)s"


def run_script(main: Callable[[Sequence[str]], None]) -> int:
    """Call ``main`` with the words of the command line; return the exit status.

    Errors that the user can fix are printed as one line, as ``psrt`` does it: see
    ``psrt.cli.process``. Under mpirun every rank runs the same script, and only the output of rank
    0 is shown, so that a script may simply print.
    """
    return run_command(lambda: _heard(main), Path(sys.argv[0]).name)


def _heard(main: Callable[[Sequence[str]], None]) -> int:
    """Call ``main``; show only what rank 0 prints."""
    comm = ranks_of_job()
    heard = comm is None or comm.rank == 0
    with contextlib.nullcontext() if heard else contextlib.redirect_stdout(io.StringIO()):
        main(sys.argv[1:])
    return 0


def ranks_of_job() -> MPI.Comm | None:
    """Return all ranks that mpirun started; None without mpirun."""
    if not launched():
        return None
    from psrt.mpi.start import world

    return world()


def refuse_mpirun() -> None:
    """Refuse to be one of several ranks, in a study whose workers are in virtual time.

    Raises:
        ConfigError: if mpirun started others.
    """
    comm = ranks_of_job()
    if comm is not None and comm.size > 1:
        raise ConfigError("the study is one process in virtual time: start it without mpirun")


def make_folder(path: Path) -> None:
    """Make a folder for results unless it is there.

    Raises:
        ConfigError: if it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {path}: {error.strerror}") from error


def can_plot() -> bool:
    """Return whether plots can be drawn; if not, say so before the long work, not after it."""
    try:
        check_installed()
    except ConfigError as error:
        say(f"no plot: {error}")
        return False
    return True


def names(text: str) -> list[str]:
    """Split at the commas: the type of a flag."""
    return text.split(",")


def numbers(text: str) -> list[int]:
    """Return whole numbers of at least 1, separated by commas: the type of a flag."""
    return [number(part) for part in text.split(",")]


def number(text: str) -> int:
    """Return a whole number of at least 1: the type of a flag."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def share(text: str) -> float:
    """Return a number from 0 to 1: the type of a flag."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ArgumentTypeError(f"must be from 0 to 1, got {text!r}")
    return value


def rates(text: str) -> list[float]:
    """Return numbers above 0, separated by commas: the type of a flag."""
    found = []
    for part in text.split(","):
        try:
            found.append(float(part))
        except ValueError:
            found.append(0.0)
        if not 0 < found[-1] < math.inf:
            raise ArgumentTypeError(f"must be a number above 0, got {part!r}")
    return found
