"""Deadlines for set-up and close, where MPI has only blocking calls."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from mpi4py import MPI

from psrt.core.errors import JobOverError
from psrt.faults.processes import leave
from psrt.faults.vitals import never
from psrt.transport.backoff import Backoff

#: Seconds that these may take on a busy machine, even if the deadline of a call is shorter.
_LEAST_S = 20.0


def meet(
    comm: MPI.Comm,
    timeout_s: float,
    waiting_for: str,
    busy_until: Callable[[], float] = never,
) -> None:
    """Wait until every rank is here; collective.

    Args:
        comm: the ranks.
        timeout_s: the deadline; 20 s if that is less.
        waiting_for: see ``Backoff``.
        busy_until: see ``Backoff``.

    Raises:
        TransportError: if a rank is missing at the deadline.
    """
    request = comm.Ibarrier()
    backoff = Backoff(
        oversubscribed=True, timeout_s=max(timeout_s, _LEAST_S), busy_until=busy_until
    )
    backoff.wait(request.Test, lambda: waiting_for)


@contextlib.contextmanager
def in_time(rank: int, timeout_s: float, doing: str) -> Iterator[None]:
    """End this process with one line if the block takes too long, wherever it is.

    Args:
        rank: of this process.
        timeout_s: of waits inside the block, which raise first.
        doing: what the block does, in words that follow "rank N".
    """
    seconds = timeout_s + _LEAST_S

    def end() -> None:
        print(
            f"psrt: error: rank {rank} {doing}: no answer within {seconds:g} s (timeout_s)",
            file=sys.stderr,
            flush=True,
        )
        leave(JobOverError.LATE)

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
