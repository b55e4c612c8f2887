"""Read and write text files that the user names; errors are one line that names the file."""

from __future__ import annotations

import errno
import grp
import io
import os
import pwd
import stat
from pathlib import Path
from typing import BinaryIO

from psrt.core.errors import ConfigError

#: Largest text that is read, in bytes: psrt writes none this long.
_MOST = 64 << 20
#: Bytes that are read at a time, so that memory is allocated as they arrive.
_PIECE = 1 << 20


def read_text(path: str, kind: str = "a text", *, encoding: str = "utf-8") -> str:
    """Return the text of a file.

    Args:
        path: as the user gave it.
        kind: the expected kind of file, for the message.
        encoding: UTF-8, or a variant of it.

    Raises:
        ConfigError: if it cannot be read, or never ends, like some devices.
    """
    try:
        with _opened(path) as file:
            data = bytearray()
            while len(data) < _MOST and (piece := file.read(_PIECE)):
                data += piece
            if not data and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path}: a pipe that no process writes to")
        if len(data) >= _MOST:
            raise ConfigError(f"{path}: not {kind}: it is longer than {_MOST >> 20} MiB")
        text = io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:  # not UTF-8, or an impossible path
        raise ConfigError(f"{path}: not {kind} in UTF-8") from None
    return text


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read its bytes; reading a pipe or a device might never end.

    Raises:
        OSError: if it is not a regular file, or cannot be opened.
    """
    file = _opened(path)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file without waiting for a writer, as opening a pipe would."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:  # such as for a folder
        os.close(handle)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file, replacing its content.

    Raises:
        ConfigError: if it cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {_why(error)}") from None


def check_writable(path: str | os.PathLike[str] | None) -> None:
    """Check that a file can be written, before the work begins; None stands for no file.

    The file is opened but not changed: permissions alone do not show that a folder is a file, that
    a file system is read-only, or that a name is too long.

    Raises:
        ConfigError: if it cannot.
    """
    if path is None:
        return
    is_new = not os.path.exists(path)
    try:
        with open(path, "ab"):
            pass
        if is_new:
            os.unlink(os.path.realpath(path))  # the path may be a link to a missing file
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {_why(error)}") from None


def is_own_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder, not a link, in which no other user can change our files.

    Other users either may not write to it, or may not touch files of others in it, as in /tmp. A
    group with the user's own name does not count: on many systems every user has one, which may
    write by default.

    Raises:
        OSError: if nothing is there.
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
        return False
    if found.st_mode & stat.S_ISVTX:
        return True
    by_group = found.st_mode & stat.S_IWGRP and not _is_ours_alone(found.st_gid)
    return not by_group and not found.st_mode & stat.S_IWOTH


def _is_ours_alone(gid: int) -> bool:
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:  # as in a container, where ids have no names
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and not group.gr_mem


def keep_apart(out: str | os.PathLike[str], flag: str, source: str | os.PathLike[str]) -> None:
    """Check that a run does not overwrite its own input.

    Args:
        out: the folder that the run writes.
        flag: the flag that names ``source``, for the message.
        source: a file, or the folder of a run.

    Raises:
        ConfigError: if ``source`` is ``out`` or lies in it.
    """
    if Path(source).resolve().is_relative_to(Path(out).resolve()):
        raise ConfigError(
            f"--out {os.fspath(out)} would overwrite {flag} {os.fspath(source)}: give another --out"
        )


def _why(error: OSError | ValueError) -> str:
    """Return the reason in a few words."""
    return str(getattr(error, "strerror", None) or error)
