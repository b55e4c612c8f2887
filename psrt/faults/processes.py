"""Processes of this host: what state one is in, how one has ended, and the end of this one."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

#: Place of the exit code among the fields of ``/proc/PID/stat``, counted from the state on.
_EXIT_CODE = 49


def leave(status: int) -> NoReturn:
    """End this process at once, whatever its main thread is doing."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def state_of(pid: int) -> str:
    """Return the state of a process as in ``/proc/PID/stat``; ``X`` if there is none."""
    fields = _stat(pid)
    return fields[0] if fields else "X"


def exit_code(pid: int) -> int | None:
    """Return how a process ended, as ``waitpid`` gives it; None if it cannot be told any more.

    It can until its parent, the launcher, has asked for it: some milliseconds.
    """
    deadline = time.monotonic() + 0.01
    # The code is there from the beginning of the end on, before sockets are closed.
    while fields := _stat(pid):
        code = int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else 0
        if code or fields[0] in "ZX":
            return code
        if time.monotonic() > deadline:
            break
        time.sleep(2e-4)
    return None


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            # The name of the program is in parentheses, and may have any in it.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def pidfds(processes: Mapping[int, int]) -> dict[int, int]:
    """Return the rank of each process by a descriptor that is readable once it has ended."""
    found = {}
    for rank, pid in processes.items():
        with contextlib.suppress(OSError, AttributeError):
            found[os.pidfd_open(pid)] = rank
    return found
