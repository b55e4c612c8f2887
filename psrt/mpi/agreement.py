"""How the ranks of a job agree on an error, and how one rank's failure ends them all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import termios
import time
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn, TextIO

import numpy as np
from mpi4py import MPI

from psrt.errors import (
    ConfigError,
    DivergedError,
    OutputError,
    ProtocolError,
    PsrtError,
    ReplayError,
    TransportError,
    line_of,
    status_of,
)
from psrt.mpi.hosts import Layout, split_hosts
from psrt.mpi.links.shared_memory import NodeMemory

#: Seconds that a failed rank waits for a lower rank of its host to have failed, too.
_GRACE_S = 0.1
#: Seconds that a failed rank gives the reporting one to end the job.
_PATIENCE_S = 3.0
#: How long the launcher is given to read what a failed rank says. It may see the abort first and
#: then never read the rest.
_READ_S = 1.0
#: What an error of another rank is raised as here.
_KINDS = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        DivergedError,
        OutputError,
        ReplayError,
        ProtocolError,
        TransportError,
        PsrtError,
    )
}


@contextlib.contextmanager
def raise_on_all(comm: MPI.Comm) -> Iterator[None]:
    """Let all ranks leave this block the same way; collective.

    If the block raises a ``PsrtError`` on any rank, every rank raises that of the lowest such
    rank, marked ``agreed``. Communication inside the block must not fail on some ranks only.
    """
    mine: PsrtError | None = None
    try:
        yield
    except PsrtError as error:
        mine = error
    failed = np.array([comm.rank if mine is not None else comm.size], np.int64)
    comm.Allreduce(MPI.IN_PLACE, failed, MPI.MIN)
    if failed[0] == comm.size:
        return
    if comm.rank == failed[0]:
        assert mine is not None
        bcast_text(comm, f"{_kind(mine).__name__}\n{mine}", int(failed[0]))
        mine.agreed = True
        raise mine
    kind, text = bcast_text(comm, "", int(failed[0])).split("\n", 1)
    theirs = _KINDS[kind](text)
    theirs.agreed = theirs.echo = True
    raise theirs


def print_once(error: PsrtError) -> None:
    """Let an agreed error that nobody catches end this process without another traceback.

    The rank whose error it is prints one; the interpreters of all others print nothing.
    """
    if not error.echo:
        return
    hook = sys.excepthook

    def silent(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        if value is not error:
            hook(kind, value, trace)

    sys.excepthook = silent


def _kind(error: PsrtError) -> type[PsrtError]:
    """Return the class of ``psrt.errors`` that an error is of, itself or by descent."""
    return next(kind for kind in type(error).__mro__ if kind in _KINDS.values())


def bcast_text(comm: MPI.Comm, text: str, root: int = 0) -> str:
    """Broadcast ``text`` of rank ``root``; collective."""
    data = bytearray(text.encode())
    length = np.array([len(data)], np.int64)
    comm.Bcast(length, root)
    if comm.rank != root:
        data = bytearray(int(length[0]))
    comm.Bcast([data, MPI.BYTE], root)
    return data.decode()


def gather_texts(comm: MPI.Comm, text: str) -> list[str]:
    """Bring a text of every rank to rank 0; collective. Returns an empty list elsewhere."""
    data = text.encode()
    first = comm.rank == 0
    lengths = np.empty(comm.size, np.int64) if first else None
    comm.Gather(np.array([len(data)], np.int64), lengths)
    if lengths is None:
        comm.Gatherv([data, MPI.BYTE], None)
        return []
    everything = bytearray(int(lengths.sum()))
    comm.Gatherv([data, MPI.BYTE], [everything, lengths.tolist(), MPI.BYTE])
    stops = np.cumsum(lengths).tolist()
    return [everything[a:b].decode() for a, b in zip([0, *stops], stops, strict=False)]


def same_everywhere(comm: MPI.Comm, text: str, what: str) -> None:
    """Check that all ranks were given the same ``text``; collective.

    Raises:
        ConfigError: on every rank, if they were not; ``what`` says of what.
    """
    theirs = bcast_text(comm, text)
    with raise_on_all(comm):
        if text != theirs:
            raise ConfigError(f"rank {comm.rank} was started with other {what} than rank 0")


class AbortGuard:
    """Ends the whole job when one rank fails, after saying once what happened.

    Where several ranks of a host fail at the same time, the lowest one speaks. Collective to make
    and to close.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        #: The ranks by host.
        self.layout: Layout
        self._node, self.layout = split_hosts(comm)
        self._memory = NodeMemory(self._node, 1)
        self._flags = [self._memory.numbers(r)[:1] for r in range(self._node.size)]
        self._flags[self._node.rank][0] = 0.0
        self._node.Barrier()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Abort the job if the block raises anything that was not agreed on."""
        try:
            yield
        except PsrtError as error:
            if error.agreed:
                raise
            self._end(error)
        except BaseException as error:
            self._end(error)

    def _end(self, error: BaseException) -> NoReturn:
        self._flags[self._node.rank][0] = 1.0
        self._memory.fence()
        time.sleep(_GRACE_S * (self._node.rank > 0))
        if any(flag[0] for flag in self._flags[: self._node.rank]):
            time.sleep(_PATIENCE_S)  # a lower rank speaks, and ends this one
        else:
            sys.stdout.flush()
            print(describe(error, self._comm.rank), file=sys.stderr, end="", flush=True)
            wait_until_read(sys.stderr)
        sys.stderr.flush()
        self._comm.Abort(status_of(error))
        # MPICH's may return, before the launcher has ended this process. What comes after the
        # block that failed must not run.
        os._exit(status_of(error))

    def close(self) -> None:
        """Free what was made."""
        self._flags.clear()
        self._memory.close()
        self._node.Free()


def wait_until_read(stream: TextIO) -> None:
    """Wait until whoever is behind ``stream`` has read all of it, if it is a pipe or terminal."""
    deadline = time.monotonic() + _READ_S
    with contextlib.suppress(OSError, ValueError):  # a file, or nothing with a descriptor
        while time.monotonic() < deadline:
            (unread,) = struct.unpack("i", fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))
            if not unread:
                break
            time.sleep(1e-3)


def describe(error: BaseException, rank: int) -> str:
    """Return what is printed of an error: a line where that says it all, else a traceback."""
    is_bug = isinstance(error, ProtocolError) and not isinstance(error, ReplayError)
    line = None if is_bug else line_of(error)
    if line is not None:
        return f"psrt: {line}\n"
    text = "".join(traceback.format_exception(error))
    return "".join(f"[rank {rank}] {line}\n" for line in text.rstrip().splitlines())
