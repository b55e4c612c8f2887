"""A folder of IDX files, the format of MNIST and its relatives, gzipped or not.

An IDX file is a big-endian header and then bytes. The header has two zeros, the element type (8 is
an unsigned byte), the number of axes, and the length of each axis in four bytes (Y. LeCun,
C. Cortes, C. J. C. Burges, The MNIST database, 1998).
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np

from psrt.core.errors import ConfigError
from psrt.data.dataset import Dataset, checked_dataset

#: First four bytes of unsigned bytes with three axes (images) and with one (labels).
IMAGES_MAGIC = 0x00000803
LABELS_MAGIC = 0x00000801
#: Bytes read at a time, so that a wrong header cannot make psrt allocate its size.
_PIECE = 1 << 20


def load_idx(folder: Path) -> Dataset:
    """Load ``train-`` and ``t10k-`` images and labels; images are scaled to [0, 1] and flattened.

    Raises:
        ConfigError: one line that names the file that is missing, truncated or not IDX.
    """
    x_train, y_train = _load_pair(folder, "train")
    x_test, y_test = _load_pair(folder, "t10k")
    return checked_dataset(str(folder), x_train, y_train, x_test, y_test, scale=255)


def _load_pair(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, rows, columns) and labels (N,), both uint8."""
    images_path = _find(folder, f"{part}-images", "idx3")
    labels_path = _find(folder, f"{part}-labels", "idx1")
    labels = read_idx(labels_path, LABELS_MAGIC)
    images = read_idx(images_path, IMAGES_MAGIC)
    if len(images) != len(labels):
        raise ConfigError(f"{labels_path}: {len(labels)} labels for {len(images)} images")
    return images, labels


def _find(folder: Path, stem: str, kind: str) -> Path:
    """Return the file by LeCun's name, or with a dot before idx, as unpacking tools write it."""
    for ending in ("", ".gz"):
        for dash in "-.":
            path = folder / f"{stem}{dash}{kind}-ubyte{ending}"
            if os.path.isfile(path):
                return path
    raise ConfigError(f"{folder}: no {stem}-{kind}-ubyte or {stem}-{kind}-ubyte.gz in this folder")


def read_idx(path: Path, magic: int) -> np.ndarray:
    """Read one IDX file of unsigned bytes.

    Args:
        path: the file; a name that ends in ``.gz`` is unpacked.
        magic: the four bytes it must begin with.

    Returns:
        uint8 in the shape given by the header.

    Raises:
        ConfigError: one line that names the file.
    """
    try:
        with _open(path) as stream:
            return _parse(path, stream, magic)
    except EOFError:  # gzip raises this if its end is missing
        raise ConfigError(f"{path}: truncated gzip file") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{path}: corrupt gzip file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise ConfigError(f"{path}: does not fit into memory") from None


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _parse(path: Path, stream: IO[bytes], magic: int) -> np.ndarray:
    axes = magic & 0xFF
    header = stream.read(4 + 4 * axes)
    if len(header) >= 4:
        (got,) = struct.unpack_from(">I", header)
        if got != magic:
            raise ConfigError(f"{path}: magic number 0x{got:08x}, expected 0x{magic:08x}")
    if len(header) < 4 + 4 * axes:
        raise ConfigError(f"{path}: truncated, {len(header)} bytes are no IDX header")
    shape = struct.unpack_from(f">{axes}I", header, 4)
    expected = math.prod(shape)
    content = _read(stream, expected)
    if len(content) < expected:
        raise ConfigError(
            f"{path}: truncated, {len(content)} bytes of data where the header says {expected}"
        )
    if stream.read(1):
        raise ConfigError(f"{path}: more data than the {expected} bytes that the header says")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read(stream: IO[bytes], nbytes: int) -> bytearray:
    """Read ``nbytes``, or less if the stream is shorter."""
    content = bytearray()
    while len(content) < nbytes:
        piece = stream.read(min(_PIECE, nbytes - len(content)))
        if not piece:
            break
        content += piece
    return content
