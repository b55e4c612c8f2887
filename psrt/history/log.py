"""The log of one process: events as they happen, buffered, into a ``.npy`` file."""

from __future__ import annotations

import math
import os
import zlib
from os import PathLike
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from psrt.errors import ConfigError
from psrt.history.events import EVENT, EVENT_BYTES, LAYOUT, Kind

#: Events that are gathered before they are written.
_BUFFERED = 4096
_NAN = math.nan
_pack = LAYOUT.pack_into


class EventLog:
    """Writes events to a file that numpy reads: an array of ``EVENT`` records.

    The count in the file's header is 0 until ``close`` has written the END event, so a run that was
    cut off is known by its file. A context manager.
    """

    def __init__(self, path: str | PathLike[str], *, origin: float = 0.0) -> None:
        """Open the file, which must not exist.

        Args:
            path: of the file.
            origin: what the run's clock said at its beginning, in seconds.

        Raises:
            ConfigError: if it cannot be written.
        """
        self._path = path
        #: Subtracted from every time.
        self.origin = origin
        self._buffer = bytearray(_BUFFERED * EVENT_BYTES)
        self._at = 0
        self._crc = 0
        #: Events so far.
        self.events = 0
        try:
            self._file: BinaryIO | None = open(path, "xb")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise ConfigError(f"cannot write {os.fspath(path)}: {error.strerror}") from error
        self._write_header(0)

    def add(
        self,
        kind: int,
        time: float,
        worker: int,
        clock: int,
        version: int,
        shard: int = -1,
        samples: int = 0,
        progress: float = 0.0,
        tau: int = 0,
        rate: float = 0.0,
        gap: float = _NAN,
        weight: float = 0.0,
        seconds: float = 0.0,
        flag: int = 0,
    ) -> None:
        """Append an event; see ``events`` for what its fields mean. ``time`` is the port's."""
        at = self._at
        _pack(
            self._buffer, at, kind, flag, shard, worker, clock, version, progress,
            time - self.origin, tau, samples, rate, gap, weight, seconds,
        )  # fmt: skip
        self._at = at = at + EVENT_BYTES
        if at == len(self._buffer):
            self.flush()

    def flush(self) -> None:
        """Write what is buffered.

        Raises:
            ConfigError: if it cannot be written.
        """
        if self._file is None or not self._at:
            return
        data = memoryview(self._buffer)[: self._at]
        self._crc = zlib.crc32(data, self._crc)
        self.events += self._at // EVENT_BYTES
        self._at = 0
        try:
            self._file.write(data)
        except OSError as error:
            raise ConfigError(f"cannot write {self._path!s}: {error.strerror}") from error

    def close(self) -> None:
        """End the file; closing twice is allowed."""
        if self._file is None:
            return
        self.flush()
        events, crc = self.events, self._crc
        self.add(Kind.END, self.origin, -1, events, crc)
        self.flush()
        try:
            self._file.seek(0)
            self._write_header(events + 1)
            self._file.close()
        except OSError as error:
            raise ConfigError(f"cannot write {self._path!s}: {error.strerror}") from error
        self.events = events
        self._file = None

    def abandon(self) -> None:
        """Write what is buffered and close the file without its end: the run was cut off."""
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None

    def _write_header(self, count: int) -> None:
        """Write numpy's header for so many records; its length does not depend on the count."""
        assert self._file is not None
        described: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(EVENT),
            "fortran_order": False,
            "shape": (count,),
        }
        np.lib.format.write_array_header_1_0(self._file, described)

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
