"""Reads a file of events, block by block, so that one of any length takes little memory.

``extent_of`` reads it once to verify its checksum; ``blocks_of`` reads it again. They take
a file of an unfinished run, too: as many events as are there.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.files import open_regular
from psrt.history.events import EVENT, EVENT_BYTES, LAYOUT, Kind
from psrt.history.folder import HEADER
from psrt.history.log import Events, end_of_file

#: Events that are read at once for the checksum.
_BLOCK = 1 << 15
#: The place of an event's clock among its fields.
_CLOCK = (EVENT.names or ()).index("clock")


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
    with events_file(path) as file:
        return _checked(path, file, look or (lambda events: None))


@contextmanager
def events_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file of events.

    Raises:
        ConfigError: if it is missing, or what is done with it shows that it is damaged; one line.
    """
    try:
        with open_regular(path) as file:
            yield file
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: damaged: {str(error).splitlines()[0]}") from None


def said_in(path: Path, file: BinaryIO) -> int:
    """Read numpy's header, behind which events begin; return how many it says that there are.

    END is one of them; 0 where the run did not end, or has not yet.

    Raises:
        ConfigError: if it is a file of something else.
        ValueError: if it has no such header.
    """
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("not of version 1.0 of .npy")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 2, which never wrote a history
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except ValueError:
        raise
    except Exception as error:  # numpy lets through what Python's own parsers raise
        raise ValueError(f"{type(error).__name__} in its header") from None
    if dtype != EVENT or len(shape) != 1:
        raise ConfigError(f"{path}: not a file of events")
    return int(shape[0])


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
    said = said_in(path, file)
    begin, whole = file.tell(), said != 0
    there = (size - begin) // EVENT_BYTES
    if whole and size - begin != said * EVENT_BYTES:
        raise ValueError(f"{size - begin} bytes of events, expected {said} events")
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
        if end[:1] != bytes([Kind.END]) or LAYOUT.unpack(end)[_CLOCK] != count:
            raise ValueError("its last event is not a valid END")
        if end != end_of_file(count, crc):
            raise ValueError("its checksum does not match its events")
    return Extent(path, begin, count, whole)
