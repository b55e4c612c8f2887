"""Numpy arrays as tensors that share their memory."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from psrt.arrays import AnyArray


def tensor_on(array: AnyArray) -> Any:
    """Return a tensor on the memory of an array; whoever gives a read-only one sees to it."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it could be written to
        return torch.from_numpy(array)


def address_of(array: AnyArray) -> int:
    """Return the address of an array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address
