"""Disks that are none."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from psrt.checkpoint import Disk


class Memory(Disk):
    """Files that are nowhere but here."""

    def __init__(self) -> None:
        self.files: dict[Path, bytes] = {}
        #: Whether there is room for no more.
        self.full = False

    def make_folder(self, path: Path) -> None:
        self._check()

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        assert path not in self.files
        self._check()
        self.files[path] = b"".join(map(bytes, pieces))

    def rename(self, old: Path, new: Path) -> None:
        self.files[new] = self.files.pop(old)

    def remove(self, path: Path) -> None:
        self.files = {it: data for it, data in self.files.items() if path not in (it, it.parent)}

    def names(self, path: Path) -> list[str]:
        return sorted(it.name for it in self.files if it.parent == path)

    def read(self, path: Path, most: int) -> bytes:
        return self.files[path]

    def _check(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
