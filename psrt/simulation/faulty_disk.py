"""A disk that fails at given operations: it is full, has an I/O error, or the job dies midway.

The states that a loss of power leaves are not here; tests of checkpoints try them one by one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from psrt.checkpoint import Disk
from psrt.config.faults import ERROR, FULL
from psrt.core.errors import CrashError

_ERRORS = {FULL: errno.ENOSPC, ERROR: errno.EIO}


@dataclass(eq=False)
class FaultyDisk(Disk):
    """Works like the real disk, except at the given operations."""

    #: By number of the operation, from 1, its fault.
    faults: Mapping[int, str]
    #: Called with that number when the fault strikes.
    struck: Callable[[int], None]
    #: Operations so far that change something.
    operations: int = field(default=0, init=False)
    _is_dead: bool = field(default=False, init=False)

    def make_folder(self, path: Path) -> None:
        """Make a folder, and its parents; it may exist."""
        if not path.is_dir():
            self._next(takes_space=True)
        super().make_folder(path)

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a new file, or half of it."""
        kept = list(pieces)

        def half() -> None:
            content = b"".join(map(bytes, kept))
            Disk.write(self, path, [content[: len(content) // 2]])

        self._next(half, takes_space=True)
        super().write(path, kept)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, or a folder."""
        self._next()
        super().rename(old, new)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        self._next()
        super().sync_folder(path)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with everything in it."""
        if path.is_symlink() or path.exists():
            self._next()
        super().remove(path)

    def _next(self, half: Callable[[], None] = lambda: None, *, takes_space: bool = False) -> None:
        """Count an operation, and do half of it if its fault says so."""
        if self._is_dead:
            raise CrashError("the job is dead")
        self.operations += 1
        how = self.faults.get(self.operations)
        if how is None:
            return
        self.struck(self.operations)
        if how == FULL and not takes_space:
            return
        half()
        if how in _ERRORS:
            raise OSError(_ERRORS[how], os.strerror(_ERRORS[how]))
        self._is_dead = True
        raise CrashError("the job was killed while a checkpoint was saved")
