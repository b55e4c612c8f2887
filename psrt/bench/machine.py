"""Names the machine that figures were read on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import numpy as np


def machine() -> str:
    """Return processor, cores, Python, numpy and, where it is in use, the MPI library."""
    parts = [
        f"{len(os.sched_getaffinity(0))} cores of {_processor()}",
        f"Python {platform.python_version()}",
        f"numpy {np.__version__}",
    ]
    if "mpi4py.MPI" in sys.modules:
        from psrt.job.mpi import library_name

        parts.append(library_name())
    return ", ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
