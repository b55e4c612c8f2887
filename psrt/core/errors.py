"""The errors that psrt raises: one base class, one subclass for each way to act on an error."""

from __future__ import annotations

import errno
import os
import sys
import traceback


class PsrtError(Exception):
    """Base class of everything that psrt raises on purpose; its text is one clear line.

    ``exit_status`` is the exit status of a command that ends with this error.
    """

    exit_status = 1
    #: Whether every rank of the job raises it, so that none is left waiting.
    agreed = False
    #: Whether another rank raises and prints the original error, so that this one need not.
    echo = False


class ConfigError(PsrtError, ValueError):
    """The user's request is invalid: a flag, a file, a shape, a number of ranks."""

    exit_status = 2


class ProtocolError(PsrtError):
    """A rank sent a message that its peer's state does not allow; always a bug."""


class DifferentCallsError(ProtocolError):
    """Ranks make different calls, so their programs differ."""


class LeftError(ProtocolError):
    """Another rank has departed: with an error of its own, which it prints, or by ending early."""

    exit_status = 5


class CodecError(ProtocolError):
    """A compressed vector is invalid: its contents contradict its codec or its header."""


class ReplayError(ProtocolError):
    """A replay's result differs from the recorded run's; the history shows where."""


class TransportError(PsrtError):
    """A peer did not answer within the deadline, or cannot be reached."""

    exit_status = 4


class CrashError(TransportError):
    """The process of a rank has ended, and the others cannot continue without it; virtual time."""

    exit_status = 5


class FencedError(PsrtError):
    """The other ranks declared this worker dead and continue without it, so it ends."""


class GaveUpError(PsrtError):
    """A job died too often without a new checkpoint to be restarted; virtual time."""

    exit_status = 7


class MissingWorkersError(TransportError):
    """Workers stopped responding, and the others trained to the end without them.

    Ranks are gone, so MPI cannot be used any more: when the program ends, the job ends with this
    status.
    """

    def __init__(self, text: str, run: object = None) -> None:
        super().__init__(text)
        #: The result of the others, a ``Run``, at rank 0.
        self.run = run


class JobOverError(PsrtError):
    """The job ends because of another rank, and the reason has been printed already."""

    #: Exit statuses: a rank did not answer within the deadline, or its process has ended.
    LATE, DIED = 4, 5

    def __init__(self, status: int) -> None:
        super().__init__("the job is over")
        self.exit_status = status


class DivergedError(PsrtError):
    """The loss became NaN or infinite; the parameters are useless from here on."""

    exit_status = 3


class CheckpointError(PsrtError):
    """A checkpoint, or a part of one, differs from what was written."""


class StoppedError(PsrtError):
    """The run saved a checkpoint and stopped, as it was asked to; it can be resumed."""

    exit_status = 8

    def __init__(self, text: str, run: object = None) -> None:
        super().__init__(text)
        #: The result so far, a ``Run``, at rank 0.
        self.run = run


class OutputError(PsrtError):
    """A file could not be written, such as on a full disk."""

    def __init__(self, text: str, run: object = None) -> None:
        super().__init__(text)
        #: The finished ``Run``, if there is one, so that the caller keeps its model.
        self.run = run


#: Exit status after any error other than a ``PsrtError``.
_FAILED = 1
#: Added to a signal's number in the exit status of an interrupted process, as shells do.
_SIGNAL = 128
_CTRL_C = 2
#: Errors of the file system that are not the program's fault.
_FILES = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
)  # fmt: skip


#: Characters that change the direction of text.
_TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
#: Control characters of a terminal, except line feed and tab → how they are shown.
_CONTROLS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *_TURNS)
}


def plain(text: str) -> str:
    r"""Return a text without control characters of a terminal: it may be from an untrusted file.

    >>> plain("a\x1b[2J\tb\n")
    'a\\x1b[2J\tb\n'
    """
    return text.translate(_CONTROLS)


def line_of(error: BaseException) -> str | None:
    r"""Return an error as one line for the user; None if it needs a traceback.

    >>> print(line_of(ConfigError("no folder a\nb")))
    error: no folder a\nb
    >>> line_of(KeyboardInterrupt())
    'interrupted'
    >>> line_of(ZeroDivisionError())
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = str(error)
    if isinstance(error, MemoryError):
        text = f"out of memory: {text}" if text else "out of memory"
    elif isinstance(error, OSError) and error.errno in _FILES:
        name = "" if error.filename is None else f"{error.filename}: "
        text = f"{name}{error.strerror}"
    elif not isinstance(error, PsrtError):
        return None
    # A name that the user gave may contain line feeds.
    return "error: " + plain(text.replace("\n", "\\n").replace("\r", "\\r"))


#: Modules that psrt calls itself: an error there is psrt's, or the machine's.
_CALLED = {*sys.stdlib_module_names, "numpy", "mpi4py", "safetensors"}


def users_traceback(error: BaseException) -> str | None:
    """Return the traceback of an error in the user's code, without psrt's own frames.

    Returns:
        None if it was raised by psrt or by modules that psrt calls, or if it requests an exit.
    """
    if isinstance(error, PsrtError) or not isinstance(error, Exception):
        return None
    names = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)]
    roots = [str(name).partition(".")[0] for name in names]
    while "psrt" in roots:
        del roots[: roots.index("psrt") + 1]
    if not roots or roots[0] in _CALLED:
        return None
    whole = traceback.TracebackException.from_exception(error)
    _leave_out_psrt(whole)
    return "".join(whole.format())


def users_place(error: BaseException) -> str:
    """Return the file and line of the user's code that raised an error, or whose call raised it.

    Empty if it is not known.
    """
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        root = str(frame.f_globals.get("__name__")).partition(".")[0]
        file = frame.f_code.co_filename
        if root not in _CALLED | {"psrt"} and f"{os.sep}site-packages{os.sep}" not in file:
            found = f"{file}, line {line}"
    return found


def _leave_out_psrt(found: traceback.TracebackException | None) -> None:
    if found is not None:
        here = os.path.dirname(os.path.dirname(__file__)) + os.sep
        kept = [it for it in found.stack if not it.filename.startswith(here)]
        found.stack = traceback.StackSummary.from_list(kept)
        _leave_out_psrt(found.__cause__)
        _leave_out_psrt(found.__context__)


def status_of(error: BaseException) -> int:
    """Return the exit status of a process that ends with an error; never 0.

    >>> status_of(ConfigError()), status_of(KeyboardInterrupt()), status_of(KeyboardInterrupt(15))
    (2, 130, 143)
    >>> status_of(SystemExit(3)), status_of(SystemExit("so"))
    (3, 1)
    """
    if isinstance(error, PsrtError):
        return error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return _SIGNAL + int(error.args[0] if error.args else _CTRL_C)
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code % 256 or _FAILED
    return _FAILED
