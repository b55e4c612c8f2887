"""A job as a child process: its signals, and how it ended. Knows nothing of MPI.

What an attempt returns decides whether the caller starts another one.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from psrt.core.errors import ConfigError, StoppedError
from psrt.faults.parent import Parent
from psrt.faults.roster import how_it_ended
from psrt.faults.watcher import End
from psrt.job.output import Output, may_be_full
from psrt.job.signals import Heard, Signals
from psrt.launch.boxes import Boxes

#: Signals that end a job.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Signals that are passed on to it. By SIGUSR1 a batch system asks to save and stop.
_PASSED = (*_ENDING, signal.SIGUSR1)
#: Those that ask a job to save first, if it can.
_SAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The signals as which these are passed on. At SIGHUP, MPICH's mpirun would die and leave its ranks
#: behind; so would Open MPI's at SIGQUIT, or it would ignore it if a shell does.
_AS = {signal.SIGHUP: signal.SIGTERM, signal.SIGQUIT: signal.SIGTERM}
#: Seconds that a job gets to end when it is asked to, the same as Slurm gives.
_GRACE_S = 30.0
#: Seconds that it gets once it is over. Its ranks leave within 3 s, but an mpirun that has lost a
#: host may not end at all.
_OVER_S = 10.0
#: Seconds of one wait for a signal; waits are repeated. SIGCHLD of a launcher may be delivered to
#: any thread of this process, also to one that started before the signal was blocked, where it is
#: lost.
_LONGEST_S = 1.0
#: The most seconds that it takes to end processes that a launcher has left behind.
_ORPHANS_S = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended."""

    #: The launcher's return code: its exit status, or minus the signal that killed it.
    returncode: int
    #: The signal by which it was asked to end; None if it ended by itself.
    asked: int | None
    seconds: float
    #: Why it ended, as its ranks reported; None if they did not.
    over: End | None = None
    #: Why it was ended from here; None if it was not.
    stalled: str | None = None

    @property
    def killed(self) -> str | None:
        """A text that says the launcher was killed, but not by this process; None if it was not.

        >>> Ended(-9, None, 1.0).killed, Ended(-9, 15, 1.0).killed
        ('the launcher of the ranks was killed by signal 9 (SIGKILL)', None)
        """
        if self.returncode >= 0 or self.asked or self.over is not None or self.stalled is not None:
            return None
        return f"the launcher of the ranks {how_it_ended(-self.returncode)}"

    @property
    def status(self) -> int:
        """The exit status of the attempt: 128 + n if signal n ended it.

        What the ranks reported takes precedence over the launcher's status.

        >>> Ended(3, None, 1.0).status, Ended(-9, None, 1.0).status, Ended(1, 15, 1.0).status
        (3, 137, 143)
        >>> Ended(137, None, 1.0, End(5)).status
        5
        """
        if self.asked is not None and self.returncode != 0:
            return 128 + self.asked
        if self.over is not None:
            return self.over.status
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


class _Watch:
    """Passes signals on to a job's process, and makes sure that it ends when it should."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        parent: Parent,
        alone: bool,
        saves: bool,
        deaf_s: float,
        grace_s: float,
        stall: Callable[[], str | None] | None,
    ) -> None:
        self._process, self._parent, self._stall = process, parent, stall
        self._alone, self._saves = alone, saves
        self._deaf_s, self._grace_s = deaf_s, grace_s
        self._began, self._deadline = time.monotonic(), math.inf
        #: The signal by which the job was asked to end, and the one by which to save first.
        self.asked: int | None = None
        self.saving: int | None = None
        #: Why it was ended from here.
        self.stalled: str | None = None

    @property
    def left_s(self) -> float:
        """Seconds until it is killed."""
        return max(0.0, self._deadline - time.monotonic())

    def take(self, heard: Heard | None) -> None:
        """Check the job's state, and handle a signal, if one has arrived."""
        self._look()
        again = heard is not None and heard.number in _ENDING and self.asked is not None
        if again or not self.left_s:
            self._process.kill()
            self._deadline = math.inf
        elif heard is not None and heard.number != signal.SIGCHLD:
            self._pass_on(heard)

    def _look(self) -> None:
        """Give the job a deadline if it is over, or makes no progress."""
        if self._parent.over is not None:
            if self._parent.is_late and self._deadline == math.inf:
                self._process.terminate()
            self._deadline = min(self._deadline, time.monotonic() + _OVER_S)
        elif self._stall is not None and self.asked is None and self.stalled is None:
            self.stalled = self._stall()
            if self.stalled is not None:
                self._process.terminate()
                self._deadline = time.monotonic() + _OVER_S

    def _pass_on(self, heard: Heard) -> None:
        deaf = self._parent.heard_at is None and time.monotonic() - self._began < self._deaf_s
        saves = self._saves and self.saving is None and not deaf  # else it cannot save
        if saves and heard.number in _SAVING:
            self.saving = heard.number
            self._process.send_signal(signal.SIGUSR1)
            return
        if heard.number in _ENDING:
            self.asked = heard.number
            self._deadline = time.monotonic() + (0.0 if deaf else self._grace_s)
        if self._alone or not heard.from_terminal:
            number = signal.Signals(heard.number)
            self._process.send_signal(_AS.get(number, number))


