"""A command as a process: its errors in one line, its signals, and its exit status."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn, TextIO

from psrt.cli.printing import flush, prepare_streams, refused, say
from psrt.core.errors import PsrtError, line_of, plain, status_of
from psrt.launch import started_rank, started_ranks

#: Ctrl-C, the signals by which mpirun and Slurm end ranks, and the one that users let Slurm send
#: some time before (``--signal=USR1@60``). Unhandled, it would end each rank on its own.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_FAILED = 1


def run_command(command: Callable[[], int], name: str) -> int:
    """Run a command and return the exit status of the process.

    Errors that the user can fix, interruptions, a full disk and lack of memory become one line. If
    a launcher started several processes, the first one prints it. Any other exception is a bug and
    propagates.

    Args:
        command: returns its status.
        name: the line's prefix.
    """
    prepare_streams()
    try:
        with _interruptible():
            try:
                status = command()
            except SystemExit as done:  # after argparse has printed a help
                status = done.code if isinstance(done.code, int) else 0
            except RuntimeError as error:
                # Python 3.11 wraps an interruption of ``__set_name__`` like this, as in an import.
                if isinstance(error.__cause__, KeyboardInterrupt):
                    raise error.__cause__ from None
                raise
            flush()
        line = refused()
        if line is None:
            return _left(status)
        print_once(f"{name}: {line}", sys.stderr)
        return status or _FAILED
    except (PsrtError, KeyboardInterrupt, MemoryError, OSError) as error:
        line, status = line_of(error), status_of(error)
        if line is None:
            raise
        print_once(f"{name}: {line}", sys.stderr)
        if isinstance(error, PsrtError):
            # All ranks agreed to raise it, or each found it in the same flags before MPI started.
            # A launcher may kill the others as soon as one fails, so only the process that prints
            # the line fails.
            if error.agreed and started_ranks() > 1:
                _outlive_the_others()
            if error.agreed or started_rank() == 0:
                _tell_parent(status)
            return _left(status) if error.agreed or started_rank() == 0 else 0
    if started_ranks() > 1:
        # The others may wait for this process forever, and MPI_Finalize for them. So exit without
        # it: a launcher that sees a process vanish kills the others.
        sys.stdout.flush()
        os._exit(status)
    return status


def _left(status: int) -> int:
    """Return the status, or exit here if this process must end without MPI_Finalize."""
    vitals = sys.modules.get("psrt.faults.vitals")
    if vitals is not None and vitals.HERE.leaves:
        sys.stdout.flush()
        os._exit(status)
    return status


def _outlive_the_others() -> None:
    """Ignore SIGTERM while this rank ends together with all others, with its own status.

    ``srun --kill-on-bad-exit`` sends it to the other ranks as soon as one has ended, and their 143
    would then become the status of the job.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _tell_parent(status: int) -> None:
    """Report the status to ``psrt launch``: mpirun's may come from ranks that lost this one."""
    from psrt.faults.parent import parent_of_this
    from psrt.faults.watcher import End

    parent = parent_of_this()
    if parent is not None:
        parent.tell(End(status))


def print_once(text: str, stream: TextIO) -> None:
    """Print on the first process of the job."""
    if started_rank() != 0:
        return
    if stream is sys.stdout:
        say(text.rstrip("\n"))
        return
    with contextlib.suppress(OSError):
        print(plain(text.rstrip("\n")), file=stream, flush=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise ``KeyboardInterrupt``, with the signal's number, on every terminating signal.

    Signals that the process ignores from its start stay ignored, such as SIGINT in the background
    of a script. SIGCHLD is the exception: with it ignored, no child could be waited for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = {
        number: signal.signal(number, _interrupt)
        for number in _SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # A second signal kills at once, without waiting for the clean-up.
    for each in _SIGNALS:
        if signal.getsignal(each) is _interrupt:
            signal.signal(each, signal.SIG_DFL)
    # A signal may arrive between the making of a coroutine and its await. Python would warn about
    # that while the stack unwinds, as if there were a bug.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    raise KeyboardInterrupt(number)
