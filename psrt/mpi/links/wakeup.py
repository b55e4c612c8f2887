"""Lets a rank sleep in the kernel until a peer on its host has a message for it.

Polling with short sleeps either burns the core that another rank computes on or answers late. So a
rank that is about to sleep raises a flag in shared memory. A peer that sends it something and sees
the flag writes a byte into the rank's named pipe, and the kernel wakes it at once. If pipes cannot
be made, such as without a temporary folder, sleeps are just short.

The sleeper polls once more between raising its flag and sleeping. A peer stores its count and then
loads the flag, but without a full fence in between: it may load the old flag while the sleeper has
loaded the old count. Such a lost wake-up costs the sleep's bound, a millisecond.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

from psrt.mpi.agreement import bcast_text
from psrt.mpi.links.shared_memory import NodeMemory


class Wakeup:
    """One rank's pipe, and the wakers of its peers on the same host. Collective to make."""

    def __init__(self, comm: MPI.Comm, memory: NodeMemory) -> None:
        """Make this rank's pipe and open the peers'.

        Args:
            comm: the ranks of this host.
            memory: holds each rank's flag.
        """
        self._flag = memory.flag(comm.rank)
        self._fence = memory.fence
        self._memory = memory
        self._own, self._wakers = _pipes(comm)

    @property
    def works(self) -> bool:
        """Whether a sleep ends early when a peer wakes it."""
        return self._own >= 0

    def raise_flag(self) -> None:
        """Publish that this rank is about to sleep."""
        self._flag[0] = 1
        # A full fence, even on x86: it orders this store before the loads of the counts in the last
        # poll. Otherwise those could overtake it, and a count could be missed that a peer stored
        # meanwhile without seeing the flag.
        self._fence()

    def lower_flag(self) -> None:
        """Publish that this rank is awake."""
        # No fence: a peer that still sees the flag writes an unneeded byte, which ends a later
        # sleep early and does no other harm.
        self._flag[0] = 0

    def sleep(self, seconds: float) -> bool:
        """Sleep for at most ``seconds``; return whether a peer ended the sleep."""
        if self._own < 0:
            time.sleep(seconds)
            return False
        if not select.select([self._own], [], [], seconds)[0]:
            return False
        # Read all bytes so far, of any number of peers: the next poll covers all of them.
        os.read(self._own, 4096)
        return True

    def waker(self, peer: int) -> tuple[memoryview, Callable[[], None]]:
        """Return the flag of local rank ``peer``, and the function that wakes it."""
        if not self.works:
            return memoryview(bytes(8)).cast("q"), lambda: None
        pipe = self._wakers[peer]

        def wake() -> None:
            # A full pipe: the peer has been woken already. A broken pipe: it has ended.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(pipe, b"!")

        return self._memory.flag(peer), wake

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self._own, *self._wakers):
            if pipe >= 0:
                os.close(pipe)
        self._own, self._wakers = -1, []
        self._flag = memoryview(bytearray(8)).cast("q")  # drops the view of the window


def _pipes(comm: MPI.Comm) -> tuple[int, list[int]]:
    """Return the reading end of this rank's pipe and the writing ends of all; -1, [] without pipes.

    The names are deleted before this returns, so nothing is left behind however the job ends.
    """
    folder = Path(bcast_text(comm, _folder() if comm.rank == 0 else ""))
    own = -1
    # The reading end is opened first, non-blocking: a writer can be opened only once a reader is.
    with contextlib.suppress(OSError):
        os.mkfifo(folder / str(comm.rank), 0o600)
        own = os.open(folder / str(comm.rank), os.O_RDONLY | os.O_NONBLOCK)
    everyone = np.array([own >= 0], np.int64)
    comm.Allreduce(MPI.IN_PLACE, everyone, MPI.MIN)
    wakers: list[int] = []
    if everyone[0]:
        wakers = [os.open(folder / str(r), os.O_WRONLY | os.O_NONBLOCK) for r in range(comm.size)]
    # Open descriptors outlive the names, so the folder can go once all ranks have opened them.
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    if not everyone[0] and own >= 0:
        os.close(own)
    return (own if everyone[0] else -1), wakers


def _folder() -> str:
    try:
        return tempfile.mkdtemp(prefix="psrt-")
    except OSError:
        return os.devnull  # no folder: no pipe can be made in it
