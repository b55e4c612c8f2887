"""The file operations of a checkpoint: few, so that every crash between two can be tested.

What must survive a crash is written under a name that no process reads, synced, and then renamed. A
rename happens wholly or not at all, and is durable once the folder is synced. No symbolic link is
followed where something is written; a folder that others may write to is refused anyway, see
``folder.py``.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from psrt.core.errors import CheckpointError
from psrt.core.files import is_own_folder

#: Only for the owner: parameters may be confidential.
_FILE, _FOLDER = 0o600, 0o700


class Disk:
    """The real disk. Every method raises ``OSError`` as the system does."""

    def make_folder(self, path: Path) -> None:
        """Make a folder, and its parents; it may exist."""
        path.mkdir(mode=_FOLDER, parents=True, exist_ok=True)

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a new file, one piece after the other, and sync it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, _FILE), "wb", buffering=0) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, or a folder; a file of the new name is replaced."""
        os.rename(old, new)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with everything in it; it may be absent."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted; an empty list if it is not a folder."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: Path, most: int) -> bytes:
        """Return the content of a regular file.

        Raises:
            CheckpointError: if it is longer than ``most`` bytes, or no regular file.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path, flags)
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            os.close(handle)
            raise CheckpointError(f"{path}: not a regular file")
        with os.fdopen(handle, "rb") as file:
            if found.st_size > most:
                raise CheckpointError(f"{path}: has {found.st_size} bytes, expected at most {most}")
            return file.read(found.st_size)

    def is_safe(self, path: Path) -> bool:
        """Whether a path is a folder, not a link, in which others cannot change our files."""
        return is_own_folder(path)
