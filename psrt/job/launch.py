"""A job as a process of this one: its signals, and how it ended. Knows nothing of MPI.

``run_job`` is one attempt. Whoever starts another after it, or says who died, does so with what it
returns.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from psrt.errors import ConfigError

#: Signals that end a job.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Signals that are passed on to it. By SIGUSR1 a batch system asks to write and stop.
_PASSED = (*_ENDING, signal.SIGUSR1)
#: As which signals they are passed on: MPICH's mpirun would vanish at SIGHUP, and leave its ranks.
_AS = {signal.SIGHUP: signal.SIGTERM}
#: ``si_code`` of a signal that the terminal sent, to every process in the foreground.
_FROM_TERMINAL = 0x80
#: Seconds that a job has to end when it is asked to, as long as Slurm gives one. An mpirun that has
#: lost a host may not end at all.
_GRACE_S = 30.0
#: Seconds of one wait for a signal; there is no limit to their number.
_LONGEST_S = 3600.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended."""

    #: The job's own: its exit status, or minus the signal that its launcher died of.
    returncode: int
    #: The signal that it was asked to end by; None if it ended by itself.
    asked: int | None
    seconds: float

    @property
    def status(self) -> int:
        """The exit status that stands for it: 128 + n where signal n ended it.

        >>> Ended(3, None, 1.0).status, Ended(-9, None, 1.0).status, Ended(1, 15, 1.0).status
        (3, 137, 143)
        """
        if self.asked is not None and self.returncode != 0:
            return 128 + self.asked
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


def run_job(
    words: Sequence[str], variables: Mapping[str, str], *, grace_s: float = _GRACE_S
) -> Ended:
    """Run a launcher to its end; signals to this process reach it.

    It stays in this process's group, so that it has the terminal: Ctrl-C there has reached it
    already. When it was asked to end and has not within ``grace_s``, or is asked once more, it is
    killed; if this process is killed, it is asked to end.

    Args:
        words: the launcher's command.
        variables: set beside those of this process.
        grace_s: seconds that it has to end.

    Raises:
        ConfigError: if it cannot be started.
    """
    begin = time.monotonic()
    watched = {*_PASSED, signal.SIGCHLD}
    # Blocked, they wait until they are fetched below, with who sent them. A blocked SIGCHLD is not
    # ignored, although that is what it is by default.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        process = _start(words, {**os.environ, **variables}, before)
        asked: int | None = None
        deadline = math.inf
        while process.poll() is None:
            left = min(max(0.0, deadline - time.monotonic()), _LONGEST_S)
            info = signal.sigtimedwait(watched, left)
            again = info is not None and info.si_signo in _ENDING and asked is not None
            if again or time.monotonic() >= deadline:
                process.kill()
                deadline = math.inf
            elif info is not None and info.si_signo != signal.SIGCHLD:
                if info.si_signo in _ENDING:
                    asked, deadline = info.si_signo, time.monotonic() + grace_s
                if info.si_code != _FROM_TERMINAL:
                    number = signal.Signals(info.si_signo)
                    process.send_signal(_AS.get(number, number))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Ended(process.returncode, asked, time.monotonic() - begin)


def _start(
    words: Sequence[str], environment: Mapping[str, str], mask: Set[signal.Signals | int]
) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)  # before the fork: nothing may be loaded after it
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has died in between
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    sys.stdout.flush()
    try:
        return subprocess.Popen(list(words), env=dict(environment), preexec_fn=prepare)
    except OSError as error:
        raise ConfigError(f"cannot start {words[0]}: {error.strerror}") from None
