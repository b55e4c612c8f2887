"""Text in and out of files that users name: what goes wrong is one line that names the file."""

from __future__ import annotations

import os
from pathlib import Path

from psrt.errors import ConfigError

#: Characters that no text of psrt's has.
_MOST = 64 << 20


def read_text(path: str, kind: str = "a text", *, encoding: str = "utf-8") -> str:
    """Return the text of a file.

    Args:
        path: as the user gave it.
        kind: what the file should be, for the message.
        encoding: UTF-8, or a variant of it.

    Raises:
        ConfigError: if it cannot be read, or has no end, as a device has none.
    """
    try:
        with open(path, encoding=encoding) as file:
            text = file.read(_MOST)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:  # not UTF-8, or a path that no file can have
        raise ConfigError(f"{path}: not {kind} in UTF-8") from None
    if len(text) == _MOST:
        raise ConfigError(f"{path}: not {kind}: it does not end within {_MOST >> 20} MiB")
    return text


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file, in place of what it held.

    Raises:
        ConfigError: if it cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {_why(error)}") from None


def check_writable(path: str | os.PathLike[str] | None) -> None:
    """Find out before the work whether its result could be written; None names no file.

    The file is opened and not changed: permissions alone do not tell of a folder that is a file,
    of a file system that is read-only, or of a name that is too long.

    Raises:
        ConfigError: if it could not.
    """
    if path is None:
        return
    is_new = not os.path.lexists(path)
    try:
        with open(path, "ab"):
            pass
        if is_new:
            os.unlink(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {_why(error)}") from None


def keep_apart(out: str | os.PathLike[str], flag: str, source: str | os.PathLike[str]) -> None:
    """Check that a run does not write over what it is made from.

    Args:
        out: the folder that the run writes.
        flag: names the source.
        source: a file, or the folder of a run.

    Raises:
        ConfigError: if it is ``out``, or lies in it.
    """
    if Path(source).resolve().is_relative_to(Path(out).resolve()):
        raise ConfigError(
            f"--out {os.fspath(out)} would be written over what {flag} {os.fspath(source)} reads"
        )


def _why(error: OSError | ValueError) -> str:
    """Return the reason in a few words."""
    return str(getattr(error, "strerror", None) or error)
