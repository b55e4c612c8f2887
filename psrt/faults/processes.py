"""Processes of this host: whether one is at work, how one has ended, and the end of this one."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

#: Place of the exit code among the fields of ``/proc/PID/stat``, counted from the state on.
_EXIT_CODE = 49
#: Places of the time spent as the program and in the kernel, of all threads, in ticks.
_CPU = slice(11, 13)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Sight:
    """What is seen from outside of a process that says nothing itself."""

    #: As the kernel calls it; empty if nobody can look.
    state: str = ""
    #: Seconds of computing so far, of all its threads; those before the first look do not count.
    cpu_s: float = math.inf
    #: When these were last seen to have grown.
    worked_at: float = -math.inf

    def seen(self, state: str, cpu_s: float, now: float) -> None:
        """Note one more look, as ``look`` returns it."""
        if cpu_s > self.cpu_s:
            self.worked_at = now
        self.state, self.cpu_s = state, cpu_s

    def may_work(self, now: float, timeout_s: float) -> bool:
        """Return whether it may be at work without letting its other threads run.

        A process that sleeps is, as long as threads of its compute. If none does for the time-out,
        it waits for something that may never come, such as two threads for each other of which one
        holds the interpreter: that looks the same for ever.
        """
        asleep = self.state == "S"
        return self.state in ("R", "D") or (asleep and now - self.worked_at < timeout_s)


def leave(status: int) -> NoReturn:
    """End this process at once, whatever its main thread is doing."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def look(pid: int) -> tuple[str, float]:
    """Return the state of a process, as ``state_of``, and the seconds that it has computed."""
    fields = _stat(pid)
    return (fields[0], sum(map(int, fields[_CPU])) / _TICKS_PER_S) if fields else ("X", 0.0)


def state_of(pid: int) -> str:
    """Return the state of a process as in ``/proc/PID/stat``; ``X`` if there is none."""
    return look(pid)[0]


def exit_code(pid: int) -> int | None:
    """Return how a process ended, as ``waitpid`` gives it; None if it is not known any more.

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
