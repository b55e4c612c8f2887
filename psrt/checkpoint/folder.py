"""The checkpoints of a run: one folder each, which appears whole or not at all.

    checkpoints/00000400/           manifest.json, worker-0-of-4.safetensors, …
    checkpoints/00000600.0.part/    being written, in attempt 0
    checkpoints/00000000.0.done.part/     what finished roles had
    checkpoints/.trash-00000200/    being deleted

All ranks write their parts. Then the first process writes the manifest, syncs, and renames the
folder. So a crash at any byte leaves either the previous checkpoint or this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from psrt.checkpoint.disk import Disk
from psrt.checkpoint.manifest import MOST, Manifest
from psrt.checkpoint.part import forget_announcements, read_part
from psrt.core.errors import CheckpointError

#: Names of a run's folder of checkpoints, and of the file that makes a folder a checkpoint.
FOLDER, MANIFEST = "checkpoints", "manifest.json"
_WHOLE = re.compile(r"[0-9]{8,19}")
_PART = re.compile(r"[0-9]{8,19}\.[0-9]+(\.done)?\.part")
_TRASH = ".trash-"


class Found(NamedTuple):
    """A checkpoint that can be read."""

    path: Path
    manifest: Manifest


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, disk: Disk, run: Path) -> None:
        """Set up.

        Args:
            disk: makes the file operations.
            run: the run's folder.
        """
        self._disk = disk
        #: The folder of the checkpoints.
        self.folder = run / FOLDER
        #: The only checkpoint to look at, if a user named one.
        self._only: str | None = None

    @classmethod
    def at(cls, disk: Disk, path: Path) -> Checkpoints:
        """Return the checkpoints at a path: a run's folder, its folder of checkpoints, or one."""
        path = Path(path)
        if (path / MANIFEST).exists():
            if path.parent.name != FOLDER:
                path = path.resolve()  # named from within, or by a link
            found = cls(disk, path.parent.parent)
            found.folder, found._only = path.parent, path.name
            return found
        if path.name == FOLDER:
            return cls(disk, path.parent)
        return cls(disk, path)

    def prepare(self) -> None:
        """Make the folder, and delete leftovers of dead attempts; no process may be writing.

        Raises:
            CheckpointError: if others may write there.
            OSError: if it cannot be made.
        """
        self._make()
        for name in self._disk.names(self.folder):
            if _PART.fullmatch(name) or name.startswith(_TRASH):
                self._disk.remove(self.folder / name)

    def _make(self) -> None:
        if not self._disk.names(self.folder):
            self._disk.make_folder(self.folder)
            self._disk.sync_folder(self.folder.parent)
        if not self._disk.is_safe(self.folder):
            raise CheckpointError(f"{self.folder}: others may write to it, or it is a link")

    def begin(self, step: int, attempt: int) -> Path:
        """Return the folder in which a checkpoint is written; any rank may make it.

        Raises:
            CheckpointError: if others may write there.
            OSError: if it cannot be made.
        """
        self._make()
        path = self.folder / f"{step:08d}.{attempt}.part"
        self._disk.make_folder(path)
        return path

    def begun(self, attempt: int) -> list[int]:
        """Return the steps whose checkpoint is being written, or could not be."""
        names = (it.split(".") for it in self._disk.names(self.folder) if _PART.fullmatch(it))
        return sorted(int(it[0]) for it in names if it[1:] == [str(attempt), "part"])

    def done(self, attempt: int) -> Path:
        """Return the folder in which finished roles leave their parts; it need not exist."""
        return self.folder / f"{0:08d}.{attempt}.done.part"

    def commit(self, step: int, attempt: int, manifest: Manifest, keep: int) -> Path:
        """Turn parts that are all on the disk into a checkpoint, and delete old checkpoints.

        Raises:
            OSError: if the disk fails; then the checkpoint does not exist.
        """
        disk, part = self._disk, self.folder / f"{step:08d}.{attempt}.part"
        forget_announcements(disk, part)
        disk.remove(part / MANIFEST)  # of a commit that failed
        disk.write(part / MANIFEST, [manifest.to_json().encode()])
        disk.sync_folder(part)
        whole = self.folder / f"{step:08d}"
        if whole.name in disk.names(self.folder):
            self._drop(whole.name)  # left by an attempt that took the same steps, or damaged
        disk.rename(part, whole)
        disk.sync_folder(self.folder)
        for name in self._names()[keep:]:
            self._drop(name)
        return whole

    def _drop(self, name: str) -> None:
        """Delete a checkpoint: its name disappears first, then its files."""
        trash = self.folder / f"{_TRASH}{name}"
        self._disk.remove(trash)
        self._disk.rename(self.folder / name, trash)
        self._disk.remove(trash)

    def _names(self) -> list[str]:
        """Return the names of whole checkpoints, newest first."""
        if self._only is not None:
            return [self._only]
        found = [it for it in self._disk.names(self.folder) if _WHOLE.fullmatch(it)]
        return sorted(found, key=int, reverse=True)

    def listed(self, *, verify: bool = False) -> Iterator[tuple[Path, Manifest | CheckpointError]]:
        """Yield all checkpoints, newest first: the manifest of each, or what is wrong with it.

        Args:
            verify: also read all parts, of each checkpoint when it is asked for.
        """
        for name in self._names():
            yield self.folder / name, self._judged(name, verify)

    def _judged(self, name: str, verify: bool) -> Manifest | CheckpointError:
        path = self.folder / name
        try:
            manifest = Manifest.from_json(self._disk.read(path / MANIFEST, MOST))
            if self._only is None and int(name) != manifest.step:
                raise CheckpointError(f"its files are those of step {manifest.step}")
            if not manifest.parts:
                raise CheckpointError("it has no parts")
            for entry in manifest.parts if verify else ():
                read_part(self._disk, path, entry)
        except CheckpointError as error:
            return CheckpointError(_placed(error, path))
        except OSError as error:
            return CheckpointError(f"{path}: {error.strerror}")
        return manifest

    def newest(self) -> tuple[Found | None, list[str]]:
        """Return the newest readable checkpoint, if any, and a line for each one skipped.

        A job that trains there deletes the oldest ones meanwhile; then newer ones exist by now.
        """
        while True:
            remarks: list[str] = []
            were_deleted = False
            for path, it in self.listed(verify=True):
                if isinstance(it, Manifest):
                    return Found(path, it), remarks
                remarks.append(str(it))
                were_deleted |= self._only is None and path.name not in self._names()
            if not were_deleted:
                return None, remarks


def _placed(error: CheckpointError, path: Path) -> str:
    text = str(error)
    return text if str(path) in text else f"{path}: {text}"
