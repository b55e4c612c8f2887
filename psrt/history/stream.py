"""Reads a history block by block, so that one of any length takes little memory.

``extent_of`` reads a file once to hold it against its checksum; ``blocks_of`` reads it again. Other
than ``read_history`` they take a file of an unfinished run, too: as many events as are there.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from psrt.errors import ConfigError
from psrt.files import open_regular
from psrt.history.events import EVENT, EVENT_BYTES, Kind
from psrt.history.folder import HEADER
from psrt.history.log import Events, end_of_file
from psrt.history.reading import described

#: Events that are read at once for the checksum.
_BLOCK = 1 << 15


@dataclass(frozen=True, slots=True)
class Extent:
    """The events of a file, without END."""

    path: Path
    #: Bytes before the first one.
    begin: int
    count: int
    #: Whether the file is complete; else its run did not end, or has not yet.
    whole: bool


def extent_of(folder: Path, name: str, look: Callable[[Events], None] | None = None) -> Extent:
    """Check a file of events.

    Args:
        folder: ``history/``.
        name: of the file, as the header says it.
        look: called with all events, block by block, before they are known to be undamaged.

    Raises:
        ConfigError: if it is missing, damaged or no file of events.
    """
    path = folder / name
    if Path(name).name != name:
        raise ConfigError(f"{folder / HEADER}: names a file outside its folder: {name!r}")
    try:
        with open_regular(path) as file:
            return _checked(path, file, look or (lambda events: None))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: damaged: {str(error).splitlines()[0]}") from None


def blocks_of(extent: Extent, events: int) -> Iterator[Events]:
    """Yield the events of a file, that many at once; it is open only while it is read.

    Raises:
        ConfigError: if there are fewer than there were.
    """
    for at in range(0, extent.count, events):
        number = min(events, extent.count - at)
        try:
            with open_regular(extent.path) as file:
                file.seek(extent.begin + at * EVENT_BYTES)
                block = np.fromfile(file, EVENT, number)
        except OSError as error:
            raise ConfigError(f"{extent.path}: cannot be read: {error.strerror}") from None
        if len(block) < number:
            raise ConfigError(f"{extent.path}: changed while it was read")
        yield block


def _checked(path: Path, file: BinaryIO, look: Callable[[Events], None]) -> Extent:
    size = os.fstat(file.fileno()).st_size
    if not size:  # opened by a run that was killed at once
        return Extent(path, 0, 0, whole=False)
    shape, dtype = described(file)
    if dtype != EVENT or len(shape) != 1:
        raise ConfigError(f"{path}: not a file of events")
    begin = file.tell()
    there = (size - begin) // EVENT_BYTES
    whole = shape != (0,)
    if whole and size - begin != shape[0] * EVENT_BYTES:
        raise ValueError(f"{size - begin} bytes of events, expected {shape[0]} events")
    count = there - whole
    crc = 0
    for at in range(0, count, _BLOCK):
        block = np.fromfile(file, EVENT, min(_BLOCK, count - at))
        crc = zlib.crc32(block.view(np.uint8).data, crc)
        look(block)
    if whole:
        end = file.read(EVENT_BYTES)
        file.seek(0)
        crc = zlib.crc32(file.read(begin), crc)
        if end[:1] != bytes([Kind.END]):
            raise ValueError("its last event is not a valid END")
        if end != end_of_file(count, crc):
            raise ValueError("its checksum does not match its events")
    return Extent(path, begin, count, whole)
