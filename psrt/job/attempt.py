"""A job as a process of this one: its signals, and how it ended. Knows nothing of MPI.

Whoever starts another attempt after one does so with what it returns.
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
#: Signals that are passed on to it. By SIGUSR1 a batch system asks to write and stop.
_PASSED = (*_ENDING, signal.SIGUSR1)
#: Those that ask a job that can to save first.
_SAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: As which signals they are passed on: MPICH's mpirun would vanish at SIGHUP, and leave its ranks;
#: Open MPI's at SIGQUIT, or would ignore it if a shell has begun to.
_AS = {signal.SIGHUP: signal.SIGTERM, signal.SIGQUIT: signal.SIGTERM}
#: Seconds that a job has to end when it is asked to, as long as Slurm gives one.
_GRACE_S = 30.0
#: Seconds that it has once it is over. Its ranks leave within 3 s; but an mpirun that has lost a
#: host may not end at all.
_OVER_S = 10.0
#: Seconds of one wait for a signal; there is no limit to their number. The end of a launcher is
#: told to any one thread of this process, and between two waits to one that has begun before the
#: signal was blocked, where nobody hears it.
_LONGEST_S = 1.0
#: Longest that it takes to end what a launcher has left behind, in seconds.
_ORPHANS_S = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended."""

    #: The job's own: its exit status, or minus the signal that its launcher died of.
    returncode: int
    #: The signal that it was asked to end by; None if it ended by itself.
    asked: int | None
    seconds: float
    #: Why it was over, as its ranks have told; None if they have not.
    over: End | None = None
    #: Why it was ended from here; None if it was not.
    stalled: str | None = None

    @property
    def killed(self) -> str | None:
        """That the launcher was killed, and not from here, in words; None if it was not.

        >>> Ended(-9, None, 1.0).killed, Ended(-9, 15, 1.0).killed
        ('the launcher of the ranks was killed by signal 9 (SIGKILL)', None)
        """
        if self.returncode >= 0 or self.asked or self.over is not None or self.stalled is not None:
            return None
        return f"the launcher of the ranks {how_it_ended(-self.returncode)}"

    @property
    def status(self) -> int:
        """The exit status that stands for it: 128 + n where signal n ended it.

        What the ranks have told counts for more than what the launcher makes of their ends.

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
    """Passes signals on to a job's process, and sees that it ends when it is to."""

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
        #: The signal that the job was asked to end by, and by which to save first.
        self.asked: int | None = None
        self.saving: int | None = None
        #: Why it was ended from here.
        self.stalled: str | None = None

    @property
    def left_s(self) -> float:
        """Seconds until it is killed."""
        return max(0.0, self._deadline - time.monotonic())

    def take(self, heard: Heard | None) -> None:
        """Look how the job stands, and do what a signal asks for, if one has come."""
        self._look()
        again = heard is not None and heard.number in _ENDING and self.asked is not None
        if again or not self.left_s:
            self._process.kill()
            self._deadline = math.inf
        elif heard is not None and heard.number != signal.SIGCHLD:
            self._pass_on(heard)

    def _look(self) -> None:
        """Set the job a deadline where it is over, or gets on no more."""
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
        saves = self._saves and self.saving is None and not deaf  # else there is nothing to save
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

    It stays in this process's group, so that it has the terminal: Ctrl-C there has reached it
    already. Where this process was started to ignore a signal, as by nohup, it has a group of its
    own, since it would take that for itself. When it was asked to end and has not within
    ``grace_s``, or is asked once more, or is over by what its ranks told, or stalled, and goes on,
    it is killed with what it has started here; if this process is killed, it is asked to end.

    Args:
        words: the launcher's command.
        variables: set beside those of this process.
        parent: hears the ranks; it is closed.
        deaf_s: seconds from its start in which it may lose a signal, as long as no rank is heard:
            asked to end, it is killed.
        grace_s: seconds that it has to end.
        saves: whether it is asked, the first time, to save and stop by itself: then it has a
            process group of its own, which Ctrl-C does not reach.
        reads: whether it has the input of this process; otherwise it has none.
        boxed: which of its streams, ``stdout`` and ``stderr``, have what an mpirun adds when ranks
            end; it is left out.
        verbose: whether it is not.
        stall: called about every second; returns why the job is to be ended, None while it gets on.
        refused: called with the error if this process's stdout had no room for the output.

    Raises:
        ConfigError: if it cannot be started.
    """
    begin = time.monotonic()
    libc = ctypes.CDLL(None)
    # Held back, so that they wait until they are fetched below. SIGCHLD is not ignored then,
    # although that is what it is by default.
    with Signals({*_PASSED, signal.SIGCHLD}) as signals:
        try:
            # What it has started becomes a child of this process when it dies.
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
        from psrt.report.end import EndFile  # needs numpy, and the launcher does not until now

        EndFile(*parent.run).write(text, ended.status, replaces=is_known)


def _why(ended: Ended) -> tuple[str, bool]:
    """Return why an attempt ended, and whether its ranks cannot know better."""
    if ended.over is not None and ended.over.text:
        return ended.over.text, True
    if ended.stalled is not None:
        return ended.stalled, True
    if ended.asked is not None:
        return f"asked to end by {signal.Signals(ended.asked).name}", False
    return ended.killed or "nobody has told why", False


def _end_orphans() -> None:
    """End what a launcher that failed has left here, such as an ssh to a host out of reach."""
    deadline = time.monotonic() + _ORPHANS_S
    while time.monotonic() < deadline and (children := _children()):
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # nobody else has its number before the next line
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def _children() -> list[int]:
    """Return the processes whose parent is this one; none where the kernel does not tell."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def _pending(pid: int) -> set[int]:
    """Return the signals that wait for a process; none where the kernel does not tell."""
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
    # Loaded before the fork: nothing may be after it.
    parent = os.getpid()
    # By this signal a job is asked to save, whatever this process was started to ignore.
    taken = {signal.SIGUSR1} if saves else set()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has died in between
            os._exit(1)
        # A handler of Python's would take a signal, and be gone with it when the launcher begins.
        for number in _PASSED:
            if callable(signal.getsignal(number)) or number in taken:
                signal.signal(number, signal.SIG_DFL)
        # What the terminal sends from here on comes to both processes; what the parent was sent
        # before the fork came to it alone, and is not passed on.
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
            # It has the other end, too: if this process is killed, to write is no error by which it
            # would end before its ranks.
            pass_fds=[read for read, _ in pipes.values()],
        )
    except OSError as error:
        raise ConfigError(f"cannot start {words[0]}: {error.strerror}") from None
    finally:
        for write in streams.values():
            os.close(write)
