"""An .npz file with x_train, y_train, x_test and y_test. Nothing in it is ever unpickled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.files import open_regular
from psrt.data.dataset import Dataset, checked_dataset

#: The arrays that the file must contain; others are ignored.
PARTS = ("x_train", "y_train", "x_test", "y_test")
#: The most arrays that a message names.
_SHOWN = 8
#: The most bytes that one byte of a deflated file can stand for: a match of 258 takes two bits.
_DENSEST = 1032


def load_npz(path: Path) -> Dataset:
    """Load an ``.npz``: integer ``y`` are labels, float ``y`` the targets of a regression.

    Values are not scaled: scale them before saving.

    Raises:
        ConfigError: one line that names the file, if it is missing or damaged, lacks an array,
            contains Python objects, or has an invalid type, shape or value.
    """
    arrays = read_npz(path, lambda names: _four(path, names))
    return checked_dataset(str(path), *arrays.values())


def read_npz(path: Path, chosen: Callable[[Sequence[str]], Sequence[str]]) -> dict[str, np.ndarray]:
    """Return arrays of an ``.npz``, by name; their values are not checked.

    Args:
        path: of the file.
        chosen: returns those to read, of the names of all that are there.

    Raises:
        ConfigError: one line that names the file, if it is missing or damaged, or contains Python
            objects there.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns about files written by Python 2
            return _read(path, chosen)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise ConfigError(f"{path}: does not fit into memory") from None
    # A damaged zip or array header raises many kinds of error, depending on the damage: BadZipFile,
    # zlib.error, NotImplementedError, ValueError, SyntaxError, struct.error and more.
    except Exception as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path}: not a readable .npz file: {line}") from None


def which_are_there(names: Sequence[str]) -> str:
    """Return the names of a file's arrays, a few of many."""
    return (", ".join(names[:_SHOWN]) or "nothing") + (", ..." if len(names) > _SHOWN else "")


def _four(path: Path, names: Sequence[str]) -> Sequence[str]:
    missing = [part for part in PARTS if part not in names]
    if missing:
        raise ConfigError(
            f"{path}: holds no array {' or '.join(missing)}, but {which_are_there(names)}"
        )
    return PARTS


def _read(path: Path, chosen: Callable[[Sequence[str]], Sequence[str]]) -> dict[str, np.ndarray]:
    with open_regular(path) as stream:
        if stream.read(2) != b"PK":  # otherwise numpy would suspect a pickle and advise to load it
            raise ConfigError(f"{path}: not an .npz file")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as members:
            return {part: _member(path, members, part) for part in chosen(members.files)}


def _member(path: Path, members: np.lib.npyio.NpzFile, part: str) -> np.ndarray:
    _check_size(path, members, part)
    try:
        array = members[part]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise ConfigError(
                f"{path}: {part} holds Python objects, which psrt never unpickles"
            ) from None
        raise
    if not isinstance(array, np.ndarray):  # numpy returns a member that is not an .npy as raw bytes
        raise ConfigError(f"{path}: {part} is not a numpy array")
    return array


def _check_size(path: Path, members: np.lib.npyio.NpzFile, part: str) -> None:
    """Raise if an array is larger than its data: numpy trusts its header."""
    archive = members.zip
    assert archive is not None, "it is open"
    name = part if part in archive.namelist() else f"{part}.npy"
    about = archive.getinfo(name)
    there = min(about.compress_size, path.stat().st_size)
    with archive.open(name) as stream:
        if stream.read(6) != np.lib.format.MAGIC_PREFIX:
            return  # not an array, which is refused later
        stream.seek(0)
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0}
        shape, _, dtype = read.get(version, np.lib.format.read_array_header_2_0)(stream)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > _DENSEST * there:
        raise ConfigError(f"{path}: {part} has {there} bytes, too few for an array of {nbytes}")