def attempt(
    words: Sequence[str],
    variables: Mapping[str, str],
    parent: Parent,
    *,
    deaf_s: float = 0.0,
    grace_s: float = _GRACE_S,
    saves: bool = False,
    reads: bool = False,
    boxed: Sequence[str] = (),
    verbose: bool = False,
    stall: Callable[[], str | None] | None = None,
    refused: Callable[[OSError], None] | None = None,
) -> Ended:
    """Run a launcher to its end; signals to this process reach it.

    It stays in this process's group, so that it has the terminal: Ctrl-C reaches it directly. If
    this process was started to ignore a signal, as by nohup, the launcher gets its own group, since
    it would handle that signal. It is killed, with the processes that it has started here, if it is
    still running ``grace_s`` after it was asked to end, or is asked again, or after its ranks
    reported the end, or when stalled. If this process is killed, it is asked to end.

    Args:
        words: the launcher's command.
        variables: set beside those of this process.
        parent: receives the ranks' reports; it is closed.
        deaf_s: seconds from its start in which it may lose a signal while no rank has reported: if
            asked to end then, it is killed.
        grace_s: seconds that it gets to end.
        saves: whether the first request asks it to save and stop by itself: then it has its own
            process group, which Ctrl-C does not reach.
        reads: whether it gets the input of this process; otherwise it has none.
        boxed: the streams, of ``stdout`` and ``stderr``, in which an mpirun adds text when ranks
            end; that text is left out.
        verbose: whether to keep that text.
        stall: called about every second; returns why the job should be ended, None while it makes
            progress.
        refused: called with the error if this process's stdout had no room for the output.

    Raises:
        ConfigError: if it cannot be started.
    """
    begin = time.monotonic()
    libc = ctypes.CDLL(None)
    # Blocked, so that they stay pending until they are fetched below. A blocked SIGCHLD is not
    # discarded, although its default action is to be ignored.
    with Signals({*_PASSED, signal.SIGCHLD}) as signals:
        try:
            # Processes that it has started become children of this process when it dies.
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
            alone = saves or any(signal.getsignal(it) is signal.SIG_IGN for it in _PASSED)
            full = ("stdout",) if refused is not None and may_be_full(1) else ()
            pipes = {name: os.pipe() for name in dict.fromkeys((*boxed, *full))}
            own = {**variables, **parent.variables}
            process = _start(words, own, signals.before, libc, saves, alone, reads, pipes)
            boxes = {name: Boxes(parent.lost, verbose=verbose) for name in boxed}
            outputs = [
                Output(pipes[name][0], number, boxes.get(name))
                for number, name in ((1, "stdout"), (2, "stderr"))
                if name in pipes
            ]
            here = threading.get_ident()
            parent.start(lambda: signal.pthread_kill(here, signal.SIGCHLD))
            watch = _Watch(process, parent, alone, saves, deaf_s, grace_s, stall)
            while process.poll() is None:
                watch.take(signals.wait(min(watch.left_s, _LONGEST_S)))
            asked, stalled = watch.asked, watch.stalled
            for output in outputs:
                output.drain()
            ends_itself = asked is None and stalled is None and process.returncode >= 0
            over = parent.close(blames=ends_itself)
            told = asked is not None or stalled is not None or over is not None
            _close(outputs, told, refused)
            status = process.returncode if over is None else over.status
            if asked is None and status not in (0, StoppedError.exit_status):
                asked = watch.saving  # it could not save
            if over is not None or stalled is not None or process.returncode:
                _end_orphans()
        finally:
            parent.close(blames=False)
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)
    ended = Ended(process.returncode, asked, time.monotonic() - begin, over, stalled)
    _write_down(ended, parent)
    return ended


