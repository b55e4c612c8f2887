"""Starts MPI with psrt's settings, and checks that it is the launcher's MPI.

``import psrt`` has already set the environment variables that Open MPI reads.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import mpi4py

from psrt.core.errors import ConfigError
from psrt.faults.parent import parent_of_this
from psrt.launch import mismatch, started_rank
from psrt.launch.environment import start_limit_s
from psrt.launch.library import INSTALL_ONE

#: Seconds that processes which MPI did not join give the first one to print its line.
_AFTER_FIRST_S = 1.0


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """End this process, with a traceback of its current place, if the block takes too long.

    By a C thread: MPI holds the interpreter's lock while it waits for a rank that died.
    """
    faulthandler.dump_traceback_later(start_limit_s(), exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _ends_at_once() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end this process in C while MPI starts.

    Python would handle them only after MPI has started, which may be never: MPI waits for all
    ranks, and the same signal may have ended some before they got here. MPICH's mpirun does not end
    the others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {it: handler for it in numbers if callable(handler := signal.getsignal(it))}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# psrt calls MPI from one thread at a time: that of the program, or one of torch's in which backward
# runs for a GPU while the program waits. Support for several at once would cost time at each call.
mpi4py.rc.thread_level = "serialized"

#: Whether MPI is started here, and so ended here, rather than by the user's own program.
_is_ours = "mpi4py.MPI" not in sys.modules

# mpi4py warns on each rank about variables of another MPI; ``world`` says more, and once.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "suspicious MPI execution environment")
    try:
        with contextlib.ExitStack() as starting:
            if _is_ours:
                starting.enter_context(_in_time())
                starting.enter_context(_ends_at_once())
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"no MPI library can be loaded ({' '.join(str(error).split())}): {INSTALL_ONE}"
        ) from error


def _finalize(process: int) -> None:
    """Finalize MPI; mpi4py would do so a little later, and block for ever if a rank is gone."""
    if os.getpid() != process or _abort_status:
        return
    parent = parent_of_this()
    if parent is not None:
        parent.ends()
    if _ends_mpi and MPI.Is_initialized() and not MPI.Is_finalized():
        with _in_time():
            MPI.Finalize()


#: The status with which mpi4py will abort the job when this process ends, as ``python -m mpi4py``
#: requests for a program that fails; 0 if it will not. Finalizing MPI first would wait for ranks
#: that wait for this one.
_abort_status = 0


def abort_status() -> int:
    """Return this status, as far as it is known."""
    return _abort_status


def _noting_aborts(set_status: Callable[[int], None]) -> Callable[[int], None]:
    def note(status: int) -> None:
        global _abort_status
        _abort_status = status
        set_status(status)

    return note


#: Whether MPI is ended here.
_ends_mpi = _is_ours and mpi4py.rc.finalize is not False
atexit.register(_finalize, os.getpid())
if _ends_mpi:
    # mpi4py has no function that returns it.
    MPI._set_abort_status = _noting_aborts(MPI._set_abort_status)  # type: ignore[assignment]


def world() -> MPI.Comm:
    """Return all ranks of the job.

    Raises:
        ConfigError: if the launcher has started several processes but MPI sees only this one; on
            all of them, on the first one first: the launcher may end the others when one fails.
    """
    comm = MPI.COMM_WORLD
    wrong = mismatch(comm.size, MPI.get_vendor()[0], _mpirun())
    if wrong is not None:
        time.sleep(0 if started_rank() == 0 else _AFTER_FIRST_S)
        error = ConfigError(wrong)
        error.agreed = True
        raise error
    return comm


def _mpirun() -> str:
    """Return the launcher of this MPI: the one of this Python environment, if it has one."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else f"the mpirun of {MPI.get_vendor()[0]}"
