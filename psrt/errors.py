"""The errors psrt raises: one parent, one child per kind of reader who can act on it."""

from __future__ import annotations

import errno


class PsrtError(Exception):
    """Parent of everything psrt raises on purpose; its text is one clear line.

    ``exit_status`` is what a command that ends with this error returns to the shell.
    """

    exit_status = 1
    #: Whether every rank of the job raises it, so that none is left waiting.
    agreed = False


class ConfigError(PsrtError, ValueError):
    """What the user asked for cannot be: a flag, a file, a shape, a number of ranks."""

    exit_status = 2


class ProtocolError(PsrtError):
    """A rank said something that its peer's state does not allow; always a bug."""


class ReplayError(ProtocolError):
    """A replay came to something else than the recorded run did; the history tells where."""


class TransportError(PsrtError):
    """A peer did not answer within the deadline, or cannot be reached."""


class DivergedError(PsrtError):
    """The loss turned NaN or infinite; the parameters are worthless from here on."""

    exit_status = 3


class OutputError(PsrtError):
    """Something could not be written, as on a full disk; what could be was."""

    def __init__(self, text: str, run: object = None) -> None:
        super().__init__(text)
        #: The ``Run`` that is over, if one is: its model is not lost for the caller.
        self.run = run


#: Of a process that failed with anything but a ``PsrtError``.
_FAILED = 1
#: What an interrupted process adds to the number of the signal, as shells do.
_SIGNAL = 128
_CTRL_C = 2
#: What the file system says where nothing is wrong with the program.
_FILES = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
)  # fmt: skip


def line_of(error: BaseException) -> str | None:
    r"""Return the one line that tells a user all about an error; None where a traceback must.

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
    # A name that the user gave may have line feeds in it.
    return "error: " + text.replace("\n", "\\n").replace("\r", "\\r")


def status_of(error: BaseException) -> int:
    """Return the exit status of a process that ends with an error.

    >>> status_of(ConfigError()), status_of(KeyboardInterrupt()), status_of(KeyboardInterrupt(15))
    (2, 130, 143)
    """
    if isinstance(error, PsrtError):
        return error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return _SIGNAL + int(error.args[0] if error.args else _CTRL_C)
    return _FAILED
