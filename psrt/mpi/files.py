"""Sends files from rank to rank in pieces: of any length, with the memory of one piece."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from mpi4py import MPI

from psrt.core.errors import OutputError

_TAG = 6
#: Bytes of a piece.
_PIECE = 1 << 20
#: Waits until the first function returns True; at the deadline the second names the peer.
Wait = Callable[[Callable[[], bool], Callable[[], str]], None]


def send_file(comm: MPI.Comm, file: BinaryIO, to: int, wait: Wait) -> None:
    """Send a whole file: its length, its bytes, and their CRC-32.

    Args:
        comm: the communicator of both ranks.
        file: open for reading, at any position.
        to: the rank that calls ``receive_file``.
        wait: of this rank.
    """

    def send(data: memoryview | np.ndarray) -> None:
        # Synchronous sends, so that at most one piece is in flight.
        request = comm.Issend([data, MPI.BYTE], to, _TAG)
        wait(request.Test, lambda: f"rank {to} to take this rank's file")

    size, crc = os.fstat(file.fileno()).st_size, 0
    send(np.array([size], np.int64).view(np.uint8))
    piece = memoryview(bytearray(min(size, _PIECE)))
    for at in range(0, size, _PIECE):
        part = piece[: min(_PIECE, size - at)]
        read = os.preadv(file.fileno(), [part], at)
        assert read == len(part), "the file must be regular and not written to any more"
        crc = zlib.crc32(part, crc)
        send(part)
    send(np.array([crc], np.int64).view(np.uint8))


def receive_file(comm: MPI.Comm, source: int, path: Path, wait: Wait) -> None:
    """Write the file that rank ``source`` sends by ``send_file``.

    Args:
        comm: both ranks are in it.
        source: the rank that sends.
        path: of the file, which is replaced.
        wait: of this rank.

    Raises:
        OutputError: if the file cannot be written, or was damaged on its way; raised after all of
            it has arrived.
    """

    def receive(data: memoryview | np.ndarray) -> None:
        request = comm.Irecv([data, MPI.BYTE], source, _TAG)
        wait(request.Test, lambda: f"rank {source} to send its file")

    number = np.empty(1, np.int64)
    receive(number.view(np.uint8))
    size, crc, failed = int(number[0]), 0, None
    piece = memoryview(bytearray(min(size, _PIECE)))
    file: BinaryIO | None = None
    try:
        file = path.open("wb")
    except OSError as error:
        failed = error
    for at in range(0, size, _PIECE):
        part = piece[: min(_PIECE, size - at)]
        receive(part)
        crc = zlib.crc32(part, crc)
        try:
            if file is not None and failed is None:
                file.write(part)
        except OSError as error:
            failed = error
    try:
        if file is not None:
            file.close()
    except OSError as error:
        failed = error
    receive(number.view(np.uint8))
    if failed is not None:
        raise OutputError(f"cannot write {path}: {failed.strerror}")
    if crc != number[0]:
        raise OutputError(f"{path}: damaged on its way from rank {source}")
