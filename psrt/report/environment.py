"""When, where and by what a run was made. Asks the machine, not MPI; of variables only BLAS's."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from psrt.core.version import __version__

#: What may touch a run's numbers or its speed, as a person reads it.
WORDS = {
    "psrt": "psrt", "python": "Python", "numpy": "numpy", "blas": "BLAS",
    "blas_variables": "variables of BLAS", "mpi": "MPI", "host": "host", "processor": "processor",
    "commit": "git commit",
}  # fmt: skip
#: How OpenBLAS is asked for its kernel: numpy's own, and others; with wide numbers, and without.
_CORE_NAMES = [
    f"{prefix}openblas_get_corename{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")
]
_VARIABLES = (
    "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
)  # fmt: skip
#: Seconds that git may take; more is a file system that is away.
_GIT_S = 5.0


def environment(mpi: str) -> dict[str, Any]:
    """Return the environment of a run that starts now, without its end; see ``ended``.

    Args:
        mpi: name and version of the MPI library; empty without one.
    """
    return {
        "started": _now(), "ended": None, "argv": [*sys.argv], "folder": os.getcwd(),
        "psrt": __version__, "python": platform.python_version(), "numpy": np.__version__,
        "blas": _blas(), "mpi": mpi, "host": platform.node(), "processor": processor(),
        "blas_variables": {it: os.environ[it] for it in _VARIABLES if it in os.environ},
        "commit": _commit(os.getcwd()),
    }  # fmt: skip


def ended(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment with its end, which is now."""
    return {**found, "ended": _now()}


def environment_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what an environment says, for a person: names and values."""
    for name, words in {"started": "started", "ended": "ended", "argv": "command", **WORDS}.items():
        if found.get(name):
            yield words, _text(found[name])


def environment_differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each thing that differs, where both are known.

    >>> environment_differences({"numpy": "2.1", "host": "a"}, {"numpy": "2.0", "host": "a"})
    ['numpy 2.1 instead of 2.0']
    """
    return [
        f"{words} {_text(now[name])} instead of {_text(then[name])}"
        for name, words in WORDS.items()
        if now.get(name, then.get(name)) != then.get(name, now.get(name))
    ]


def processor() -> str:
    """Return the model of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _text(value: Any) -> str:
    """Return a value on one line; files may be untrusted, so nothing controls the terminal."""
    if isinstance(value, Mapping):
        value = [f"{name}={it}" for name, it in value.items()]
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "".join(it if it.isprintable() else "?" for it in text) or "none"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@functools.cache
def _blas() -> str:
    """Return name and version of numpy's BLAS, and the kernel that it chose for the processor."""
    found: Any = np.show_config(mode="dicts")
    built = found.get("Build Dependencies", {}).get("blas", {})
    parts = [str(built.get("name", "unknown")), str(built.get("version", ""))]
    return " ".join(filter(None, [*parts, _kernel()]))


def _kernel() -> str:
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ""
    for path in dict.fromkeys(line.split(maxsplit=5)[-1] for line in maps if "openblas" in line):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in _CORE_NAMES:
            if asked := getattr(library, name, None):
                asked.restype = ctypes.c_char_p
                return str(asked().decode(errors="replace"))
    return ""


@functools.cache
def _commit(folder: str) -> str:
    """Return the git commit of a folder, and whether files differ from it; empty without one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit} with changes" if changed else commit


def _git(folder: str, *words: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", folder, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_GIT_S, check=True, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ""
