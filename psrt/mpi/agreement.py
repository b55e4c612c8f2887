"""How the ranks of a job agree on a text or on an error. All functions are collective."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from types import TracebackType

import numpy as np
from mpi4py import MPI

from psrt.core.errors import (
    ConfigError,
    DivergedError,
    MissingWorkersError,
    OutputError,
    ProtocolError,
    PsrtError,
    ReplayError,
    StoppedError,
    TransportError,
    line_of,
    status_of,
)
from psrt.core.version import __version__
from psrt.faults.vitals import HERE

#: What a rank waits for in all of these, for diagnosing a job that makes no progress.
_OTHERS = "the other ranks to get here"
#: The class in which an error of another rank is raised here.
_KINDS = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        DivergedError,
        MissingWorkersError,
        OutputError,
        ReplayError,
        StoppedError,
        ProtocolError,
        TransportError,
        PsrtError,
    )
}


@contextlib.contextmanager
def raise_on_all(comm: MPI.Comm) -> Iterator[None]:
    """Make all ranks leave this block in the same way; collective.

    If the block raises a ``PsrtError`` on any rank, every rank raises that of the lowest such
    rank, marked ``agreed``. Communication inside the block must not fail on only some ranks.
    """
    mine: PsrtError | None = None
    try:
        yield
    except PsrtError as error:
        mine = error
    failed = np.array([comm.rank if mine is not None else comm.size], np.int64)
    with HERE.blocked(_OTHERS):
        comm.Allreduce(MPI.IN_PLACE, failed, MPI.MIN)
    if failed[0] == comm.size:
        return
    is_mine = comm.rank == failed[0]
    text = bcast_text(comm, to_text(mine) if is_mine else "", int(failed[0]))
    raise from_text(text, mine if is_mine else None)


def print_once(error: PsrtError) -> None:
    """Print an uncaught agreed error on one rank only, and end the process with its status.

    The rank that raised it prints a traceback, or one line where that is enough: for an impossible
    request, missing workers, or a run that was asked to stop. All others print nothing.
    """
    hook = sys.excepthook

    def once(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is not error:
            hook(kind, value, trace)
            return
        if not error.echo and isinstance(error, ConfigError | MissingWorkersError | StoppedError):
            print(f"psrt: {line_of(error)}", file=sys.stderr, flush=True)
        elif not error.echo:
            hook(kind, value, trace)
        # All ranks exit in this way, so ``python -m mpi4py`` does not abort the job with its own
        # status.
        MPI._set_abort_status(0)
        raise SystemExit(status_of(error))

    sys.excepthook = once


def to_text(error: PsrtError | None) -> str:
    """Return an error as text for ``from_text``; empty for none."""
    if error is None:
        return ""
    # Its nearest class in ``psrt.core.errors``.
    kind = next(kind for kind in type(error).__mro__ if kind in _KINDS.values())
    return f"{kind.__name__}\n{error}"


def from_text(text: str, mine: PsrtError | None) -> PsrtError:
    """Return the error that all ranks raise.

    Args:
        text: of ``to_text``.
        mine: the error itself, on the rank that raised it.
    """
    if mine is None:
        kind, line = text.split("\n", 1)
        mine = _KINDS[kind](line)
        mine.echo = True
    mine.agreed = True
    return mine


def to_bytes(text: str) -> bytes:
    r"""Return a text as bytes; any text, since a name that a user gave may not be UTF-8.

    >>> from_bytes(to_bytes("x\udcff")) == "x\udcff"
    True
    """
    return text.encode(errors="surrogatepass")


def from_bytes(data: bytes | bytearray) -> str:
    """Undo ``to_bytes``."""
    return data.decode(errors="surrogatepass")


def bcast_text(comm: MPI.Comm, text: str, root: int = 0) -> str:
    """Broadcast a text; collective.

    Args:
        comm: the calling ranks.
        text: the root's is returned on all ranks.
        root: the rank of the root.
    """
    data = bytearray(to_bytes(text))
    length = np.array([len(data)], np.int64)
    with HERE.blocked(_OTHERS):
        comm.Bcast(length, root)
        if comm.rank != root:
            data = bytearray(int(length[0]))
        comm.Bcast([data, MPI.BYTE], root)
    return from_bytes(data)


def gather_texts(comm: MPI.Comm, text: str) -> list[str]:
    """Gather a text of every rank on rank 0; collective. Returns an empty list elsewhere."""
    data = to_bytes(text)
    first = comm.rank == 0
    lengths = np.empty(comm.size, np.int64) if first else None
    with HERE.blocked(_OTHERS):
        comm.Gather(np.array([len(data)], np.int64), lengths)
        if lengths is None:
            comm.Gatherv([data, MPI.BYTE], None)
            return []
        everything = bytearray(int(lengths.sum()))
        comm.Gatherv([data, MPI.BYTE], [everything, lengths.tolist(), MPI.BYTE])
    stops = np.cumsum(lengths).tolist()
    return [from_bytes(everything[a:b]) for a, b in zip([0, *stops], stops, strict=False)]


def same_psrt(comm: MPI.Comm) -> None:
    """Check that all ranks run the same version of psrt; collective.

    Raises:
        ConfigError: on every rank, if one has another version than rank 0.
    """
    host = socket.gethostname()
    theirs, first = bcast_text(comm, f"{__version__}\n{host}").split("\n")
    with raise_on_all(comm):
        if theirs != __version__:
            raise ConfigError(
                f"rank {comm.rank} on {host} runs psrt {__version__}, rank 0 on {first} psrt "
                f"{theirs}: install the same version on every host"
            )


def same_everywhere(comm: MPI.Comm, text: str, what: str) -> None:
    """Check that all ranks have the same text; collective.

    Args:
        comm: of all ranks.
        text: of this rank.
        what: its name in the error.

    Raises:
        ConfigError: on every rank, if one has another text than rank 0.
    """
    theirs = bcast_text(comm, text)
    with raise_on_all(comm):
        if text != theirs:
            raise ConfigError(f"rank {comm.rank} was started with other {what} than rank 0")
