"""Shared memory that killed ranks have left on this host; ``python -m`` it on others.

Imports nothing of psrt, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from pathlib import Path

#: Names of what the ranks of either MPI leave in shared memory when they are killed.
_SEGMENT = re.compile(r"(sm_segment|vader_segment|osc_sm|mpich_sh|ucx_shm_posix|psrt)[\w.\-]*")
_SHARED = Path("/dev/shm")


def sweep(since: float, folder: Path = _SHARED) -> int:
    """Delete the segments of shared memory that ranks have left; return their number.

    Args:
        since: when the attempt began, in seconds since the epoch: older ones are others'.
        folder: where they are.

    Only this user's, and only those that no process has mapped any more.
    """
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):  # it has just gone
                about = entry.stat(follow_symlinks=False)
                own = about.st_uid == os.geteuid() and about.st_mtime >= since
                if own and entry.is_file(follow_symlinks=False) and _SEGMENT.fullmatch(entry.name):
                    found.append(Path(entry.path))
    used = _mapped(folder) if found else set()
    swept = 0
    for path in found:
        if str(path) not in used:
            with contextlib.suppress(OSError):
                path.unlink()
                swept += 1
    return swept


def _mapped(folder: Path) -> set[str]:
    """Return the files below a folder that processes have mapped, as far as one may see that."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            for line in maps.read_text(errors="replace").splitlines():
                _, slash, path = line.partition(f"{folder}/")
                if slash:
                    found.add(slash + path)
    return found


if __name__ == "__main__":
    # The clocks of hosts differ, so the age is told.
    sweep(time.time() - float(sys.argv[1]))
