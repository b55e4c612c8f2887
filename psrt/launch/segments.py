"""Deletes shared memory that killed ranks have left on this host; ``python -m`` it on other hosts.

Imports nothing of psrt, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from pathlib import Path

#: Names of the segments that killed ranks of either MPI leave in shared memory.
_SEGMENT = re.compile(r"(sm_segment|vader_segment|osc_sm|mpich_sh|ucx_shm_posix|psrt)[\w.\-]*")
_SHARED = Path("/dev/shm")


def sweep(since: float, folder: Path = _SHARED) -> int:
    """Delete the segments of shared memory that ranks have left; return their number.

    Only segments of this user are deleted, and only those that no process has mapped.

    Args:
        since: when the attempt began, in seconds since the epoch; older segments belong to others.
        folder: where they are.
    """
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):  # deleted in the meantime
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
    """Return the files below a folder that processes have mapped, as far as it is visible."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            for line in maps.read_text(errors="replace").splitlines():
                _, slash, path = line.partition(f"{folder}/")
                if slash:
                    found.add(slash + path)
    return found


if __name__ == "__main__":
    # The clocks of hosts differ, so the argument is an age.
    sweep(time.time() - float(sys.argv[1]))
