"""Checks that ranks hold the same, and names the rank and the tensor where they do not."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from psrt.core.errors import ConfigError
from psrt.torch.communicator import Communicator
from psrt.torch.staging import to_host

#: Bits of a digest: the sum of its squares over 32,768 ranks fits into 64 bits.
_BITS = 24
_MASK = (1 << _BITS) - 1
#: Words of eight bytes in a row of a tensor's digest; bytes below which a CRC is as quick.
_ROW, _SMALL = 64, 1 << 14


class Item(NamedTuple):
    """One thing to compare: its label for errors, and its digest."""

    label: str
    digest: int


def check_alike(communicator: Communicator, items: Sequence[Item], expected: str) -> None:
    """Check that every rank has the same; collective.

    Args:
        communicator: of the ranks.
        items: what this rank holds.
        expected: what was expected, for the end of the error.

    Raises:
        ConfigError: on every rank, naming the first rank that differs from rank 0, and in what.
    """
    mine = digest_of_all(items)
    sums = np.array([mine, mine * mine], np.int64)
    communicator.all_reduce(sums)
    if not are_equal(communicator.size, *sums.tolist()):
        raise difference(communicator, items, expected)


def are_equal(size: int, total: int, squares: int) -> bool:
    """Return whether the numbers of all ranks are equal, from their sum and sum of squares.

    By Cauchy and Schwarz, W Σx² = (Σx)² if and only if they are. All ranks see the same sums, so
    all come to the same answer without another message.
    """
    return size * squares == total * total


def difference(communicator: Communicator, items: Sequence[Item], expected: str) -> ConfigError:
    """Return what to raise on every rank, of which at least one differs; collective."""
    most = np.array([len(items)], np.int64)
    communicator.all_reduce(most, op="max")
    mine = np.full(int(most[0]) + 1, -1, np.int64)
    mine[: len(items)] = [it.digest for it in items]
    mine[-1] = len(items)
    roots = mine.copy()
    communicator.broadcast(roots)
    first = np.zeros(communicator.size, np.int64)
    differs = np.flatnonzero(mine != roots)
    first[communicator.rank] = differs[0] + 1 if differs.size else 0
    communicator.all_reduce(first)
    rank = int(np.flatnonzero(first)[0])
    at = int(first[rank]) - 1
    label = items[at].label if at < len(items) else "the number of its tensors"
    return ConfigError(f"rank {rank} differs from rank 0 in {label}; expected {expected}")


def digest_of_all(items: Sequence[Item]) -> int:
    """Return one digest of several items, of their order too."""
    return zlib.crc32(np.array([it.digest for it in items], np.int64).tobytes()) & _MASK


def item(label: str, *values: object) -> Item:
    """Return an item that holds a digest of tensors, numbers and text.

    Objects of other types count by their type alone: their text may contain an address.
    """
    crc = 0
    for value in values:
        crc = _added(crc, value)
    return Item(label, crc & _MASK)


def _added(crc: int, value: object) -> int:
    if isinstance(value, torch.Tensor):
        return _tensor_added(crc, value)
    if isinstance(value, dict):
        for key, it in value.items():
            crc = _added(_added(crc, key), it)
        return crc
    if isinstance(value, list | tuple):
        for it in value:
            crc = _added(crc, it)
        return zlib.crc32(f"{len(value)}".encode(), crc)
    if isinstance(value, str | int | float | bool | None):
        return zlib.crc32(repr(value).encode(), crc)
    return zlib.crc32(type(value).__name__.encode(), crc)


def _tensor_added(crc: int, tensor: Any) -> int:
    """Return a checksum with the type, shape and bits of a tensor added.

    Sums of rows and of columns of its words take a twentieth of the time of a CRC over all words,
    and change with any number and with its place.
    """
    crc = zlib.crc32(f"{tensor.dtype}{list(tensor.shape)}".encode(), crc)
    if tensor.layout != torch.strided or tensor.is_meta:
        return crc
    tensor = to_host(tensor)
    if tensor.dtype is torch.float32 and tensor.is_contiguous():  # the usual case, made quick
        raw = tensor.numpy().reshape(-1).view(np.uint8)
    else:
        raw = bytes_of(tensor).numpy()
    if raw.size < _SMALL:
        return zlib.crc32(raw, crc)
    whole = raw.size // (8 * _ROW) * 8 * _ROW
    words = raw[:whole].view(np.uint64).reshape(-1, _ROW)
    crc = zlib.crc32(np.add.reduce(words, 0), zlib.crc32(raw[whole:], crc))
    return zlib.crc32(np.add.reduce(words, 1), crc)


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor of any type, (n,) uint8; a view where it is contiguous."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Of up to one element, a tensor counts as contiguous whatever its strides are.
    return plain.as_strided((plain.numel(),), (1,), plain.storage_offset()).view(torch.uint8)
