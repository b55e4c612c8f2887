"""Starts MPI the way psrt wants it, and sees that it is the MPI that the launcher means.

What Open MPI reads from its environment is set by ``import psrt``, which comes before any of this.
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

#: Seconds that processes which MPI keeps apart leave to the first one, for its line.
_AFTER_FIRST_S = 1.0


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """End this process, with the traceback of where it is, if the block takes too long.

    By a thread in C: MPI holds the interpreter's lock while it waits for a rank that died.
    """
    faulthandler.dump_traceback_later(start_limit_s(), exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _ends_at_once() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end this process in C, as MPI starts.

    Python would answer once MPI has started, which may be never: it waits for all ranks, and the
    same signal has ended those that were not here yet. MPICH's mpirun does not end the others.
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


# psrt calls MPI from one thread, and locks it never needs cost time at each call.
mpi4py.rc.thread_level = "funneled"

#: Whether MPI is started, and so ended, here and not by the user's own program.
_is_ours = "mpi4py.MPI" not in sys.modules

# mpi4py warns, on each rank, of variables of another MPI: ``world`` says more, and once.
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
    """End MPI; mpi4py would, a little later, but for ever if a rank is gone."""
    if os.getpid() != process or _abort_status:
        return
    parent = parent_of_this()
    if parent is not None:
        parent.ends()
    if _ends_mpi and MPI.Is_initialized() and not MPI.Is_finalized():
        with _in_time():
            MPI.Finalize()


#: The status with which mpi4py will end the job when this process ends, as ``python -m mpi4py`` has
#: it do for a program that fails: to end MPI first would be to wait for ranks that wait for this
#: one. 0 if it will not.
_abort_status = 0


def abort_status() -> int:
    """Return that status, as far as it is known."""
    return _abort_status


def _noting_aborts(set_status: Callable[[int], None]) -> Callable[[int], None]:
    def note(status: int) -> None:
        global _abort_status
        _abort_status = status
        set_status(status)

    return note


#: Whether it is ended here.
_ends_mpi = _is_ours and mpi4py.rc.finalize is not False
atexit.register(_finalize, os.getpid())
if _ends_mpi:
    # There is no way to ask for it.
    MPI._set_abort_status = _noting_aborts(MPI._set_abort_status)  # type: ignore[assignment]


def world() -> MPI.Comm:
    """Return all ranks of the job.

    Raises:
        ConfigError: if the launcher has started several, and MPI knows of this one only; on all of
            them, the first one first: the launcher may end the others with whoever fails.
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
    """Return what the launcher of this MPI is called: that of this environment, if it has one."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else f"the mpirun of {MPI.get_vendor()[0]}"
