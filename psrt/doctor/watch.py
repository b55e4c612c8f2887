"""An end for everything, also for what never comes back from MPI. Knows nothing of MPI."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import NoReturn

#: Seconds in addition to the time of a step: a wait with its own deadline knows more and prints
#: first, then rank 0.
_GRACE_S, _AFTER_FIRST_S = 2.0, 4.0
#: Signals that reach every process of a job, but are meant for those that work.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Watch:
    """Kills this process when a step takes too long, after a line that names the step.

    A separate process watches, because MPI_Init holds the interpreter's lock, and MPI_Finalize runs
    when the interpreter is gone. It ends together with this one.
    """

    def __init__(self, timeout_s: float, *, first: bool) -> None:
        """Begin with the first step, in which MPI starts; it must not have started before.

        Args:
            timeout_s: seconds that each step may take.
            first: whether this process is the one that prints.
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
        """Begin a step, with the whole time again, or a multiple of it."""
        limit_s = self._timeout_s * times
        line = f"{limit_s + self._grace_s} waited {limit_s:g} s for {waiting_for}\n"
        with contextlib.suppress(BrokenPipeError):  # the watch was killed, and so will this be
            os.write(self._write, line.encode(errors="backslashreplace"))

    def close(self) -> None:
        """Stop watching."""
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
