"""A disk that may crash: every file operation written down, and the states it may leave behind.

A crash of the process leaves the operations before it, the last write perhaps cut short. A loss of
power also takes back what was not made durable: the content of a file that was not synced, in
whole or from some byte on; a name that was made, moved or removed in a folder that was not synced
afterwards, each by itself. So a rename may be durable before the content of what was renamed.
Source of the model: Pillai et al., "All file systems are not created equal", OSDI 2014.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from psrt.checkpoint.disk import Disk

_ROOT = PurePosixPath()


class Operation(NamedTuple):
    """One operation on the disk."""

    #: "folder", "write", "rename", "sync" (of a folder), "remove"; "sync file" ends a write.
    kind: str
    path: PurePosixPath
    #: The new name of a rename, the content of a write.
    to: PurePosixPath | None = None
    data: bytes = b""


class RecordingDisk(Disk):
    """Does as the real one, and writes down what it did below ``root``."""

    def __init__(self, root: Path, *, without: str = "") -> None:
        self.root = root
        self.done: list[Operation] = []
        #: The kind of operation that is left out, to see that it is missed.
        self.without = without

    def _at(self, path: Path) -> PurePosixPath:
        return PurePosixPath(path.relative_to(self.root))

    def make_folder(self, path: Path) -> None:
        for it in (*reversed(path.parents), path):
            if it.is_relative_to(self.root) and it != self.root and not it.exists():
                it.mkdir()
                self.done.append(Operation("folder", self._at(it)))

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        kept = [bytes(it) for it in pieces]
        super().write(path, kept)
        self.done.append(Operation("write", self._at(path), data=b"".join(kept)))
        if self.without != "sync file":
            self.done.append(Operation("sync file", self._at(path)))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.done.append(Operation("rename", self._at(old), self._at(new)))

    def sync_folder(self, path: Path) -> None:
        if self.without not in ("sync", f"sync {path.name}"):
            self.done.append(Operation("sync", self._at(path)))

    def remove(self, path: Path) -> None:
        if path.is_symlink() or path.exists():
            inside = sorted(path.rglob("*"), reverse=True) if path.is_dir() else []
            for it in (*inside, path):
                super().remove(it)
                self.done.append(Operation("remove", self._at(it)))


class State:
    """Files and folders by name, a folder's content being None."""

    def __init__(self) -> None:
        self.found: dict[PurePosixPath, bytes | None] = {}

    def do(self, it: Operation) -> None:
        found = self.found
        into = (it.path if it.to is None else it.to).parent
        if it.kind in ("folder", "write", "rename") and into != _ROOT and into not in found:
            return  # its folder is lost
        if it.kind == "folder":
            found.setdefault(it.path, None)
        elif it.kind == "write":
            found[it.path] = it.data
        elif it.kind == "rename" and it.path in found:
            assert it.to is not None
            for name in [n for n in found if n == it.to or it.to in n.parents]:
                del found[name]
            for name in [n for n in found if n == it.path or it.path in n.parents]:
                found[it.to / name.relative_to(it.path)] = found.pop(name)
        elif it.kind == "remove":
            for name in [n for n in found if n == it.path or it.path in n.parents]:
                del found[name]

    def put(self, root: Path) -> None:
        """Make it so, below an empty folder."""
        for name in sorted(self.found):
            data = self.found[name]
            if data is None:
                (root / name).mkdir(exist_ok=True)
            else:
                (root / name).write_bytes(data)


def crash_states(done: list[Operation], first: int = 0) -> Iterator[tuple[bool, State]]:
    """Yield the states that a crash among these operations may leave.

    Args:
        done: all operations.
        first: number of operations that are over before a crash.

    Yields:
        Whether all operations were over, and what is there.
    """
    for end in range(first, len(done) + 1):
        for state in _states(done[:end], torn=end > first):
            yield end == len(done), state


def _states(before: list[Operation], *, torn: bool) -> Iterator[State]:
    """Yield what a crash right after these operations may leave; the last may be ``torn``."""
    yield _after(before)
    if torn and before[-1].kind == "write":
        for kept in sorted({0, 1, len(before[-1].data) // 2, len(before[-1].data) - 1}):
            yield _after([*before[:-1], _cut(before[-1], kept)])
    loose = _not_durable(before)
    for lost in (*combinations(loose, 1), *combinations(loose, 2)):
        yield _after([it for i, it in enumerate(before) if i not in lost])
    for i in loose:
        it = before[i]
        if it.kind == "write" and Operation("sync file", it.path) not in before[i:]:
            for kept in (0, len(it.data) // 2):
                yield _after([*before[:i], _cut(it, kept), *before[i + 1 :]])


def _cut(write: Operation, kept: int) -> Operation:
    return write._replace(data=write.data[: max(kept, 0)])


def _after(operations: list[Operation]) -> State:
    state = State()
    for it in operations:
        state.do(it)
    return state


def _not_durable(done: list[Operation]) -> list[int]:
    """Return the operations that a loss of power may take back: names in unsynced folders.

    The content of a file that was not synced may go, too, whatever becomes of its name.
    """
    found = []
    for i, it in enumerate(done):
        if it.kind in ("sync", "sync file"):
            continue
        after = done[i + 1 :]
        folder = (it.path if it.to is None else it.to).parent
        named = any(other.kind == "sync" and other.path == folder for other in after)
        synced = it.kind != "write" or Operation("sync file", it.path) in after
        if not (named and synced):
            found.append(i)
    return found
