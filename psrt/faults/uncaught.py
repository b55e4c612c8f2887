"""The end of a rank by an error that its program does not catch, and of the job with it.

One line and its status for errors of psrt's that the user can act on; what is a bug has a
traceback.
"""

from __future__ import annotations

import contextlib
import sys
import time

from psrt.core.errors import (
    ConfigError,
    DifferentCallsError,
    LeftError,
    ProtocolError,
    PsrtError,
    line_of,
    status_of,
    users_place,
)
from psrt.faults.parent import parent_of_this
from psrt.faults.watcher import End
from psrt.launch.environment import started_rank

#: Seconds that other ranks leave to the first one, which then ends them: most such errors are in
#: what all ranks do.
_AFTER_FIRST_S = 1.0


def end(error: PsrtError) -> None:
    """End this rank and with it the job; return if the error needs a traceback.

    What all ranks have agreed on they end by themselves, save that they are no job at all.
    """
    is_users = isinstance(error, ConfigError | DifferentCallsError)
    is_anothers = isinstance(error, LeftError)
    if not (is_users or is_anothers) and (error.agreed or isinstance(error, ProtocolError)):
        return
    rank, status = started_rank(), status_of(error)
    place = ", ".join(filter(None, [users_place(error), f"on rank {rank}"]))
    text = f"psrt: {line_of(error)} ({place})\n"
    # Others may only say what they make of the end of a rank that shows a traceback.
    parent = parent_of_this() if is_users else None
    if parent is None or not parent.tell(End(status, text)):
        time.sleep(_AFTER_FIRST_S if rank and not is_anothers else 0.0)
        # torch.distributed replaces sys.stderr by a buffer while it calls this, and drops that
        # buffer if this does not return.
        with contextlib.suppress(OSError, ValueError):
            print(text, end="", file=sys.__stderr__, flush=True)
        time.sleep(_AFTER_FIRST_S if is_anothers else 0.0)  # for the traceback of the one that left
    _set_abort_status(0 if error.agreed else status)
    raise SystemExit(status)


def end_others(error: BaseException) -> None:
    """Have the end of this process end the job, as ``python -m mpi4py`` does.

    The others may wait for this rank, in set-up where nobody watches over them yet, and the end of
    MPI here would wait for them.
    """
    if not getattr(error, "agreed", False):
        _set_abort_status(status_of(error))


def _set_abort_status(status: int) -> None:
    if (mpi := sys.modules.get("mpi4py.MPI")) is not None:
        mpi._set_abort_status(status)
