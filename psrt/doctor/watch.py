"""An end for everything, also for what never comes back from MPI. Knows nothing of MPI."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import NoReturn

#: Seconds beyond the time of a step: a wait that has an end of its own knows more and speaks first,
#: then rank 0.
_GRACE_S, _AFTER_FIRST_S = 2.0, 4.0
#: What reaches every process of a job, and is for those that work.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Watch:
    """Kills this process, after a line that says in which step, when a step takes too long.

    A process of its own watches, since MPI_Init keeps the lock of the interpreter, and MPI_Finalize
    comes when there is no interpreter any more. It ends with this one.
    """

    def __init__(self, timeout_s: float, *, first: bool) -> None:
        """Begin with the first step, in which MPI is started: it must not have been before.

        Args:
            timeout_s: seconds that each step may take.
            first: whether this process is the one that speaks.
        """
        self._timeout_s = timeout_s
        self._grace_s = _GRACE_S if first else _AFTER_FIRST_S
        read, self._write = os.pipe()
        parent = os.getpid()
        self._guard = os.fork()
        if self._guard == 0:
            os.close(self._write)
            _watch(read, parent)
        os.close(read)
        self.step("MPI to start on every rank")

    def step(self, waiting_for: str, times: int = 1) -> None:
        """Begin a step, which has the whole time again, or that many times."""
        limit_s = self._timeout_s * times
        line = f"{limit_s + self._grace_s} waited {limit_s:g} s for {waiting_for}\n"
        with contextlib.suppress(BrokenPipeError):  # whoever has killed the watch, kills this, too
            os.write(self._write, line.encode(errors="backslashreplace"))

    def close(self) -> None:
        """Watch no longer."""
        os.close(self._write)
        os.waitpid(self._guard, 0)


def _watch(pipe: int, parent: int) -> NoReturn:
    """Wait for the steps of a process, and kill it when one takes too long."""
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        deadline, text, unread = time.monotonic() + 60, "", b""
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([pipe], [], [], left)[0]:
                os.write(2, f"psrt: error: {text}\n".encode(errors="backslashreplace"))
                os.kill(parent, signal.SIGKILL)
                break
            got = os.read(pipe, 1 << 16)
            if not got:  # it has ended
                break
            *lines, unread = (unread + got).split(b"\n")
            for line in lines:
                limit, _, text = line.decode().partition(" ")
                deadline = time.monotonic() + float(limit)
    finally:
        os._exit(0)
