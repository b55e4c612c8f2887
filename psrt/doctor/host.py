"""What on this host would keep MPI from starting; ``python -m`` it on other hosts, over ssh.

Imports only the standard library, since anything else may be missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator

#: Fewest bytes of a job's files in the temporary folder.
_TEMPORARY = 1 << 16
_SHARED = "/dev/shm"
#: Bytes of it that several ranks need to start: Open MPI's for any number of ranks, MPICH's, and
#: what each rank of MPICH adds, even a single one.
_OPEN_MPI, _MPICH, _MPICH_RANK = 20 << 20, 6 << 20, 6 << 20
_MODULES = ("numpy", "mpi4py", "psrt")

_SAME = "install the same environment at the same path on every host"


def look(ranks: int, *, is_open_mpi: bool) -> list[tuple[str, str]]:
    """Return what is wrong on this host, each with its cure.

    Args:
        ranks: number of ranks that will share it.
        is_open_mpi: whether they run on Open MPI.
    """
    return [*_modules(), *_temporary(), *_shared(ranks, is_open_mpi)]


def _modules() -> Iterator[tuple[str, str]]:
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        yield f"{sys.executable} has no {', '.join(missing)}", _SAME


def _temporary() -> Iterator[tuple[str, str]]:
    # Not tempfile.gettempdir(), which finds another one where this is of no use; MPI does not.
    given = next((name for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)), "")
    folder = os.environ.get(given) or "/tmp"
    there = folder
    while not os.path.exists(there) and there != os.path.dirname(there):  # MPI makes it
        there = os.path.dirname(there)
    error = refuses(there or ".", _TEMPORARY)
    if error:
        name = f"{folder} ({given})" if given else folder
        yield (
            f"no file can be written to the folder for temporary files, {name}: {error}",
            "make room there, or export TMPDIR=DIR with a folder that is writable on every host",
        )


def _shared(ranks: int, is_open_mpi: bool) -> Iterator[tuple[str, str]]:
    needed = _MPICH + _MPICH_RANK * ranks
    if is_open_mpi:
        needed = _OPEN_MPI if ranks > 1 else 0
    if not needed:
        return
    try:
        it = os.statvfs(_SHARED)
    except OSError as error:
        yield f"there is no {_SHARED}: {error.strerror}", f"mount -t tmpfs tmpfs {_SHARED}"
        return
    free, whole = it.f_bavail * it.f_frsize, it.f_blocks * it.f_frsize
    refused = refuses(_SHARED, 1)
    if free >= needed and refused:
        yield f"no file can be written to {_SHARED}: {refused}", f"chmod 1777 {_SHARED}, as root"
    elif free < needed:
        yield (
            f"{_SHARED} has {free / 1024:,.0f} KiB free of {whole / 1024:,.0f} KiB, and MPI needs "
            f"{needed >> 20} MiB to start {ranks} {'rank' if ranks == 1 else 'ranks'}",
            f"delete what killed jobs have left in {_SHARED}, or enlarge it: mount -o "
            f"remount,size=8g {_SHARED}; docker run --shm-size=4g",
        )


def refuses(folder: str, nbytes: int) -> str:
    """Return why a file of that size cannot be written to a folder; empty if it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(nbytes))
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(look(int(sys.argv[1]), is_open_mpi=sys.argv[2] == "openmpi")))