def _close(
    outputs: Sequence[Output], told: bool, refused: Callable[[OSError], None] | None
) -> None:
    for output in outputs:
        output.close(told=told)
        if refused is not None and output.refused is not None and output.target == 1:
            refused(output.refused)


def _write_down(ended: Ended, parent: Parent) -> None:
    """Write why an attempt ended into its run's folder, if it has one and did not succeed."""
    if parent.run is not None and ended.status:
        text, is_known = _why(ended)
        from psrt.report.end import EndFile  # imports numpy, not needed before

        EndFile(*parent.run).write(text, ended.status, replaces=is_known)


def _why(ended: Ended) -> tuple[str, bool]:
    """Return why an attempt ended, and whether that takes precedence over what ranks recorded."""
    if ended.over is not None and ended.over.text:
        return ended.over.text, True
    if ended.stalled is not None:
        return ended.stalled, True
    if ended.asked is not None:
        return f"asked to end by {signal.Signals(ended.asked).name}", False
    return ended.killed or "no rank reported why", False


def _end_orphans() -> None:
    """End processes that a failed launcher has left here, such as an ssh to an unreachable host."""
    deadline = time.monotonic() + _ORPHANS_S
    while time.monotonic() < deadline and (children := _children()):
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # its number is not reused before the next line reaps it
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def _children() -> list[int]:
    """Return the child processes of this one; empty if the kernel does not tell."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def _pending(pid: int) -> set[int]:
    """Return the signals pending for a process; empty if the kernel does not tell."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as status:
        for line in status:
            if line.startswith(b"ShdPnd:"):
                bits = int(line.split()[1], 16)
                return {number for number in range(1, 65) if bits >> (number - 1) & 1}
    return set()


def _start(
    words: Sequence[str],
    variables: Mapping[str, str],
    mask: Set[signal.Signals | int],
    libc: ctypes.CDLL,
    saves: bool,
    alone: bool,
    reads: bool,
    pipes: Mapping[str, tuple[int, int]],
) -> subprocess.Popen[bytes]:
    # Loaded before the fork: nothing may be imported after it.
    parent = os.getpid()
    # This signal asks a job to save, even if this process was started to ignore it.
    taken = {signal.SIGUSR1} if saves else set()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent has died meanwhile
            os._exit(1)
        # A Python handler would consume a signal, which would be lost when the launcher starts.
        for number in _PASSED:
            if callable(signal.getsignal(number)) or number in taken:
                signal.signal(number, signal.SIG_DFL)
        # From here on the terminal's signals reach both processes. Those that the parent got before
        # the fork reached only it, and are not passed on.
        for waiting in _pending(parent) & set(_ENDING):
            signal.raise_signal(waiting)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    sys.stdout.flush()
    streams = {name: write for name, (_, write) in pipes.items()}
    try:
        return subprocess.Popen(
            list(words),
            env={**os.environ, **variables},
            preexec_fn=prepare,
            process_group=0 if alone else None,
            stdin=None if reads else subprocess.DEVNULL,
            stdout=streams.get("stdout"),
            stderr=streams.get("stderr"),
            # The child has the reading end, too: if this process is killed, a write then gives no
            # error by which the launcher would end before its ranks.
            pass_fds=[read for read, _ in pipes.values()],
        )
    except OSError as error:
        raise ConfigError(f"cannot start {words[0]}: {error.strerror}") from None
    finally:
        for write in streams.values():
            os.close(write)
