"""One file of a checkpoint: the state of one role.

It is a safetensors file, which runs no code when it is read and which other tools open: eight bytes
with the length of the header, the header in JSON, and the arrays. Everything else is JSON in the
header's metadata.

Ranks meet in the folder: once a part is on the disk, a small file beside it announces that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psrt.checkpoint.disk import Disk
from psrt.checkpoint.tree import Tree, flatten, unflatten
from psrt.core.errors import CheckpointError
from psrt.core.partition import Span

#: The names of number types in safetensors.
_TYPES = {
    "F32": "<f4", "F64": "<f8", "F16": "<f2", "BOOL": "|b1",
    "I8": "|i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
}  # fmt: skip
_CODES = {np.dtype(it): code for code, it in _TYPES.items()}
#: The name of a part, and the longest header that is read.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_MOST_HEADER = 64 << 20
_ANNOUNCED, _ANNOUNCING = ".json", ".json.new"
_MOST_ANNOUNCEMENT = 16 << 20
#: Keys of the header for everything but arrays.
_METADATA, _VALUES = "__metadata__", "values"


class PartEntry(NamedTuple):
    """A manifest's entry for one of its files."""

    #: Name of the part; the file has ``.safetensors`` after it.
    name: str
    nbytes: int
    #: Of the file, in hex.
    sha256: str
    #: The spans of the parameters that its ``theta`` holds, in order; empty without a ``theta``.
    spans: tuple[Span, ...] = ()
    #: The numbers of the workers that its role had lost by then.
    without: tuple[int, ...] = ()

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.safetensors"

    def to_json(self) -> dict[str, Any]:
        """Return the entry as values for JSON."""
        spans = [list(span) for span in self.spans]
        return {**self._asdict(), "spans": spans, "without": list(self.without)}

    @classmethod
    def from_json(cls, values: Any) -> PartEntry:
        """Read what ``to_json`` returned.

        Raises:
            CheckpointError: if it is not an entry.
        """
        if not isinstance(values, dict) or set(values) != set(cls._fields):
            raise CheckpointError("not the entry of a part")
        name, nbytes, sha256, spans, without = (values[field] for field in cls._fields)
        good = (
            isinstance(name, str)
            and _NAME.fullmatch(name)
            and _is_count(nbytes)
            and isinstance(sha256, str)
            and re.fullmatch("[0-9a-f]{64}", sha256)
            and isinstance(spans, list)
            and all(
                isinstance(it, list) and len(it) == 2 and all(map(_is_count, it)) for it in spans
            )
            and isinstance(without, list)
            and all(map(_is_count, without))
        )
        if not good:
            raise CheckpointError(f"not the entry of a part: {name!r}")
        return cls(name, nbytes, sha256, tuple(Span(*it) for it in spans), tuple(without))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def write_part(
    disk: Disk, folder: Path, name: str, tree: Mapping[str, Any], spans: Sequence[Span] = ()
) -> PartEntry:
    """Write a part, and sync it.

    Args:
        disk: makes the file operations.
        folder: of the checkpoint that is being written.
        name: of the part.
        tree: its content; arrays are not copied.
        spans: the spans of the parameters that its ``theta`` holds.

    Raises:
        CheckpointError: if the tree has something that a checkpoint cannot hold.
        OSError: if the disk fails; then no file of that name is left.
    """
    if not _NAME.fullmatch(name):
        raise CheckpointError(f"{name!r} cannot be the name of a part")
    arrays, values = flatten(tree)
    digest, count = hashlib.sha256(), 0

    def passed(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        nonlocal count
        for piece in pieces:
            digest.update(piece)
            count += len(piece)
            yield piece

    path = folder / f"{name}.safetensors"
    try:
        disk.write(path, passed(_pieces(arrays, values)))
    except FileExistsError:
        raise
    except (OSError, CheckpointError):
        disk.remove(path)
        raise
    return PartEntry(name, count, digest.hexdigest(), tuple(spans))


def _pieces(arrays: Mapping[str, np.ndarray], values: Tree) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file."""
    header: dict[str, Any] = {_METADATA: {_VALUES: json.dumps(values, allow_nan=False)}}
    kept, end = [], 0
    for path, array in arrays.items():
        code = _CODES.get(array.dtype)
        if code is None:
            raise CheckpointError(f"{path}: a checkpoint cannot hold numbers of {array.dtype}")
        it = np.ascontiguousarray(array).reshape(array.shape)  # which makes 0-d arrays 1-d
        header[path] = {
            "dtype": code,
            "shape": list(it.shape),
            "data_offsets": [end, end + it.nbytes],
        }
        kept.append(it)
        end += it.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for it in kept:
        if it.nbytes:
            yield it.reshape(-1).view(np.uint8).data


def read_part(disk: Disk, folder: Path, entry: PartEntry) -> Tree:
    """Return the tree of a part.

    Raises:
        CheckpointError: if the file is not the one that was written.
        OSError: if it cannot be read.
    """
    path = folder / entry.file
    data = disk.read(path, entry.nbytes)
    if len(data) != entry.nbytes:
        raise CheckpointError(f"{path}: has {len(data)} of {entry.nbytes} bytes")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CheckpointError(f"{path}: its checksum is not that of what was written")
    try:
        return parsed(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def parsed(data: bytes) -> Tree:
    """Return the tree in the bytes of a file.

    Raises:
        CheckpointError: if they are not such a file.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, _MOST_HEADER):
        raise CheckpointError("not a part: its header is truncated")
    begin = 8 + length
    try:
        header = json.loads(data[8:begin])
        values = json.loads(header.pop(_METADATA)[_VALUES])
        arrays = {path: _array(data[begin:], **it) for path, it in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise CheckpointError("not a part: its header does not fit its data") from None
    if not isinstance(values, dict):
        raise CheckpointError("not a part: its values have no names")
    return unflatten(arrays, values)


def _array(data: bytes, dtype: str, shape: list[int], data_offsets: list[int]) -> np.ndarray:
    """Return a copy of an array: views would keep the whole file."""
    start, stop = data_offsets
    if not all(map(_is_count, (*shape, start, stop))) or not start <= stop <= len(data):
        raise ValueError(shape)
    return np.frombuffer(data[start:stop], _TYPES[dtype]).reshape(shape).copy()


def announce(disk: Disk, folder: Path, entry: PartEntry) -> None:
    """Announce, to the process that commits the checkpoint, that a part is on the disk."""
    _note(disk, folder, entry.name, entry.to_json())


def announce_failure(disk: Disk, folder: Path, name: str, reason: str) -> None:
    """Announce that a part could not be written."""
    _note(disk, folder, name, {"failed": reason})


def _note(disk: Disk, folder: Path, name: str, values: dict[str, Any]) -> None:
    """Write a note for other processes, which see all of it or nothing.

    Raises:
        OSError: if the disk fails; then no process sees the note.
    """
    new = folder / (name + _ANNOUNCING)
    disk.remove(new)  # left by a failed attempt
    disk.write(new, [json.dumps(values).encode()])
    disk.rename(new, folder / (name + _ANNOUNCED))


def _notes(disk: Disk, folder: Path) -> dict[str, Any]:
    """Return the notes in a folder by name; empty if there is no folder.

    Raises:
        CheckpointError: if a file there is not a note of psrt.
        OSError: if one cannot be read.
    """
    found: dict[str, Any] = {}
    for file in disk.names(folder):
        if not file.endswith(_ANNOUNCED) or file == "manifest.json":
            continue
        try:
            found[file.removesuffix(_ANNOUNCED)] = json.loads(
                disk.read(folder / file, _MOST_ANNOUNCEMENT)
            )
        except (ValueError, RecursionError):
            raise CheckpointError(f"{folder / file}: not JSON") from None
    return found


def announced(disk: Disk, folder: Path) -> dict[str, PartEntry | str]:
    """Return the parts on the disk by name; for a part that could not be written, the reason.

    Raises:
        CheckpointError: if a file there is not a note of psrt.
        OSError: if one cannot be read.
    """
    found: dict[str, PartEntry | str] = {}
    for name, values in _notes(disk, folder).items():
        if isinstance(values, dict) and set(values) == {"failed"}:
            found[name] = str(values["failed"])
        else:
            found[name] = PartEntry.from_json(values)
    return found


def forget_announcements(disk: Disk, folder: Path) -> None:
    """Remove the announcements of parts: the manifest has everything."""
    for file in disk.names(folder):
        if file.endswith((_ANNOUNCED, _ANNOUNCING)) and file != "manifest.json":
            disk.remove(folder / file)
