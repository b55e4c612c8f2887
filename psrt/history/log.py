"""The log of one process: events as they happen, buffered, into a ``.npy`` file."""

from __future__ import annotations

import functools
import io
import math
import os
import zlib
from collections.abc import Callable
from os import PathLike
from types import MethodType, TracebackType
from typing import Any, BinaryIO

import numpy as np

from psrt.core.errors import ConfigError, OutputError
from psrt.history.events import EVENT, EVENT_BYTES, LAYOUT, UNUSED, Kind
from psrt.history.kinds import KINDS, Event

#: Events of a file.
Events = np.ndarray[tuple[int], np.dtype[np.void]]
#: The owner of events: whether it is a shard, and the number of the shard or worker.
Owner = tuple[bool, int]
#: The number of events that are buffered before they are written.
_BUFFERED = 4096
#: Length of the queue at which its calls are made: short enough for the cache, and so few new
#: objects that Python's garbage collector does not run for them.
QUEUED = 128
#: A method of ``EventLog`` that packs an event of a kind in a single call: a run makes millions of
#: these.
_ADDER = """
def add(self, time, worker, {parameters}):
    if self.queue:
        self.drain()
    at = self._at
    pack(self._buffer, at, {values})
    self._at = at = at + {nbytes}
    if at == len(self._buffer):
        self._write_buffer()
"""


@functools.cache
def _adder(kind: Kind, pack: Callable[..., None]) -> Callable[..., None]:
    """Return the method that adds events of a kind, by what packs columns into a buffer."""
    held = {str(field): name for name, field in KINDS[kind].fields.items()}
    own = {"kind": str(int(kind)), "worker": "worker", "time": "time - self.origin"}
    unused = {name: repr(it) for name, it in UNUSED.items()}  # "nan" of one
    values = unused | held | own
    text = _ADDER.format(
        parameters=", ".join(f"{held[it]}={unused[it]}" for it in UNUSED if it in held),
        values=", ".join(values[name] for name in EVENT.names or ()),
        nbytes=EVENT_BYTES,
    )
    made: dict[str, Any] = {}
    exec(text, {"nan": math.nan, "pack": pack}, made)
    found: Callable[..., None] = made["add"]
    return found


def end_of_file(events: int, crc: int) -> bytes:
    """Return the END event of a file with the given number of events; it has no free byte."""
    return LAYOUT.pack(Kind.END, 0, -1, -1, events, crc, 0.0, 0.0, 0, 0, 0.0, math.nan, 0.0, 0.0)


def _header(count: int) -> bytes:
    """Return numpy's header for ``count`` records; its length is the same for every count."""
    described: dict[str, Any] = {
        "descr": np.lib.format.dtype_to_descr(EVENT),
        "fortran_order": False,
        "shape": (count,),
    }
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()


