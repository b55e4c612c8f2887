"""Numpy arrays as tensors that share their memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from psrt.core.arrays import AnyArray


def tensor_on(array: AnyArray) -> Any:
    """Return a tensor on the memory of an array; the caller must not write if that is read-only."""
    return tensors_on([array])[0]


def tensors_on(arrays: Sequence[AnyArray]) -> list[Any]:
    """Return tensors on the memory of arrays; the caller must not write to read-only ones."""
    if all(it.flags.writeable for it in arrays):
        return [torch.from_numpy(it) for it in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the tensors are writable
        return [torch.from_numpy(it) for it in arrays]


def address_of(array: AnyArray) -> int:
    """Return the address of an array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address