class EventLog:
    """Writes events to a file that numpy reads: an array of ``EVENT`` records.

    The count in the file's header is 0 until ``close`` has written the END event, which marks the
    file of an unfinished run. Every byte of a complete file is covered by a checksum or has only
    one valid value: END carries the CRC-32 of the events and of numpy's header, and nothing else.
    The checksum is computed block by block, as the buffer is written. A context manager.

    A step must not wait for its events. Within a step neither the code that packs an event nor its
    data is in the cache, and a first call takes several times as long as the next ones. So a step
    only appends to ``queue``, and ``drain`` makes many calls together.
    """

    #: Packs the columns of an event into the buffer, at an offset.
    pack: Callable[..., None] = staticmethod(LAYOUT.pack_into)
    #: Whether events are counted by owner.
    is_counted = False
    #: Whether events hold digests and sums of vectors, by which they can be checked. These cost as
    #: much as the vectors are long.
    is_exact = True

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        origin: float = 0.0,
        file: BinaryIO | None = None,
        counts: bool = False,
    ) -> None:
        """Open the file, which must not exist.

        Args:
            path: of the file.
            origin: the port's time at the beginning of the run, in seconds.
            file: an empty open file, which the log closes; ``path`` is then only its name in
                errors.
            counts: whether to count the events of each owner.

        Raises:
            ConfigError: if it cannot be written.
        """
        self._path = path
        #: Subtracted from every time.
        self.origin = origin
        self._buffer = bytearray(_BUFFERED * EVENT_BYTES)
        self._at = 0
        self._crc = 0
        #: Calls to make later, each a function that adds events and then its arguments, which must
        #: not change until then. The appending code calls ``drain`` from ``QUEUED`` calls on.
        self.queue: list[tuple[Any, ...]] = []
        #: Events written so far.
        self.events = 0
        #: Owner → the events added so far, if counted; see ``adder``.
        self.counts: dict[Owner, int] = {}
        self.is_counted = counts
        try:
            self._file: BinaryIO | None = file or open(path, "xb")  # noqa: SIM115 - see close()
            self._write(_header(0))
            self._file.flush()  # so that even a run that is killed at once leaves a valid header
        except OSError as error:
            raise ConfigError(f"cannot write {os.fspath(path)}: {error.strerror}") from error

    def adder(self, owner: Owner, kind: type[Event]) -> Callable[..., None]:
        """Return a function that appends an event of a kind, after those in the queue.

        It takes the port's time in seconds, the worker, −1 for none, and then the fields of the
        kind, by name or in the order of the columns in ``UNUSED``; fields left out get the values
        there. It raises ``OutputError`` if the buffer is full and cannot be written.
        """
        add = MethodType(_adder(kind.kind, self.pack), self)
        if not self.is_counted:
            return add
        counts = self.counts
        counts.setdefault(owner, 0)

        def counted(*event: Any, **more: Any) -> None:
            counts[owner] += 1
            add(*event, **more)

        return counted

    def keep(self, events: Events, owner: Owner) -> None:
        """Take over an owner's events of the run that this one resumes, before any others.

        Raises:
            OutputError: if they cannot be written.
        """
        self.counts[owner] = self.counts.get(owner, 0) + len(events)
        self._write_block(memoryview(events.tobytes()))

    def sync(self) -> None:
        """Flush written events to the disk, so that they survive a crash of the host.

        Raises:
            OSError: if that fails.
        """
        if self._file is not None:
            os.fsync(self._file.fileno())

    def drain(self) -> None:
        """Make the calls in the queue, in order.

        Raises:
            OutputError: if the buffer is full and cannot be written.
        """
        calls = self.queue[:]
        self.queue.clear()  # not replaced: recorders append to this very list
        call: Callable[..., None]
        for call, *args in calls:
            call(*args)

    def flush(self) -> None:
        """Write all events so far.

        Raises:
            OutputError: if it cannot be written.
        """
        self.drain()
        self._write_buffer()
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                raise self._cannot_write(error) from error

    def _write_buffer(self) -> None:
        if self._file is None or not self._at:
            return
        data = memoryview(self._buffer)[: self._at]
        self._at = 0
        self._write_block(data)

    def _write_block(self, data: memoryview) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self.events += len(data) // EVENT_BYTES
        self._write(data)

    def close(self) -> None:
        """Write END, then the count, and close the file; closing twice is allowed."""
        if self._file is None:
            return
        self.flush()
        events, header = self.events, _header(self.events + 1)
        self._write(end_of_file(events, zlib.crc32(header, self._crc)))
        try:
            self._file.seek(0)
            self._file.write(header)
            self._file.close()
        except OSError as error:
            raise self._cannot_write(error) from error
        self.events = events
        self._file = None

    def abandon(self) -> None:
        """Write the buffered events and close the file without END: the run is unfinished."""
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None

    def _write(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> OutputError:
        return OutputError(f"cannot write {os.fspath(self._path)}: {error.strerror}")

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()
